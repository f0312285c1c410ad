"""Whether a small difference is the rounding of single precision inside a class that is given doubles."""

from dataclasses import replace

import torch
from torch import Tensor

from lockstep.verification.candidate import Candidate
from lockstep.verification.checks import LIMITS
from lockstep.verification.drawing import Inputs
from lockstep.verification.situations import Situation

ROUNDED_SCALE = 3e-7
"""A relative difference of the scale that float32 can make."""


@torch.no_grad()
def rounds(candidate: Candidate, s: Situation) -> bool:
    """Whether a small change of the inputs draws the differences anew, as it does rounding; but for a rounded scale."""
    s = replace(s, gradients="none")
    with candidate.context(s):
        given = candidate.draw(s)
        nudged = {id(x): x * 1.001 for x in (given.query, given.key, given.value)}
        query, key, value = (nudged[id(x)] for x in (given.query, given.key, given.value))
        errors = []
        for inputs in (given, Inputs(query, key, value, given.masks)):
            expected, rows = candidate.expected(candidate.weights(), inputs, s)
            error = (candidate.call(inputs, s) - expected)[rows].flatten()
            slope = (_scaled(candidate, 1 + 1e-4, inputs, s) - _scaled(candidate, 1 - 1e-4, inputs, s))[rows].flatten()
            slope /= 2e-4
            factor = error @ slope / (slope @ slope).clamp_min(1e-30)  # of the scores, that explains most of the error
            errors.append(error - factor * slope if abs(factor.item()) < ROUNDED_SCALE else error)
        scale = expected[rows].abs().max()
        rest = max(error.abs().max() for error in errors) / scale
        likeness = torch.cosine_similarity(errors[0], errors[1], dim=0, eps=1e-30)
        return rest.item() < LIMITS["float64"] or likeness.item() < 0.5


def _scaled(candidate: Candidate, factor: float, inputs: Inputs, s: Situation) -> Tensor:
    """What is expected with all scores multiplied by a factor."""
    weights = candidate.weights()
    scaled = {name: w * factor if name.startswith("query") else w for name, w in weights.items()}
    return candidate.expected(scaled, inputs, s)[0]
