"""Multi-head attention in the index notation of the paper, on weights of shape (H, K, D).

Indices: b batch, t query position, s key position, d model channel, h head, k channel of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, Arithmetic, MultiHeadAttention
from lockstep.attention.dropout import attention_dropout
from lockstep.attention.heads import merge_heads, project_heads
from lockstep.attention.layout import Layout
from lockstep.attention.masks import masked_softmax, merge_masks


class EinsumAttention(MultiHeadAttention):
    """Every product an ``einsum``, every weight stored in its canonical shape.

    Args:
        arithmetic: "native" leaves the four projections to ``einsum``; "ordered" replaces them by the products of
            the other variants, since ``einsum`` sums the input's gradient over all heads at once.
    """

    layout = (
        *(
            Layout(f"{role}_{kind}", axes, (role,))
            for role in INPUT_ROLES
            for kind, axes in (("weight", "h k d"), ("bias", "h k"))
        ),
        Layout("output_weight", "d h k", ("output",)),
        Layout("output_bias", "d", ("output",)),
    )

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        arithmetic: Arithmetic = "native",
    ) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.arithmetic = arithmetic
        scale = 1 / math.sqrt(d_model)
        for name, shape in self.canonical_shapes().items():
            # Parameter names hold no dots.
            self.register_parameter(name.replace(".", "_"), nn.Parameter(torch.empty(shape).uniform_(-scale, scale)))

    def _project(self, role: str, x: Tensor) -> Tensor:
        weight = self.get_parameter(f"{role}_weight")
        bias: Tensor | None = getattr(self, f"{role}_bias", None)
        if self.arithmetic == "ordered":
            flat_bias = None if bias is None else bias.flatten()
            return project_heads(x, weight.flatten(0, 1), flat_bias, self.num_heads, self.arithmetic)
        heads = torch.einsum("btd,hkd->bhtk", x, weight)
        return heads if bias is None else heads + bias[:, None, :]

    def _output(self, context: Tensor) -> Tensor:
        weight = self.get_parameter("output_weight")
        bias: Tensor | None = getattr(self, "output_bias", None)
        if self.arithmetic == "ordered":
            return F.linear(merge_heads(context), weight.flatten(1), bias)
        out = torch.einsum("bhtk,dhk->btd", context, weight)
        return out if bias is None else out + bias

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q, k, v = (self._project(role, x) for role, x in zip(INPUT_ROLES, (query, key, value), strict=True))
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(self.head_dim)
        weights = masked_softmax(scores, merge_masks(scores.shape, mask, is_causal, scores.device))
        weights = attention_dropout(weights, self.dropout, self.training)
        return self._output(torch.einsum("bhts,bhsk->bhtk", weights, v))
