"""Multi-head attention as implementations write it: one projection per role, its rows all heads' rows, stacked."""

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.attention.heads import OrderableAttention, attend, merge_heads, project_heads
from lockstep.attention.layout import OUTPUT_LINEAR, Layout


class FusedAttention(OrderableAttention):
    """Three D x D projections reshaped to heads, batched products, one output projection."""

    layout = (
        *(
            Layout(f"{role}.{kind}", axes, (role,))
            for role in INPUT_ROLES
            for kind, axes in (("weight", "(h k) d"), ("bias", "(h k)"))
        ),
        *OUTPUT_LINEAR,
    )

    def _make_parameters(self) -> None:
        self.query, self.key, self.value, self.output = (
            nn.Linear(self.d_model, self.d_model, bias=self.has_bias) for _ in range(4)
        )

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return project_heads(x, layer.weight, layer.bias, self.num_heads, self.arithmetic)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return attend(q, k, v, mask, is_causal, self.dropout, self.training)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q = self._project(self.query, query)  # (B, H, T_q, K)
        k = self._project(self.key, key)  # (B, H, T_k, K)
        v = self._project(self.value, value)  # (B, H, T_k, K)
        return self.output(merge_heads(self._attend(q, k, v, mask, is_causal)))
