"""Fused projections and torch's own ``scaled_dot_product_attention``."""

import torch.nn.functional as F
from torch import Tensor

from lockstep.attention.fused import FusedAttention
from lockstep.attention.heads import merge_heads
from lockstep.attention.masks import merge_masks


class SdpaAttention(FusedAttention):
    """The fast kernel where there is one; it draws its own attention dropout."""

    canonical_dropout = False

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q = self._project(self.query, query)  # (B, H, T_q, K)
        k = self._project(self.key, key)  # (B, H, T_k, K)
        v = self._project(self.value, value)  # (B, H, T_k, K)
        # The kernel's own causal flag is aligned upper left: right only for a square without another mask.
        kernel_causal = is_causal and mask is None and q.size(2) == k.size(2)
        if not kernel_causal:
            mask = merge_masks((q.size(0), q.size(1), q.size(2), k.size(2)), mask, is_causal, q.device)
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=kernel_causal
        )
        return self.output(merge_heads(context))
