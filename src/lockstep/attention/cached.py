"""Attention with remembered keys and values, for decoding: one function of the canonical weights, whatever the variant.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim.
"""

import torch.nn.functional as F
from torch import Tensor

from lockstep.attention.contract import MultiHeadAttention
from lockstep.attention.heads import attend, merge_heads, split_heads


class CachedAttention:
    """The function of a variant, with its keys and values computed once and kept.

    Args:
        attention: any variant with canonical weights; its weights are read now, and later changes are not seen.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        weights = attention.to_canonical(dict(attention.named_parameters()))
        self._num_heads = attention.num_heads
        self._output = (weights["output.weight"].flatten(1), weights.get("output.bias"))
        self._input = {}
        for role in ("query", "key", "value"):
            bias = weights.get(f"{role}.bias")
            self._input[role] = (weights[f"{role}.weight"].flatten(0, 1), None if bias is None else bias.flatten())

    def _project(self, role: str, x: Tensor) -> Tensor:
        return split_heads(F.linear(x, *self._input[role]), self._num_heads)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, T_k, K) each, of inputs (B, T_k, D)."""
        return self._project("key", x), self._project("value", x)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        """Attend from inputs (B, T_q, D) to kept keys and values (B, H, T_k, K): (B, T_q, D)."""
        q = self._project("query", query)
        context = attend(q, keys, values, mask, is_causal, dropout=0.0, training=False)
        return F.linear(merge_heads(context), *self._output)
