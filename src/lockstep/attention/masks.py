"""Who may attend to whom: one meaning of masks for every variant.

Shapes: B batch, H heads, T_q and T_k query and key length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def merge_masks(
    scores_shape: Sequence[int], mask: Tensor | None, is_causal: bool, device: torch.device
) -> Tensor | None:
    """Combine a boolean mask and causality into one boolean mask of four dimensions, or None if all is visible.

    Masks are merged as booleans, before any constant stands for "hidden": two such constants could overflow.

    Args:
        scores_shape: (B, H, T_q, T_k), to which the mask must broadcast.
        mask: True = may attend; of four axes, of three (B, T_q, T_k), or of two (T_q, T_k), any of size 1.
        is_causal: query i of T_q sees the keys up to i + T_k - T_q (the lower right corner is visible).
        device: where a causal mask is made.

    Raises:
        ValueError: the mask is not boolean, or does not broadcast to the scores.
    """
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be boolean with True = may attend, got {mask.dtype}. For a mask of ones and zeros pass "
                "mask.bool(); for an additive mask of 0 and -inf pass mask == 0; an additive bias is not supported."
            )
        given = tuple(mask.shape)
        if mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, T_q, T_k): each sample its own, whatever B and H are
        fits = mask.dim() in (2, 4) and all(
            size in (1, wanted) for size, wanted in zip(reversed(mask.shape), reversed(scores_shape), strict=False)
        )
        if not fits:
            raise ValueError(
                f"mask of shape {given} does not broadcast to (B, H, T_q, T_k) = {tuple(scores_shape)}; three axes are "
                "(B, T_q, T_k), two are (T_q, T_k), and a padding mask over keys (B, T_k) is passed as "
                "mask[:, None, None, :]."
            )
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    if is_causal:
        T_q, T_k = scores_shape[-2:]
        causal = torch.ones(T_q, T_k, dtype=torch.bool, device=device).tril(T_k - T_q)
        mask = causal[None, None] if mask is None else mask & causal
    return mask


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys (..., T_k); a row that may see nothing is zero, and so are its gradients.

    Hidden scores are minus infinity, exact in any dtype, so hidden keys weigh exactly 0. An empty row would be
    NaN (and poison the gradients even where it is overwritten): it is computed as if all were visible, then zeroed.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    empty = ~mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | empty), float("-inf")).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0)
