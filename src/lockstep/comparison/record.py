"""What a comparison recorded: plain figures, from which the verdict is a pure function."""

from dataclasses import astuple, dataclass, field
from typing import Literal

from lockstep.comparison.resync import Resync
from lockstep.data.batching import Batch

LearnerCheck = Literal["initialisation", "draws", "update"]


@dataclass(frozen=True)
class Exercised:
    """What batches contained that a fault could hide behind.

    Attributes:
        padded_keys: some source ended in padding: keys to hide in the encoder and in cross-attention.
        rectangular: cross-attention had more or fewer queries than keys, T_q != T_k.
        batched: at least two sequences in each batch.
    """

    padded_keys: bool = False
    rectangular: bool = False
    batched: bool = False

    @staticmethod
    def by(batch: Batch) -> "Exercised":
        return Exercised(
            padded_keys=not bool(batch.source_mask.all()),
            rectangular=batch.source.size(1) != batch.prefix.size(1),
            batched=batch.source.size(0) >= 2,
        )

    def __or__(self, other: "Exercised") -> "Exercised":
        return Exercised(*(one or another for one, another in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Drift:
    """How far a copy has drifted from the reference in free training.

    Attributes:
        step: optimisation steps taken.
        weights: norm of the difference of the weights, divided by how far the reference moved; key biases left out.
        key_bias: the same of the key biases alone.
        loss: difference of the losses of the last step, in nats.
    """

    step: int
    weights: float
    key_bias: float
    loss: float


@dataclass
class VariantRecord:
    """What was found of one variant.

    Attributes:
        is_reference: same class and arguments as the reference, whatever its name.
        has_layout: canonical weights, gradients and moments can be laid into it and read from it.
        learner: what it does otherwise than the reference although everything before was equal, by check, worded.
        first_difference: step and canonical tensor of the first differing bit in free training.
        losses: at each step, in nats.
        drift: at the recorded steps.
    """

    is_reference: bool = False
    has_layout: bool = True
    learner: dict[LearnerCheck, list[str]] = field(default_factory=dict)
    first_difference: tuple[int, str] | None = None
    losses: list[float] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)


@dataclass
class Record:
    """Everything a comparison measured.

    Attributes:
        reference: name of the variant all others are compared with.
        setting: dtype, optimiser, arithmetic, machine and the like, for the reader of the verdict.
        not_exercised: what the run did not contain, of which the verdict therefore says nothing.
        losses: the reference's at each step, in nats.
        variants: the others, by name.
        checks: loss and gradients of a step on random weights in float64, by mode of the model: a variant's function
            is what it computes in evaluation and, but for dropout, in training.
        check_exercised: by the batch of the checks.
        resyncs: the recorded steps.
        exercised: by the batches of the recorded steps.
        moved: how far the reference moved from its start, relative to the norm of its start; key biases left out.
    """

    reference: str
    setting: dict[str, str]
    not_exercised: list[str]
    checks: dict[str, Resync]
    check_exercised: Exercised
    losses: list[float] = field(default_factory=list)
    variants: dict[str, VariantRecord] = field(default_factory=dict)
    resyncs: list[Resync] = field(default_factory=list)
    exercised: Exercised = field(default_factory=Exercised)
    moved: float = 0.0
