"""The resynchronised step: every participant takes the same step from the same weights, and differences are in noise.

Training is chaotic: correct variants part by more each step, and so do faulty ones, so trained models tell little.
From the same weights and optimiser state on the same batch, one step of a correct variant differs from the reference's
by rounding alone. How much that is, the *nulls* say: the reference itself, every weight moved by one unit in the last
place. Whether anything would be seen, the *controls* say: the reference with a known, small fault.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.comparison.step import (
    Conditions,
    Step,
    bits_equal,
    forked_random_state,
    moved_by_one_ulp,
    take_step,
    with_scaled_scores,
)
from lockstep.comparison.variant import Variant, is_key_bias

LIMIT = 10.0
"""Times the noise up to which a difference is rounding. Correct variants reach 3; a scale error of 1e-4, above 150."""
NULLS = 5
CONTROLS = (1e-3, 1e-4, 1e-5)
"""Relative errors of the controls' scores."""

Place = tuple[str, str]
"""What was compared ("loss", "gradient" or "update") and in which canonical tensor."""


@dataclass(frozen=True)
class Difference:
    """The largest difference of one kind between a participant and the reference.

    Attributes:
        noise: in units of the noise of the same tensor.
        tensor: the canonical tensor where it is largest.
        relative: its norm, divided by the norm of the reference's tensor.
    """

    noise: float = 0.0
    tensor: str = ""
    relative: float = 0.0


@dataclass(frozen=True)
class Excess:
    """How far a participant's step was from the reference's.

    Attributes:
        loss: a difference of the loss.
        gradient: the largest among the gradients, key biases left out.
        update: the largest among the updates, key biases left out.
        key_bias: the largest in the key biases, gradients and updates, reported apart.
        identical: no bit differs in loss, gradients and updates, key biases included.
    """

    loss: Difference
    gradient: Difference
    update: Difference
    key_bias: Difference
    identical: bool

    @property
    def worst(self) -> tuple[str, Difference]:
        """The largest of all but the key biases, and its kind."""
        kinds = {"gradient": self.gradient, "update": self.update, "loss": self.loss}
        return max(kinds.items(), key=lambda kind: kind[1].noise)

    @property
    def noise(self) -> float:
        """The largest difference, in units of the noise."""
        return self.worst[1].noise


@dataclass(frozen=True)
class Resync:
    """One recorded step, or the check on random weights.

    Attributes:
        step: its number, from 1; of the check, 0.
        loss: the reference's, in nats.
        variants: by name.
        nulls: each of them, in units of their own lower quartile.
        controls: by relative error of the scores.
    """

    step: int
    loss: float
    variants: dict[str, Excess]
    nulls: list[Excess]
    controls: dict[float, Excess]


def resynchronised_step(step: int, reference: Variant, variants: Sequence[Variant], at: Conditions) -> Resync:
    """Let the reference, its nulls and controls, and every variant take the same step.

    A difference beyond the limit is measured again from the weights of each null, and the smallest counts. Rounding
    alone can tip a ReLU from one side to the other, or the sign of a gradient that is nearly zero, which young Adam
    turns into a whole step; what is there by chance is not there every time. A fault is.

    The global random state is left as it was.
    """
    weights = {name: tensor.to(at.dtype) for name, tensor in at.weights.items()}
    moved = [moved_by_one_ulp(weights, at.seed, f"null {i}") for i in range(NULLS)]
    with forked_random_state(at.batch.source.device):
        truth = take_step(reference, weights, at)
        null_steps = [take_step(reference, null, at) for null in moved]
        noise = noise_floor(truth, null_steps, weights)

        def confirmed(variant: Variant) -> Excess:
            own = take_step(variant, weights, at)
            differences, same = measure(own, truth, noise), identical(own, truth)
            for null, null_step in zip(moved, null_steps, strict=True):
                if summary(differences, same).noise <= LIMIT:
                    break
                again = measure(take_step(variant, null, at), null_step, noise)
                differences = {
                    place: min(once, again[place], key=lambda d: d.noise) for place, once in differences.items()
                }
            return summary(differences, same)

        def once(own: Step) -> Excess:
            return summary(measure(own, truth, noise), identical(own, truth))

        return Resync(
            step,
            float(truth.loss),
            {variant.name: confirmed(variant) for variant in variants},
            [once(null) for null in null_steps],
            {error: once(take_step(reference, with_scaled_scores(weights, 1 + error), at)) for error in CONTROLS},
        )


def _tensors(step: Step) -> dict[Place, Tensor]:
    kinds = {"loss": {"loss": step.loss}, "gradient": step.gradients, "update": step.updates}
    return {(kind, name): tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}


def noise_floor(truth: Step, nulls: Sequence[Step], weights: Mapping[str, Tensor]) -> dict[Place, float]:
    """The lower quartile of the nulls' distances from the reference, for each tensor.

    No less than the rounding of the tensor itself: a loss is one number, and often equal to the bit by chance. An
    update is rounded with the weights to which it is added.
    """
    floor = {}
    null_tensors = [_tensors(null) for null in nulls]
    for place, tensor in _tensors(truth).items():
        kind, name = place
        distances = torch.tensor([_distance(null[place], tensor) for null in null_tensors], dtype=torch.float64)
        rounded = _norm(tensor) + (_norm(weights[name]) if kind == "update" else 0.0)
        floor[place] = max(float(distances.quantile(0.25)), torch.finfo(tensor.dtype).eps * rounded)
    return floor


def norms(step: Step) -> dict[Place, float]:
    """The size of each tensor, as a unit in which differences are relative."""
    return {place: _norm(tensor) for place, tensor in _tensors(step).items()}


def measure(step: Step, truth: Step, noise: Mapping[Place, float]) -> dict[Place, Difference]:
    """Compare all tensors that the two have in common; every variant with a canonical layout has them all."""
    own = _tensors(step)
    differences = {}
    for place, tensor in _tensors(truth).items():
        if place in own and own[place].shape == tensor.shape:
            in_noise = _ratio(_distance(own[place], tensor), noise[place])
            differences[place] = Difference(in_noise, place[1], relative(own[place], tensor))
    return differences


def identical(step: Step, truth: Step) -> bool:
    """Whether all tensors agree in every bit."""
    own, other = _tensors(step), _tensors(truth)
    return own.keys() == other.keys() and all(bits_equal(own[place], other[place]) for place in own)


def summary(differences: Mapping[Place, Difference], identical: bool) -> Excess:
    """The largest difference of each kind, key biases apart."""
    worst = dict.fromkeys(("loss", "gradient", "update", "key bias"), Difference())
    for (kind, name), difference in differences.items():
        group = "key bias" if is_key_bias(name) else kind
        worst[group] = max(worst[group], difference, key=lambda d: d.noise)
    return Excess(worst["loss"], worst["gradient"], worst["update"], worst["key bias"], identical)


def relative(a: Tensor, b: Tensor) -> float:
    """Norm of the difference, divided by that of ``b``."""
    return _ratio(_distance(a, b), _norm(b))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def _distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference; infinite where it is not a number, so that it never passes for small."""
    distance = _norm(a.double() - b.double())
    return math.inf if math.isnan(distance) else distance


def _ratio(distance: float, unit: float) -> float:
    if distance == 0:
        return 0.0
    return distance / unit if unit else math.inf
