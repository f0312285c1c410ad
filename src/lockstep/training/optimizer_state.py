"""An optimiser's state in canonical layout: moments follow the names of parameters, never their position."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.transformer.canonical import from_canonical, to_canonical

ByName = dict[str, dict[str, Tensor]]
"""Name of the state ("exp_avg", "step", ...) -> canonical name of the parameter -> tensor of its canonical shape."""


@dataclass(frozen=True)
class CanonicalState:
    """What an optimiser remembers.

    Attributes:
        moments: state shaped like the parameter.
        numbers: one number for each parameter, such as Adam's step, spread over the parameter's shape: so it converts
            as the moments do, and parameters merged by another layout can be seen to agree.
    """

    moments: ByName = field(default_factory=dict)
    numbers: ByName = field(default_factory=dict)


def to_canonical_state(model: nn.Module, entries: Mapping[str, Mapping[str, Any]]) -> CanonicalState:
    """Copy what an optimiser remembers of the model's parameters, given by parameter name.

    Raises:
        ValueError: no other layout has a counterpart: some state is shaped like neither its parameter nor a number
            (Adafactor's rows and columns), or the optimiser holds a part of an attention's parameters alone.
    """
    stored = CanonicalState()
    for name, parameter in model.named_parameters():
        for key, value in entries.get(name, {}).items():
            if value is None:  # such as the momentum of an optimiser without
                continue
            tensor = torch.as_tensor(value).detach().clone()
            if tensor.shape not in (parameter.shape, torch.Size()):
                raise ValueError(f"the optimiser keeps {key} of {name} in a shape of its own")
            kind = stored.moments if tensor.shape == parameter.shape else stored.numbers
            kind.setdefault(key, {})[name] = tensor.expand(parameter.shape)

    # What is frozen has no state. It gets what it would have, had its gradient been zero in every step.
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    for tensors in stored.moments.values():
        tensors |= {name: torch.zeros_like(p) for name, p in frozen.items() if name not in tensors}
    for tensors in stored.numbers.values():
        number = next(iter(tensors.values())).flatten()[0]
        tensors |= {name: number.expand(p.shape) for name, p in frozen.items() if name not in tensors}

    def convert(kind: ByName) -> ByName:
        try:
            return {key: to_canonical(model, tensors) for key, tensors in kind.items()}
        except KeyError as error:
            raise ValueError(f"the optimiser keeps nothing of {error}, but of its siblings") from None

    return CanonicalState(convert(stored.moments), convert(stored.numbers))


def from_canonical_state(model: nn.Module, state: CanonicalState) -> dict[str, dict[str, Tensor]]:
    """The inverse of :func:`to_canonical_state`.

    Raises:
        ValueError: parameters that this layout merges disagree in a number, such as the step.
    """
    entries: dict[str, dict[str, Tensor]] = {name: {} for name, _ in model.named_parameters()}
    for key, tensors in state.moments.items():
        for name, tensor in from_canonical(model, tensors).items():
            entries[name][key] = tensor.contiguous()
    for key, tensors in state.numbers.items():
        for name, tensor in from_canonical(model, tensors).items():
            number = tensor.flatten()[0]
            if not (tensor == number).all():
                raise ValueError(f"the optimiser's {key} differs among the parameters that make up {name}")
            entries[name][key] = number.clone()
    return entries


def canonical_state(model: nn.Module, optimizer: Optimizer) -> CanonicalState:
    """Copy the state of a living optimiser; raises as :func:`to_canonical_state`."""
    return to_canonical_state(model, {name: optimizer.state.get(p, {}) for name, p in model.named_parameters()})


def load_canonical_state(model: nn.Module, optimizer: Optimizer, state: CanonicalState) -> None:
    """Lay a canonical state into a living optimiser, moments cast to their parameters' dtype.

    Raises:
        ValueError: parameters that this layout merges disagree in a number, such as the step.
    """
    parameters = dict(model.named_parameters())
    for name, entries in from_canonical_state(model, state).items():
        parameter = parameters[name]
        for key, tensor in entries.items():
            # A copy: views of one canonical tensor would be one memory for the moments of several models.
            optimizer.state[parameter][key] = tensor.to(parameter.dtype, copy=True) if tensor.dim() else tensor
