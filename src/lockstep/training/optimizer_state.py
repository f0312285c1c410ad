"""An optimiser's state in canonical layout: moments follow the names of parameters, never their position."""

from dataclasses import dataclass, field

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


def canonical_state(model: nn.Module, optimizer: Optimizer) -> CanonicalState:
    """Copy the optimiser's state of the model's parameters.

    Raises:
        ValueError: no other layout has a counterpart: some state is shaped like neither its parameter nor a number
            (Adafactor's rows and columns), or the optimiser holds a part of an attention's parameters alone.
    """
    stored = CanonicalState()
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor) or value.shape not in (parameter.shape, torch.Size()):
                raise ValueError(f"{type(optimizer).__name__} keeps {key} of {name} in a shape of its own")
            kind = stored.moments if value.shape == parameter.shape else stored.numbers
            kind.setdefault(key, {})[name] = value.detach().clone().expand(parameter.shape)

    def convert(kind: ByName) -> ByName:
        try:
            return {key: to_canonical(model, tensors) for key, tensors in kind.items()}
        except KeyError as error:
            raise ValueError(f"{type(optimizer).__name__} keeps nothing of {error}, but of its siblings") from None

    return CanonicalState(convert(stored.moments), convert(stored.numbers))


def load_canonical_state(model: nn.Module, optimizer: Optimizer, state: CanonicalState) -> None:
    """Lay a canonical state into an optimiser of the model's parameters, cast to their dtype.

    Raises:
        ValueError: parameters that this layout merges disagree in a number, such as the step.
    """
    parameters = dict(model.named_parameters())
    for key, tensors in state.moments.items():
        for name, tensor in from_canonical(model, tensors).items():
            moment = torch.empty_like(parameters[name], memory_format=torch.contiguous_format)
            optimizer.state[parameters[name]][key] = moment.copy_(tensor).detach()
    for key, tensors in state.numbers.items():
        for name, tensor in from_canonical(model, tensors).items():
            number = tensor.flatten()[0]
            if not (tensor == number).all():
                raise ValueError(f"{name} merges parameters whose {key} differs")
            optimizer.state[parameters[name]][key] = number.clone()
