"""Fused projections and torch's own ``scaled_dot_product_attention``."""

import torch.nn.functional as F
from torch import Tensor

from lockstep.attention.fused import FusedAttention
from lockstep.attention.masks import merge_masks


class SdpaAttention(FusedAttention):
    """The fast kernel where there is one; it draws its own attention dropout."""

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        # The kernel's own causal flag is aligned upper left: right only for a square without another mask.
        kernel_causal = is_causal and mask is None and q.size(2) == k.size(2)
        if not kernel_causal:
            mask = merge_masks((*q.shape[:3], k.size(2)), mask, is_causal, q.device)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=kernel_causal)
