"""The whole model in canonical layout: what two models with different attention have in common, name by name."""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention


def _attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """By the prefix of their parameters' names."""
    return {f"{name}.": module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


def _convert(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    convert: Callable[[MultiHeadAttention, dict[str, Tensor]], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Hand each attention its own tensors, and put what it returns in their place; the order of names is kept."""
    attentions = _attentions(model)
    groups: dict[str, dict[str, Tensor]] = {}  # of an attention, or of one other tensor, which has no name within
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in attentions if name.startswith(prefix)), name)
        groups.setdefault(prefix, {})[name.removeprefix(prefix)] = tensor
    converted = {}
    for prefix, group in groups.items():
        module = attentions.get(prefix)
        found = convert(module, group) if module is not None and module.canonical else group
        converted.update({f"{prefix}{name}": tensor for name, tensor in found.items()})
    return converted


def has_canonical_layout(model: nn.Module) -> bool:
    """Whether every attention's layout is a bijection with the canonical weights."""
    return all(module.canonical for module in model.modules() if isinstance(module, MultiHeadAttention))


def to_canonical(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the model's parameter names (weights, gradients or moments) to canonical names and shapes.

    The order of names is the same for every variant, so that sums over all tensors are. An attention without a
    canonical layout keeps its own names.
    """

    def convert(module: MultiHeadAttention, group: dict[str, Tensor]) -> dict[str, Tensor]:
        canonical = module.to_canonical(group)
        return {name: canonical[name] for name in module.canonical_shapes()}

    return _convert(model, tensors, convert)


def from_canonical(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`to_canonical`."""
    return _convert(model, tensors, lambda module, group: module.from_canonical(group))


def canonical_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights in canonical layout; shared parameters once, under their first name."""
    return to_canonical(model, {name: p.detach() for name, p in model.named_parameters()})


@torch.no_grad()
def load_canonical(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put canonical weights into the model's parameters, casting them.

    An attention without a canonical layout takes what it can, and keeps the weights that are its own.

    Raises:
        KeyError: another parameter of the model has no counterpart.
    """
    named = from_canonical(model, tensors)
    research = {prefix: module for prefix, module in _attentions(model).items() if not module.canonical}
    for prefix, module in research.items():
        own = module.from_canonical({name: tensors[f"{prefix}{name}"] for name in module.canonical_shapes()})
        named |= {f"{prefix}{name}": tensor for name, tensor in own.items()}
    for name, parameter in model.named_parameters():
        if name in named or not name.startswith(tuple(research)):
            parameter.copy_(named[name])


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of the canonical weights: equal for two variants exactly if every weight is equal to the bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(canonical_weights(model).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
