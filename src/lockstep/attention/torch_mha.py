"""``torch.nn.MultiheadAttention`` itself under the contract: the outside authority."""

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES, MultiHeadAttention
from lockstep.attention.layout import Layout
from lockstep.attention.masks import merge_masks


class TorchAttention(MultiHeadAttention):
    """Translates masks only: torch's meaning is True = hidden, of shape (B·H, T_q, T_k); its dropout is its own."""

    layout = (
        Layout("attention.in_proj_weight", "(r h k) d", INPUT_ROLES),
        Layout("attention.in_proj_bias", "(r h k)", INPUT_ROLES),
        Layout("attention.out_proj.weight", "d (h k)", ("output",)),
        Layout("attention.out_proj.bias", "d", ("output",)),
    )

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.attention = nn.MultiheadAttention(d_model, num_heads, dropout, bias, batch_first=True)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        B, T_q, T_k = query.size(0), query.size(1), key.size(1)
        mask = merge_masks((B, self.num_heads, T_q, T_k), mask, is_causal, query.device)
        hidden = None if mask is None else ~mask.expand(B, self.num_heads, T_q, T_k).flatten(0, 1)
        # Both of torch's other paths give NaN for a query that may see nothing: the one that returns weights, and the
        # one for inference, which it takes when query, key and value are the same object; a view is another object.
        output, _ = self.attention(query.view_as(query), key, value, attn_mask=hidden, need_weights=False)
        return output
