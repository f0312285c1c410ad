"""The contract that every multi-head attention variant fulfils.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim = D / H.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lockstep.attention import reference
from lockstep.attention.dropout import check_dropout
from lockstep.attention.layout import Layout

Arithmetic = Literal["ordered", "native"]
Tensors = Mapping[str, Tensor]

INPUT_ROLES = ("query", "key", "value")


class MultiHeadAttention(nn.Module, ABC):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2), its implementation left open.

    A variant stores its parameters as it likes, and its ``layout`` tells where they hold the *canonical weights*:

    ===============================================  =========
    ``query.weight  key.weight  value.weight``       (H, K, D)
    ``query.bias    key.bias    value.bias``         (H, K)
    ``output.weight``                                (D, H, K)
    ``output.bias``                                  (D,)
    ===============================================  =========

    Args:
        d_model: width D of the inputs and of the output.
        num_heads: number of heads H; must divide ``d_model``.
        bias: whether the four projections have biases.
        dropout: probability of dropping an attention weight in training.
    """

    canonical: ClassVar[bool] = True
    """The layout is a bijection with the canonical weights; a contrast, or a research idea, says False."""
    layout: ClassVar[tuple[Layout, ...]] = ()
    """Where each parameter lies; those of biases count where there are biases."""

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model < 1 or num_heads < 1 or d_model % num_heads:
            raise ValueError(
                f"num_heads must divide d_model, both positive; got num_heads={num_heads}, d_model={d_model}"
            )
        check_dropout(dropout)
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.has_bias = bias
        self.dropout = dropout

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend from each query position to the key positions it may see.

        Args:
            query: (B, T_q, D).
            key: (B, T_k, D).
            value: (B, T_k, D).
            mask: boolean, True = may attend: broadcastable to (B, H, T_q, T_k), or (B, T_q, T_k), or (T_q, T_k);
                never changed in place.
            is_causal: also hide later keys; aligned at the lower right corner when T_q differs from T_k.

        Returns:
            (B, T_q, D). A query that may see nothing gets zero weights, so the output bias alone.

        Raises:
            ValueError: the mask is not boolean, or does not fit the scores.
        """

    def to_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and rearrange tensors given by this module's parameter names; values stay bit for bit.

        Serves weights, gradients and an optimiser's moments alike; uses only views, stack, cat and split.
        """
        read: dict[str, Tensor] = {}
        for layout in self._layouts():
            read |= layout.read(tensors, self.num_heads, self.head_dim)
        return {name: read[name] for name in self.canonical_shapes()}

    def from_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        """The inverse of :meth:`to_canonical`."""
        written: dict[str, Tensor] = {}
        for layout in self._layouts():
            written |= layout.write(tensors, self.num_heads, self.head_dim)
        return written

    def _layouts(self) -> list[Layout]:
        found = [layout for layout in self.layout if self.has_bias or layout.kind == "weight"]
        missing = self.canonical_shapes().keys() - {f"{role}.{x.kind}" for x in found for role in x.roles}
        if missing:
            raise ValueError(f"{type(self).__name__}.layout does not say where {', '.join(sorted(missing))} lie")
        return found

    def attention_weights(
        self, query: Tensor, key: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The weights (B, H, T_q, T_k) before dropout, for pictures: each row sums to 1, or is empty.

        This default is the reference formula on the canonical weights, not a record of what ``forward`` did.
        """
        weights = self.to_canonical(dict(self.named_parameters()))
        return reference.attention_weights(weights, query, key, mask, is_causal)

    def canonical_shapes(self) -> dict[str, torch.Size]:
        """Shapes of the canonical weights, in canonical order."""
        H, K, D = self.num_heads, self.head_dim, self.d_model
        of_inputs = {"weight": (H, K, D), "bias": (H, K)}
        shapes = {f"{role}.{kind}": torch.Size(shape) for role in INPUT_ROLES for kind, shape in of_inputs.items()}
        shapes |= {"output.weight": torch.Size((D, H, K)), "output.bias": torch.Size((D,))}
        return {name: shape for name, shape in shapes.items() if self.has_bias or name.endswith(".weight")}
