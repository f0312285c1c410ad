"""Where learning can differ although the function does not: start, draws, clipping, weight decay, optimiser.

Each is checked by itself, in float64, with everything before it made equal.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from lockstep.comparison.resync import measure, norms, relative, summary
from lockstep.comparison.step import (
    Conditions,
    Weights,
    bits_equal,
    built,
    change,
    copied_weights,
    forked_random_state,
    normal_like,
    optimizer_of,
    take_step,
)
from lockstep.comparison.variant import Variant, is_key_bias
from lockstep.training import clipping
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import from_canonical, to_canonical

RELATIVE_LIMIT = 1e-9
"""Of float64 results that only a layout separates: rounding is a thousandth of it, a learner's choice far more."""


def initialisation_difference(start: Weights, reference_start: Weights) -> str | None:
    """Names the first tensor that two copies do not start with in common, to the bit."""
    for name, tensor in reference_start.items():
        if name not in start or start[name].shape != tensor.shape:
            return f"initialisation ({name} has no counterpart)"
        if not bits_equal(start[name], tensor):
            ratio = float(start[name].double().std() / tensor.double().std())
            return f"initialisation ({name} starts otherwise, its standard deviation {ratio:.3g} times the reference's)"
    return None


def draws_difference(variant: Variant, reference: Variant, at: Conditions) -> str | None:
    """Whether the same random state makes other dropout: a step in training mode on equal weights."""
    at = replace(at, training=True, state=None)
    with forked_random_state(at.batch.source.device):
        truth, step = take_step(reference, at.weights, at), take_step(variant, at.weights, at)
    kind, worst = summary(measure(step, truth, norms(truth)), identical=False).worst
    if worst.relative <= RELATIVE_LIMIT:
        return None
    return (
        f"random draws in training (from the same random state the {kind} differs by {worst.relative:.2g} of its size)"
    )


def update_differences(variant: Variant, reference: Variant, at: Conditions) -> list[str]:
    """Which of clipping, weight decay and the optimiser answer equal gradients differently.

    A layout cannot change what an optimiser does to each element; it changes what one does to each stored tensor.
    """
    drawn = [normal_like(at.weights, at.seed, f"gradient {i}") for i in range(2)]
    gradients = [{name: tensor.to(at.weights[name]) for name, tensor in each.items()} for each in drawn]
    found = []
    if at.clip is not None:
        found += _named("gradient clipping", *(_clipped(v, gradients[0], at) for v in (variant, reference)))
    # What an optimiser does without a gradient is decay.
    zero = {name: torch.zeros_like(tensor) for name, tensor in at.weights.items()}
    decay = _named("weight decay", *(_updated(v, [zero], at) for v in (variant, reference)))
    found += decay
    if not decay:  # else the update differs by that alone, or cannot be told apart from it
        name = type(optimizer_of(built(reference, at.weights, at), reference, at)).__name__
        found += _named(f"the optimiser {name}", *(_updated(v, gradients, at) for v in (variant, reference)))
    return found


def _named(what: str, own: Weights, truth: Weights) -> list[str]:
    """At most one line: what differs, where most, and by how much."""
    sizes = {name: relative(own[name], tensor) for name, tensor in truth.items() if not is_key_bias(name)}
    worst = max(sizes, key=lambda name: sizes[name])
    if sizes[worst] <= RELATIVE_LIMIT:
        return []
    size = f"by {sizes[worst]:.2g} of its size" if math.isfinite(sizes[worst]) else "where the reference has none"
    return [f"{what} (of {worst}, {size})"]


def _give(model: Transformer, gradients: Weights) -> None:
    named = from_canonical(model, gradients)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.grad = named[name].reshape(parameter.shape).clone(memory_format=torch.contiguous_format)


def _clipped(variant: Variant, gradients: Weights, at: Conditions) -> Weights:
    """Gradients after clipping to a norm that clips: a tenth of theirs."""
    model = built(variant, at.weights, at)
    _give(model, gradients)
    norm = float(torch.stack([g.norm() for g in gradients.values()]).norm())
    variant.learner.clip(model, norm / 10)
    return to_canonical(model, clipping.gradients(model))


def _updated(variant: Variant, gradients: Sequence[Weights], at: Conditions) -> Weights:
    """What a fresh optimiser adds to the weights in as many steps as there are gradients."""
    model = built(variant, at.weights, at)
    before, optimizer = copied_weights(model), optimizer_of(model, variant, at)
    for gradient in gradients:
        _give(model, gradient)
        optimizer.step()
    return change(model, before)
