"""A contrast, not multi-head attention: what one big linear layer is often mistaken for."""

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, MultiHeadAttention, Tensors
from lockstep.attention.heads import attend, merge_heads, split_heads


class SharedHeadsAttention(MultiHeadAttention):
    """One head-sized projection per role, shared by all heads: every head computes the same thing.

    It has a picture and a start, the canonical weights of H equal heads, but no bijection with them: it starts as
    head 0 of the canonical draw, and a gradient or moment in this layout has no canonical counterpart.
    """

    canonical = False

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.query = nn.Linear(d_model, self.head_dim, bias=bias)
        self.key = nn.Linear(d_model, self.head_dim, bias=bias)
        self.value = nn.Linear(d_model, self.head_dim, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q, k, v = (
            split_heads(layer(x).repeat(1, 1, self.num_heads), self.num_heads)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        context = attend(q, k, v, mask, is_causal, self.dropout, self.training)
        return self.output(merge_heads(context))

    def to_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        return {
            name: tensors[name].expand(shape) if name.startswith(INPUT_ROLES) else tensors[name].view(shape)
            for name, shape in self.canonical_shapes().items()
        }

    def from_canonical(self, tensors: Tensors) -> dict[str, Tensor]:
        return {
            name: tensor[0] if name.startswith(INPUT_ROLES) else tensor.view(self.get_parameter(name).shape)
            for name, tensor in tensors.items()
        }
