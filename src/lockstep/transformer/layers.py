"""Layers of the Transformer (Vaswani et al. 2017, sections 3.1 to 3.5).

Shapes: B batch, T length (T_s of the source, T_t of the target), D = d_model.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention
from lockstep.attention.dropout import Dropout

Norm = Literal["post", "pre"]
Activation = Literal["relu", "gelu"]
AttentionFactory = Callable[[], MultiHeadAttention]
Sublayer = Callable[[Tensor], Tensor]


def separate_views(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of the tensors, each of which collects its gradients by itself.

    An attention that uses one tensor as query, key and value in many products would otherwise fix the order in which
    all those gradients are summed, and with it the last bits.
    """
    return tuple(x.view_as(x) for x in tensors)


class Residual(nn.Module):
    """A residual connection with dropout and layer normalisation, after the sum as in the paper, or before."""

    def __init__(self, d_model: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class FeedForward(nn.Module):
    """Two linear maps with an activation between (section 3.3)."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = nn.ReLU() if activation == "relu" else nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.activation(self.inner(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward: (B, T_s, D) -> (B, T_s, D)."""

    def __init__(
        self, attention: AttentionFactory, d_model: int, d_ff: int, dropout: float, activation: Activation, norm: Norm
    ) -> None:
        super().__init__()
        self.self_attention = attention()
        self.self_attention_residual = Residual(d_model, dropout, norm)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_residual = Residual(d_model, dropout, norm)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.self_attention_residual(x, lambda h: self.self_attention(*separate_views(h, h, h), mask))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward: (B, T_t, D) -> (B, T_t, D)."""

    def __init__(
        self, attention: AttentionFactory, d_model: int, d_ff: int, dropout: float, activation: Activation, norm: Norm
    ) -> None:
        super().__init__()
        self.self_attention = attention()
        self.self_attention_residual = Residual(d_model, dropout, norm)
        self.cross_attention = attention()
        self.cross_attention_residual = Residual(d_model, dropout, norm)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.feed_forward_residual = Residual(d_model, dropout, norm)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor:
        return self.connect(
            x,
            lambda h: self.self_attention(*separate_views(h, h, h), is_causal=True),
            lambda h: self.cross_attention(*separate_views(h, memory, memory), memory_mask),
        )

    def connect(self, x: Tensor, self_attend: Sublayer, cross_attend: Sublayer) -> Tensor:
        """The layer around two given attentions: its own in training, remembering ones in decoding."""
        x = self.self_attention_residual(x, self_attend)
        x = self.cross_attention_residual(x, cross_attend)
        return self.feed_forward_residual(x, self.feed_forward)


class SinusoidalPositions(nn.Module):
    """Fixed position encodings, sine and cosine interleaved (section 3.5), for any length."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)

    def forward(self, start: int, length: int, like: Tensor) -> Tensor:
        """Encodings (length, D) of the positions from ``start`` on, with the dtype and device of ``like``."""
        if self.table.size(0) < start + length:
            self.table = sinusoids(max(256, 2 * (start + length)), self.d_model)
        if self.table.dtype != like.dtype or self.table.device != like.device:
            self.table = self.table.to(like)
        return self.table[start : start + length]


def sinusoids(length: int, d_model: int) -> Tensor:
    """The table (length, D) of section 3.5, computed in float64."""
    channels = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.exp(channels * (-math.log(10_000.0) / d_model))
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : d_model // 2].cos()
    return table
