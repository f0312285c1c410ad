"""Fourth stage: which masks the class takes, in which form, and whether they do what a mask should."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.attention.conventions import MASK_SHAPES, MEANINGS, MaskForm
from lockstep.verification.calling import CAUSAL_ARGUMENTS, mask_arguments
from lockstep.verification.formula import FAULTS, Fault, Formula, evaluate
from lockstep.verification.mapping import Hypothesis, agree
from lockstep.verification.subject import Inputs, Situation, Subject
from lockstep.verification.user_code import CannotTell, UserCodeError

@dataclass(frozen=True)
class MaskFindings:
    forms: tuple[MaskForm, ...]
    causal_argument: str | None
    faults: tuple[Fault, ...]
    remarks: tuple[str, ...]
    undecided: str | None = None


class _Answers:
    """What a subject answers to masks, beside the formula found so far."""

    def __init__(self, subject: Subject, found: Hypothesis) -> None:
        self.subject, self.found = subject, found
        self.weights = found.weights(subject.module, subject.sizes)

    def ask(self, situation: Situation) -> tuple[Inputs, Tensor | None]:
        inputs = self.subject.draw(situation, seed=1)
        try:
            with torch.no_grad():
                return inputs, self.subject.call(inputs, situation)
        except (UserCodeError, ValueError):
            return inputs, None

    def matches(self, formula: Formula, inputs: Inputs, out: Tensor) -> bool:
        if not formula.fits(inputs.query.size(1), inputs.key.size(1)):
            return False
        expected, rows = evaluate(
            formula, self.weights, inputs.query, inputs.key, inputs.value, inputs.visible, self.found.norm
        )
        return agree(out, expected, rows)

    def right(self, situation: Situation) -> bool | None:
        """Whether the answer is the formula's; None where the class refuses the question."""
        inputs, out = self.ask(situation)
        formula = self.found.formula
        if situation.is_causal:
            formula = replace(formula, causal="lower_right")
        return None if out is None else self.matches(formula, inputs, out)


def find_masks(
    subject: Subject, found: Hypothesis, meaning: str | None, shape: str | None, cross: bool
) -> MaskFindings:
    """Try every form of mask on every mask argument, and name what is wrong where none works.

    Args:
        subject: the module, its mapping and conventions found.
        found: the formula that explains it without masks.
        meaning: the meaning that the user states, see :class:`MaskForm`.
        shape: the shape that the user states.
        cross: the class takes keys of another length than the queries.

    Raises:
        CannotTell: no form of mask is accepted.
    """
    answers = _Answers(subject, found)
    forms: list[MaskForm] = []
    faults: list[Fault] = []
    remarks: list[str] = []
    undecided = None
    for argument in mask_arguments(subject.module):
        meanings = (meaning,) if meaning else MEANINGS
        tried = [MaskForm(argument, m, s) for m in meanings for s in ((shape,) if shape else MASK_SHAPES)]
        verdicts = {form: answers.right(Situation("mask", 7, 7, forms=(form,))) for form in tried}
        accepted = [form for form, right in verdicts.items() if right]
        if not accepted:
            running = [form for form, right in verdicts.items() if right is False]
            if not running:
                if meaning or shape or inspect.signature(subject.module.forward).parameters[argument].default is inspect.Parameter.empty:
                    raise CannotTell(f"{argument!r} accepts no mask of any known form; settle it with conventions.mask=... and conventions.mask_shape=...")
                remarks.append(f"{argument!r} accepts no mask of any known form: it was left alone")
                continue
            fault = _diagnose(answers, running, Situation("mask", 7, 7))
            if fault is None and argument != mask_arguments(subject.module)[0]:
                remarks.append(f"{argument!r} does what no known mask does: it was left alone")
                continue
            faults.append(fault or _unknown(argument))
            continue
        if {form.meaning for form in accepted} <= {"one_blocks", "true_blocks"} and any(
            form.meaning == "one_blocks" for form in accepted
        ) and meaning is None:
            undecided = (
                f"the mask looks inverted: ones in {argument!r} hide, zeros show, the opposite of the usual mask of ones "
                "and zeros. If that is meant, say conventions.mask=one_blocks; if not, this is the fault"
            )
        if cross:
            outcome = {form: answers.right(Situation("mask", 5, 11, same=False, forms=(form,))) for form in accepted}
            wrong = [form for form, right in outcome.items() if right is False]
            if wrong:
                faults.append(_diagnose(answers, wrong, Situation("mask", 5, 11, same=False)) or _unknown(argument))
            accepted = [form for form, right in outcome.items() if right] or accepted
        if {form.meaning for form in accepted} == {"additive"}:
            remarks.append(
                f"{argument!r} is added to the scores (0 shows, -inf hides): ones and zeros would hide nothing. "
                "If ones and zeros are meant, say conventions.mask=zero_blocks"
            )
        if {form.meaning for form in accepted} <= {"one_blocks", "true_blocks"}:
            remarks.append(f"in {argument!r} True hides, the opposite of scaled_dot_product_attention")
        forms += _most_general(accepted)
    causal = _causal_argument(answers, cross, faults)
    return MaskFindings(tuple(forms), causal, tuple(faults), tuple(remarks), undecided)


def _most_general(accepted: list[MaskForm]) -> list[MaskForm]:
    """Every shape in the first meaning, every meaning in one shape; those with more axes first."""
    accepted = sorted(accepted, key=lambda form: -sum(axis in form.shape for axis in "bhqk"))
    chosen = {form.meaning: form for form in reversed(accepted)} | {form.shape: form for form in reversed(accepted)}
    return [form for form in accepted if form in chosen.values()]


def _diagnose(answers: _Answers, running: list[MaskForm], situation: Situation) -> Fault | None:
    """The fault that explains the answers to the forms that the class does not refuse."""
    ignored = True
    for form in running:
        inputs, out = answers.ask(replace(situation, forms=(form,)))
        ignored = ignored and out is not None and answers.matches(replace(answers.found.formula, mask="ignored"), inputs, out)
    codes = {"mask_ignored" if situation.T_q == situation.T_k else "mask_ignored_across"} if ignored else {
        "mask_inverted", "mask_added", "mask_tiled"}  # fmt: skip
    for fault in _mask_faults(codes):
        for form in running:
            # A meaning is another's inversion; an additive mask of -inf that is added is no fault.
            if fault.code in ("mask_inverted", "mask_added") and form.meaning not in ("zero_blocks", "true_attends"):
                continue
            inputs, out = answers.ask(replace(situation, forms=(form,)))
            if out is not None and answers.matches(fault.applied_to(answers.found.formula), inputs, out):
                return fault
    return None


def _mask_faults(codes: set[str]) -> Iterator[Fault]:
    return (fault for fault in FAULTS if fault.stage == "mask" and fault.code in codes)


def _unknown(argument: str) -> Fault:
    return Fault("unknown", f"of an unknown difference, first seen when {argument!r} is given a mask", (), "mask")


def _causal_argument(answers: _Answers, cross: bool, faults: list[Fault]) -> str | None:
    """The argument that switches causality on, if there is one that works alone."""
    if answers.found.formula.causal != "none":
        return None
    for name in inspect.signature(answers.subject.module.forward).parameters:
        if name.lower() not in CAUSAL_ARGUMENTS:
            continue
        conventions = answers.subject.conventions
        answers.subject.conventions = replace(conventions, causal_argument=name)
        try:
            for situation in (Situation("causal", 7, 7, is_causal=True), Situation("causal", 5, 11, False, is_causal=True)):
                if situation.T_q != situation.T_k and not cross:
                    continue
                inputs, out = answers.ask(situation)
                if out is None:
                    return None
                formula = answers.found.formula
                if answers.matches(replace(formula, causal="lower_right"), inputs, out):
                    continue
                named = [f for f in FAULTS if "causal" in f.needs and answers.matches(f.applied_to(formula), inputs, out)]
                faults.append(named[0] if named else _unknown(name))
                return name
        finally:
            answers.subject.conventions = conventions
        return name
    return None
