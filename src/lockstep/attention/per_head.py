"""Multi-head attention as the paper words it: h heads, each with its own three projections, one after the other."""

import math

import torch
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, MultiHeadAttention
from lockstep.attention.dropout import dropout
from lockstep.attention.layout import OUTPUT_LINEAR, Layout
from lockstep.attention.masks import masked_softmax, merge_masks


class AttentionHead(nn.Module):
    """Scaled dot-product attention in a space of its own (section 3.2.1): (B, T, D) -> (B, T_q, K)."""

    def __init__(self, d_model: int, head_dim: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, head_dim, bias=bias)
        self.key = nn.Linear(d_model, head_dim, bias=bias)
        self.value = nn.Linear(d_model, head_dim, bias=bias)
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        q = self.query(query)  # (B, T_q, K)
        k = self.key(key)  # (B, T_k, K)
        v = self.value(value)  # (B, T_k, K)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, T_q, T_k)
        weights = dropout(masked_softmax(scores, mask), self.dropout, self.training)
        return weights @ v  # (B, T_q, K)


class PerHeadAttention(MultiHeadAttention):
    """A list of heads, run in a loop; their outputs concatenated and projected (section 3.2.2)."""

    layout = (
        *(
            Layout(f"heads.{{}}.{role}.{kind}", axes, (role,))
            for role in INPUT_ROLES
            for kind, axes in (("weight", "h k d"), ("bias", "h k"))
        ),
        *OUTPUT_LINEAR,
    )

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.heads = nn.ModuleList(AttentionHead(d_model, self.head_dim, bias, dropout) for _ in range(num_heads))
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        scores_shape = (query.size(0), self.num_heads, query.size(1), key.size(1))
        mask = merge_masks(scores_shape, mask, is_causal, query.device)
        outputs = []
        for index, head in enumerate(self.heads):
            # A mask has one plane for all heads, or one for each.
            head_mask = None if mask is None else mask[:, index if mask.size(1) > 1 else 0]  # (B or 1, T_q, T_k)
            outputs.append(head(query, key, value, head_mask))
        return self.output(torch.cat(outputs, dim=-1))
