"""What the batched variants share: projections into heads, batched products, heads merged again.

Shapes: B batch, T length, D = d_model, H = num_heads, K = head_dim.

Ordered arithmetic. A loop over heads and one batched product agree to the last bit in float32 on a CPU (for head_dim
a multiple of 32 and B >= 2), provided that heads lie contiguous as (B, H, T, K), with one exception: the gradient
with respect to the input, which the loop sums head by head, and a single projection over all heads as one product.
:class:`_HeadwiseLinear` sums it as the loop does.
"""

import math
from abc import abstractmethod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lockstep.attention.contract import Arithmetic, MultiHeadAttention
from lockstep.attention.dropout import attention_dropout
from lockstep.attention.masks import masked_softmax, merge_masks


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, K), contiguous."""
    B, T, D = x.shape
    return x.view(B, T, num_heads, D // num_heads).transpose(1, 2).contiguous()


def merge_heads(heads: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, D)."""
    return heads.transpose(1, 2).flatten(2)


class _HeadwiseLinear(torch.autograd.Function):
    """A projection into heads whose gradient to the input is summed as autograd sums it for a loop: last head first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_heads: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        return split_heads(F.linear(x, weight, bias), num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # (B, T, D), (D, D)
        H = grad.size(1)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if needs_x:
            blocks = weight.chunk(H)  # H times (K, D)
            for head in reversed(range(H)):
                part = grad[:, head].flatten(0, 1) @ blocks[head]  # (B·T, D)
                grad_x = part if grad_x is None else grad_x.add_(part)
            grad_x = cast(Tensor, grad_x).view_as(x)
        if needs_weight or needs_bias:
            flat = merge_heads(grad).flatten(0, 1)  # (B·T, D)
            grad_weight = flat.t() @ x.flatten(0, 1) if needs_weight else None
            grad_bias = flat.sum(0) if needs_bias else None
        return grad_x, grad_weight, grad_bias, None


class OrderableAttention(MultiHeadAttention):
    """An attention with a choice of arithmetic; its subclasses say what parameters they have.

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
        self._make_parameters()

    @abstractmethod
    def _make_parameters(self) -> None:
        """Called once the sizes are known."""


def project_heads(x: Tensor, weight: Tensor, bias: Tensor | None, num_heads: int, arithmetic: Arithmetic) -> Tensor:
    """Project (B, T, D) by ``weight`` (D, D) and ``bias`` (D,), and split into heads (B, H, T, K).

    Under autocast the order of sums belongs to the casts: the ordinary projection serves, and no bits are promised.
    """
    if arithmetic == "ordered" and not torch.is_autocast_enabled(x.device.type):
        return cast(Tensor, _HeadwiseLinear.apply(x, weight, bias, num_heads))  # type: ignore[no-untyped-call]
    return split_heads(F.linear(x, weight, bias), num_heads)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, dropout: float, training: bool
) -> Tensor:
    """Scaled dot-product attention of all heads at once, softmax written out.

    Args:
        q: (B, H, T_q, K).
        k: (B, H, T_k, K).
        v: (B, H, T_k, K).
        mask: as in the contract.

    Returns:
        (B, H, T_q, K).
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T_q, T_k)
    visible = merge_masks(scores.shape, mask, is_causal, scores.device)
    weights = attention_dropout(masked_softmax(scores, visible), dropout, training)
    return weights @ v
