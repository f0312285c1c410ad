"""Dropout from random bits: fast on a CPU, and the same entries dropped in every variant.

torch's own CPU dropout spends most of its time in a single-threaded Bernoulli generator. Four decisions drawn from
each 64-bit word are several times faster; the probability is thereby rounded to a multiple of 2^-16.
"""

import math

import torch
from torch import Tensor, nn


def check_dropout(p: float) -> None:
    """Refuse what is no probability of dropping, one that rounds to 1 included.

    Raises:
        ValueError: with what it must be.
    """
    if not (p >= 0 and round(p * 65536) < 65536):
        raise ValueError(f"dropout is a probability, 0 <= p < 1, and leaves one entry in 65,536; got {p}")


def _keep(streams: int, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
    """Booleans (streams, *shape), True with probability 1 - p; whole words to each stream.

    Drawing H streams at once therefore consumes the generator exactly as H draws of one stream, one after the other.
    """
    count = math.prod(shape)
    words = torch.empty(streams, -(-count // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    bits = words.view(torch.int16)[:, :count]
    return (bits >= round(p * 65536) - 32768).view(streams, *shape)


def _scaled(keep: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    return keep.to(dtype).mul_(65536 / (65536 - round(p * 65536)))


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each entry with probability ``p`` and scale the others up; draws nothing unless it drops."""
    if not training or p == 0:
        return x
    return x * _scaled(_keep(1, x.shape, p, x.device)[0], p, x.dtype)


def attention_dropout(weights: Tensor, p: float, training: bool) -> Tensor:
    """Dropout on weights (B, H, T_q, T_k), drawn in the canonical order (H, B, T_q, T_k).

    A loop that calls :func:`dropout` on each head's (B, T_q, T_k) in turn drops the same entries.
    """
    if not training or p == 0:
        return weights
    B, H, T_q, T_k = weights.shape
    keep = _keep(H, (B, T_q, T_k), p, weights.device)
    return weights * _scaled(keep, p, weights.dtype).transpose(0, 1)


class Dropout(nn.Module):
    """:func:`dropout` as a module."""

    def __init__(self, p: float) -> None:
        super().__init__()
        check_dropout(p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
