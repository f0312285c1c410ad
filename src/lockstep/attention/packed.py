"""Multi-head attention with query, key and value projections packed in one matrix, rows [all Q | all K | all V]."""

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.attention.heads import OrderableAttention, attend, merge_heads, project_heads, split_heads
from lockstep.attention.layout import OUTPUT_LINEAR, Layout


class PackedAttention(OrderableAttention):
    """One 3D x D projection: a single product in self-attention, slices of it in cross-attention.

    Args:
        arithmetic: "ordered" sums the input's gradient head by head, as a loop would; it therefore projects each
            role by its slice. "native" uses the single product wherever query, key and value are one tensor.
    """

    layout = (
        Layout("input.weight", "(r h k) d", INPUT_ROLES),
        Layout("input.bias", "(r h k)", INPUT_ROLES),
        *OUTPUT_LINEAR,
    )

    def _make_parameters(self) -> None:
        self.input = nn.Linear(self.d_model, 3 * self.d_model, bias=self.has_bias)
        self.output = nn.Linear(self.d_model, self.d_model, bias=self.has_bias)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        if self.arithmetic == "native" and _one_tensor(query, key, value):
            projected = F.linear(query, self.input.weight, self.input.bias)  # (B, T, 3D)
            return [split_heads(x, self.num_heads) for x in projected.chunk(3, dim=-1)]
        weights = self.input.weight.chunk(3)
        biases = self.input.bias.chunk(3) if self.has_bias else (None, None, None)
        return [
            project_heads(x, weight, bias, self.num_heads, self.arithmetic)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        ]

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q, k, v = self._project(query, key, value)  # (B, H, T, K) each
        context = attend(q, k, v, mask, is_causal, self.dropout, self.training)
        return self.output(merge_heads(context))


def _one_tensor(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the three are one tensor, or like views of one, so that their gradients end in the same place."""
    if query is key and key is value:
        return True
    same_base = query._base is not None and query._base is key._base and key._base is value._base
    places = {(x.data_ptr(), x.shape, x.stride()) for x in (query, key, value)}
    return same_base and len(places) == 1
