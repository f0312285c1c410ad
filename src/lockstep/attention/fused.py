"""Multi-head attention as implementations write it: one projection per role, its rows all heads' rows, stacked."""

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, Arithmetic, MultiHeadAttention
from lockstep.attention.heads import attend, merge_heads, project_heads
from lockstep.attention.layout import OUTPUT_LINEAR, Layout


class FusedAttention(MultiHeadAttention):
    """Three D x D projections reshaped to heads, batched products, one output projection.

    Args:
        arithmetic: "ordered" sums the input's gradient head by head, as a loop would; "native" in one product.
    """

    layout = (
        *(
            Layout(f"{role}.{kind}", axes, (role,))
            for role in INPUT_ROLES
            for kind, axes in (("weight", "(h k) d"), ("bias", "(h k)"))
        ),
        *OUTPUT_LINEAR,
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
