"""Faults that attention implementations have had, planted one at a time in a correct variant."""

import torch
from torch import Tensor, nn

from lockstep.attention.fused import FusedAttention


class FusedByAnotherName(FusedAttention):
    """No fault, and nothing new."""


class QueryHeadsSwapped(FusedAttention):
    """Two heads' queries meet each other's keys."""

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        heads = super()._project(layer, x)
        order = [1, 0, *range(2, self.num_heads)]
        return heads[:, order].contiguous() if layer is self.query else heads


class CausalOffByOne(FusedAttention):
    """Each position also sees the next."""

    def forward(self, query, key, value, mask=None, is_causal=False):
        if is_causal:
            mask = torch.ones(query.size(1), key.size(1), dtype=torch.bool).tril(1)
        return super().forward(query, key, value, mask)


class CrossPaddingIgnored(FusedAttention):
    """The padding mask holds in the encoder, not in cross-attention."""

    def forward(self, query, key, value, mask=None, is_causal=False):
        cross = query.data_ptr() != key.data_ptr()
        return super().forward(query, key, value, None if cross else mask, is_causal)


class QueryBiasDropped(FusedAttention):
    """The first head has no query bias."""

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        heads = super()._project(layer, x)
        if layer is not self.query:
            return heads
        bias = layer.bias.view(self.num_heads, 1, self.head_dim)  # (H, 1, K)
        first = torch.arange(self.num_heads)[:, None, None] == 0
        return heads - torch.where(first, bias, 0.0)


class ScaledByOneInAThousand(FusedAttention):
    """Scores 1.001 times as large."""

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        heads = super()._project(layer, x)
        return heads * 1.001 if layer is self.query else heads


class WrongInTrainingOnly(FusedAttention):
    """Scores 1.01 times as large in training mode: no dropout, and no matter of draws."""

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        heads = super()._project(layer, x)
        return heads * 1.01 if layer is self.query and self.training else heads


class WrongAfterAWhile(FusedAttention):
    """Scores 1.01 times as large from the tenth call on: what a fresh module computes tells nothing."""

    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0):
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.calls = 0

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        heads = super()._project(layer, x)
        self.calls += layer is self.query
        return heads * 1.01 if layer is self.query and self.calls > 10 else heads


class ExtraParameter(FusedAttention):
    """A parameter that the canonical layout does not know."""

    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0):
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.temperature = nn.Parameter(torch.ones(()))


class Gated(FusedAttention):
    """An idea with weights that multi-head attention has not."""

    canonical = False

    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0):
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.gate = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None, is_causal=False):
        return self.gate(query).sigmoid() * super().forward(query, key, value, mask, is_causal)


class Failing(FusedAttention):
    """Works once."""

    def forward(self, query, key, value, mask=None, is_causal=False):
        if query.size(0) > 2:
            raise RuntimeError("out of order")
        return super().forward(query, key, value, mask, is_causal)


class KeyFrozen(FusedAttention):
    """The right function, of which a part is not trained."""

    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0):
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.key.requires_grad_(False)


class ReturnsWeightsToo(FusedAttention):
    """The result in a tuple."""

    def forward(self, query, key, value, mask=None, is_causal=False):
        return super().forward(query, key, value, mask, is_causal), None


ALL = [
    QueryHeadsSwapped,
    CausalOffByOne,
    CrossPaddingIgnored,
    QueryBiasDropped,
    ScaledByOneInAThousand,
    WrongInTrainingOnly,
    WrongAfterAWhile,
    KeyFrozen,
]
