"""Gradient clipping that is the same in every layout."""

import torch
from torch import Tensor, nn

from lockstep.transformer.canonical import to_canonical


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By parameter name; zero for a parameter that is frozen, or was not used."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def clip_global_norm(model: nn.Module, max_norm: float | None) -> Tensor:
    """Scale the model's gradients in place to a global norm of at most ``max_norm``; None only measures.

    Returns:
        The norm before clipping, summed over canonical tensors: the order of the sum fixes its last bits.
    """
    norm = nn.utils.get_total_norm(to_canonical(model, gradients(model)).values())
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm
