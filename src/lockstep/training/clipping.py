"""Gradient clipping that is the same in every layout."""

from torch import Tensor, nn

from lockstep.transformer.canonical import to_canonical


def clip_global_norm(model: nn.Module, max_norm: float | None) -> Tensor:
    """Scale the model's gradients in place to a global norm of at most ``max_norm``; None only measures.

    Returns:
        The norm before clipping, summed over canonical tensors: the order of the sum fixes its last bits.
    """
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = nn.utils.get_total_norm(to_canonical(model, gradients).values())
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm
