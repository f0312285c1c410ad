"""The judge: from recorded figures to a verdict, with its reasons, that claims what was measured and no more."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from lockstep.base.terminal import counted
from lockstep.comparison.record import Exercised, Record
from lockstep.comparison.resync import LIMIT, Difference, Excess, Resync

MOVED = 0.01
"""How far the weights must have moved, relative to their norm, for training to count as training."""


class Kind(StrEnum):
    IDENTICAL = "IDENTICAL"
    EQUIVALENT = "EQUIVALENT UP TO ROUNDING"
    LEARNER = "SAME FUNCTION, DIFFERENT LEARNER"
    DIFFERENT = "DIFFERENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Verdict:
    """A kind, and in words what was measured."""

    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """0 if all agree, 1 if any differs, 2 if none differs and any is inconclusive, or there is none."""
    kinds = {verdict.kind for verdict in verdicts}
    if kinds & {Kind.LEARNER, Kind.DIFFERENT}:
        return 1
    return 2 if Kind.INCONCLUSIVE in kinds or not kinds else 0


def judge(record: Record, name: str) -> Verdict:
    """The verdict on one variant."""
    found = record.variants[name]
    if found.is_reference:
        return Verdict(
            Kind.INCONCLUSIVE,
            f"{name} is {record.reference} itself, by class and arguments; that a thing agrees with itself is no "
            "evidence",
        )
    learner = [line for lines in found.learner.values() for line in lines]
    # Other draws show as another loss in training: then only the checks speak of the function.
    measured = {f"on random weights in float64, {mode},": check for mode, check in record.checks.items()}
    if not found.learner.get("draws"):
        measured |= {f"at step {resync.step}": resync for resync in record.resyncs}
    for where, resync in measured.items():
        fault = _fault(resync.variants[name], function_only=bool(learner))
        if fault:
            return Verdict(Kind.DIFFERENT, f"{where} {fault}")
    if not found.has_layout:
        return Verdict(Kind.INCONCLUSIVE, f"{name} has no canonical layout: its gradients cannot be compared")
    doubts = _doubts("the checks on random weights", list(record.checks.values()), record.check_exercised)
    if learner and not doubts:
        noise = max(check.variants[name].noise for check in record.checks.values())
        return Verdict(
            Kind.LEARNER,
            f"the function agrees on random weights in float64 (at most {_times(noise)} the noise); "
            f"different: {'; '.join(learner)}",
        )
    doubts += _doubts("the recorded steps", record.resyncs, record.exercised) + _training_doubts(record)
    if doubts:
        return Verdict(Kind.INCONCLUSIVE, "; ".join(doubts))
    if found.first_difference is None:
        return Verdict(
            Kind.IDENTICAL,
            f"no differing bit in {counted(len(record.losses), 'step')}, in any loss or weight ({_setting(record)})",
        )
    step, tensor = found.first_difference
    noise = max(resync.variants[name].noise for resync in record.resyncs)
    return Verdict(
        Kind.EQUIVALENT,
        f"first differing bit at step {step} in {tensor}; at most {_times(noise)} the noise in "
        f"{counted(len(record.resyncs), 'recorded step')} of {len(record.losses):,}; a scale error of "
        f"{smallest_seen(record.resyncs):.0e} would have been seen ({_setting(record)})",
    )


def _fault(excess: Excess, function_only: bool) -> str | None:
    """What of a step is beyond rounding; the update belongs to the learner where learners differ."""
    kind, worst = (replace(excess, update=Difference()) if function_only else excess).worst
    if worst.noise <= LIMIT:
        return None
    what = "the loss" if kind == "loss" else f"the {kind} of {worst.tensor}"
    return f"{what} differs by {worst.relative:.2g} of its size, {_times(worst.noise)} the noise"


def smallest_seen(resyncs: list[Resync]) -> float | None:
    """The smallest relative error of the scores that would have been judged different, as all larger ones would.

    Beyond the limit in half of the steps, where one step would do: a single one could be chance.
    """
    seen = None
    for error in sorted(resyncs[0].controls if resyncs else (), reverse=True):
        if 2 * sum(resync.controls[error].noise > LIMIT for resync in resyncs) < len(resyncs):
            break
        seen = error
    return seen


def _doubts(where: str, resyncs: list[Resync], exercised: Exercised) -> list[str]:
    """Why measured steps prove nothing, if so."""
    if not resyncs:
        return [f"{where}: there are none"]
    silent = next((r.step for r in resyncs if not r.nulls or any(null.identical for null in r.nulls)), None)
    sound = {
        "the reference's loss is not finite": all(math.isfinite(resync.loss) for resync in resyncs),
        "no key was padding, in the encoder or in cross-attention": exercised.padded_keys,
        "cross-attention never had T_q != T_k": exercised.rectangular,
        "no batch held two sequences": exercised.batched,
        f"at step {silent} a null equals the reference in every bit, so there is no noise": silent is None,
        "no control was detected, so a fault would not have been": smallest_seen(resyncs) is not None,
    }
    return [f"{where}: {doubt}" for doubt, refuted in sound.items() if not refuted]


def _training_doubts(record: Record) -> list[str]:
    """Why training proves nothing, if so."""
    doubts = []
    if not record.moved > MOVED:
        doubts.append(f"the weights moved by {record.moved:.2%} only; more than {MOVED:.0%} is needed")
    tenth = max(1, len(record.losses) // 10)
    first, last = (sorted(part)[len(part) // 2] for part in (record.losses[:tenth], record.losses[-tenth:]))
    if not last < first:
        doubts.append(f"the loss did not fall: median {first:.4g} in the first tenth, {last:.4g} in the last")
    return doubts


def _times(noise: float) -> str:
    return f"{noise:,.0f} times" if 100 <= noise < 1e6 else f"{noise:.2g} times"


def _setting(record: Record) -> str:
    return ", ".join(record.setting.values())
