"""What is compared: a variant's model, and what it adds to learning beside the function."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.training.clipping import clip_global_norm
from lockstep.transformer import Transformer
from lockstep.transformer.initialization import initialize

ParameterGroup = dict[str, Any]


class Learner:
    """How a copy starts, groups its parameters and clips its gradients.

    None of it belongs to the function, all of it decides what is learnt, and all of it can depend on how a variant
    stores its weights. This one does not; :mod:`lockstep.comparison.contrasts` has some that do.
    """

    def initialize(self, model: Transformer, seed: int) -> None:
        """Draw all weights in place."""
        initialize(model, seed)

    def groups(self, model: Transformer) -> list[ParameterGroup]:
        """Parameter groups of an optimiser, with ``params`` as pairs of a name and a parameter."""
        return [{"params": list(model.named_parameters())}]

    def clip(self, model: Transformer, max_norm: float) -> None:
        """Clip the gradients in place."""
        clip_global_norm(model, max_norm)


@dataclass(frozen=True)
class Variant:
    """One participant of a comparison.

    Attributes:
        name: what reports call it.
        build: makes the model.
        without_dropout: makes the same model with every dropout 0: what it computes is then its function, in training
            mode too.
        learner: the rest of learning.
        identity: class and arguments of all that makes it; equal for a thing and itself, whatever the name.
        successor: the variant that its copy becomes in mid-training.
    """

    name: str
    build: Callable[[], Transformer]
    without_dropout: Callable[[], Transformer]
    learner: Learner
    identity: Hashable
    successor: "Variant | None" = None


def identity(cls: type, arguments: Mapping[str, Any]) -> Hashable:
    """What a class does with its arguments, names and empty subclasses seen through, defaults filled in."""
    doing = next(c for c in cls.__mro__ if set(vars(c)) - _METADATA)
    parameters = inspect.signature(cls).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty} | dict(arguments)
    return (doing, tuple(sorted((name, repr(value)) for name, value in given.items())))


_METADATA = {"__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__", "__abstractmethods__"}
_METADATA |= {"_abc_impl", "__parameters__", "__annotations__", "__dict__", "__weakref__"}


def is_key_bias(name: str) -> bool:
    """Whether a canonical tensor is a key bias.

    Softmax ignores what is added to all scores of a query, so the true gradient of a key bias is zero. What is
    computed is rounding noise, and an optimiser that divides by its size turns it into steps.
    """
    return name.endswith("key.bias")
