"""Multi-head attention in the index notation of the paper, on weights of shape (H, K, D).

Indices: b batch, t query position, s key position, d model channel, h head, k channel of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.attention import reference
from lockstep.attention.contract import INPUT_ROLES, Tensors
from lockstep.attention.dropout import attention_dropout
from lockstep.attention.heads import OrderableAttention, merge_heads, project_heads
from lockstep.attention.layout import Layout
from lockstep.attention.masks import masked_softmax, merge_masks


class EinsumAttention(OrderableAttention):
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

    def _make_parameters(self) -> None:
        scale = 1 / math.sqrt(self.d_model)
        for name, shape in self.canonical_shapes().items():
            # Parameter names hold no dots.
            self.register_parameter(name.replace(".", "_"), nn.Parameter(torch.empty(shape).uniform_(-scale, scale)))

    def _project(self, parameters: Tensors, role: str, x: Tensor) -> Tensor:
        if self.arithmetic == "native":
            return reference.project(parameters, role, x)
        bias = parameters[f"{role}.bias"].flatten() if self.has_bias else None
        return project_heads(x, parameters[f"{role}.weight"].flatten(0, 1), bias, self.num_heads, self.arithmetic)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        parameters = {name: self.get_parameter(name.replace(".", "_")) for name in self.canonical_shapes()}
        inputs = zip(INPUT_ROLES, (query, key, value), strict=True)
        q, k, v = (self._project(parameters, role, x) for role, x in inputs)
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(self.head_dim)
        weights = masked_softmax(scores, merge_masks(scores.shape, mask, is_causal, scores.device))
        weights = attention_dropout(weights, self.dropout, self.training)
        context = torch.einsum("bhts,bhsk->bhtk", weights, v)
        if self.arithmetic == "native":
            return reference.output(parameters, context)
        return F.linear(merge_heads(context), parameters["output.weight"].flatten(1), parameters.get("output.bias"))
