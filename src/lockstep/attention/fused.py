"""Multi-head attention as implementations write it: one projection per role, its rows all heads' rows, stacked."""

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, Arithmetic, MultiHeadAttention, Tensors
from lockstep.attention.heads import attend, merge_heads, project_heads


class FusedAttention(MultiHeadAttention):
    """Three D x D projections reshaped to heads, batched products, one output projection.

    Args:
        arithmetic: "ordered" sums the input's gradient head by head, as a loop would; "native" in one product.
    """

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
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return project_heads(x, layer.weight, layer.bias, self.num_heads, self.arithmetic)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q = self._project(self.query, query)  # (B, H, T_q, K)
        k = self._project(self.key, key)  # (B, H, T_k, K)
        v = self._project(self.value, value)  # (B, H, T_k, K)
        context = attend(q, k, v, mask, is_causal, self.dropout, self.training)
        return self.output(merge_heads(context))

    def to_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        shapes = self.canonical_shapes()
        return {name: tensors[name].view(shape) for name, shape in shapes.items()}

    def from_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rows of (H, K, D) stacked to (D, D); columns of (D, H, K) likewise."""
        named = {}
        for role in INPUT_ROLES:
            named[f"{role}.weight"] = tensors[f"{role}.weight"].flatten(0, 1)
            if self.has_bias:
                named[f"{role}.bias"] = tensors[f"{role}.bias"].flatten()
        named["output.weight"] = tensors["output.weight"].flatten(1)
        if self.has_bias:
            named["output.bias"] = tensors["output.bias"]
        return named
