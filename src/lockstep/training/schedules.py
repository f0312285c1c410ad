"""Learning-rate schedules, as factors of the peak rate."""

import math
from collections.abc import Callable
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine", "inverse_sqrt"]


def schedule(name: ScheduleName, warmup_steps: int, max_steps: int) -> Callable[[int], float]:
    """The factor for each step, counted from 0: a linear warm-up to 1, then as named.

    Args:
        name: "constant"; "linear" or "cosine" fall to 0 at ``max_steps``; "inverse_sqrt" falls with the root of the
            step (section 5.3 of the paper, with the peak rate in place of its d_model^-0.5 warmup^-0.5).
        warmup_steps: steps until the peak.
        max_steps: the whole length of training.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
        if name == "linear":
            return 1 - progress
        if name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        if name == "inverse_sqrt":
            return math.sqrt(max(1, warmup_steps) / (step + 1))
        return 1.0

    return factor
