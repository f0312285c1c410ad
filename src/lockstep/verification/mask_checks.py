"""Fourth stage: which masks the class takes, in which form, and whether they do what a mask should."""

import contextlib
from dataclasses import dataclass, field, replace
from inspect import Parameter

import torch
from torch import Tensor

from lockstep.verification.calling import CAUSAL_ARGUMENTS, mask_arguments, optional_inputs
from lockstep.verification.candidate import Candidate
from lockstep.verification.checks import LIMITS, Check
from lockstep.verification.construction import signature
from lockstep.verification.conventions import MASK_SHAPES, MEANINGS, NUMBERS, MaskForm
from lockstep.verification.drawing import Inputs, draw, zeroed
from lockstep.verification.formula import FAULTS, Fault, Formula, evaluate, relative_difference
from lockstep.verification.hypotheses import AGREES, Hypothesis, reproduces
from lockstep.verification.situations import PLAIN, Situation
from lockstep.verification.user_code import CannotTell, UserCodeError


@dataclass
class MaskFindings:
    """What was found of masks.

    Args:
        forms: those that are right.
        self_forms: those that are where no optional input is given.
        biases: real numbers in an additive mask are added to the scores.
        zeroes_hidden: a position that is hidden as a key gets zeros as a query.
        causal_argument: the causal switch.
        faults: what is wrong.
        checks: by how much.
        remarks: what is worth saying.
        undecided: what is not known.
    """

    forms: list[MaskForm] = field(default_factory=list)
    self_forms: list[MaskForm] = field(default_factory=list)
    biases: bool = False
    zeroes_hidden: bool = False
    causal_argument: str | None = None
    faults: list[Fault] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    undecided: str | None = None


class _Answers:
    """What a candidate answers to masks, beside the formula found so far."""

    def __init__(self, candidate: Candidate, found: Hypothesis) -> None:
        self.candidate, self.found = candidate, found
        self.zeroes_hidden = False
        self.weights = found.weights(candidate.module, candidate.sizes)

    def ask(self, situation: Situation) -> tuple[Inputs, Tensor | None]:
        """The inputs, in float64, and the answer; None where the class refuses the question."""
        candidate, out = self.candidate, None
        with candidate.context(situation) as dtype:
            given = draw(situation, candidate.conventions.roles, candidate.sizes, seed=1, dtype=dtype)
            with contextlib.suppress(UserCodeError, ValueError):
                out = candidate.call(given(dtype), situation).detach()
            return given(torch.float64), out

    def matches(self, formula: Formula, inputs: Inputs, out: Tensor) -> bool:
        given = (inputs.query, inputs.key, inputs.value)
        return reproduces(formula, self.weights, given, out, self.found.norm, inputs.visible)

    def check(self, form: MaskForm, cross: bool = False) -> Check:
        """How far the answer is from the right one, in the situation in which a fault was seen."""
        situation = _masked(form, cross)
        inputs, out = self.ask(situation)
        figure, formula = float("inf"), self.found.formula
        if out is not None and formula.fits(inputs.query.size(1), inputs.key.size(1)):
            expected, rows = evaluate(
                formula, self.weights, inputs.query, inputs.key, inputs.value, inputs.visible, self.found.norm
            )
            figure = relative_difference(out[rows], expected[rows])
        return Check(f"output, {form}, {'cross' if cross else 'self'}", figure, LIMITS["float64"])

    def reads(self, form: MaskForm) -> str:
        """What the class makes of a mask that it answers wrongly: as for a fault, or "" where that is not known."""
        inputs, out = self.ask(_masked(form))
        assert out is not None
        turned = replace(inputs, masks=tuple(~mask for mask in inputs.masks))
        for read, given in (("ignored", inputs), ("inverted", inputs), ("added", inputs), ("added", turned)):
            if self.matches(replace(self.found.formula, mask=read), given, out):
                return read
        return ""

    def right(self, situation: Situation) -> bool | None:
        """Whether the answer is the formula's; None where the class refuses the question."""
        inputs, out = self.ask(situation)
        formula = self.found.formula
        if situation.is_causal:
            formula = replace(formula, causal="lower_right")
        if out is None or self.matches(formula, inputs, out):
            return None if out is None else True
        hidden = zeroed(inputs)
        if not hidden.any() or out[hidden].any():
            return False
        expected, rows = evaluate(
            formula, self.weights, inputs.query, inputs.key, inputs.value, inputs.visible, self.found.norm
        )
        rows = rows & ~hidden
        self.zeroes_hidden = relative_difference(out[rows], expected[rows]) <= AGREES
        return self.zeroes_hidden


def find_masks(
    candidate: Candidate, found: Hypothesis, meaning: str | None, shape: str | None, cross: bool
) -> MaskFindings:
    """Try every form of mask on every mask argument, and name what is wrong where none works.

    Args:
        candidate: the module, its mapping and conventions found.
        found: the formula that explains it without masks.
        meaning: the meaning that the user states, see :class:`MaskForm`.
        shape: the shape that the user states.
        cross: the class takes keys of another length than the queries.

    Raises:
        CannotTell: no form of mask is accepted.
    """
    answers, findings = _Answers(candidate, found), MaskFindings()
    parameters = signature(type(candidate.module), "forward")
    optional = tuple(optional_inputs(candidate.module, candidate.conventions))
    for argument in mask_arguments(candidate.module):
        if "key" not in candidate.conventions.roles and _OF_A_CONTEXT & set(argument.lower().split("_")):
            continue
        forms = [
            MaskForm(argument, one, other)
            for one in ((meaning,) if meaning else MEANINGS)
            for other in ((shape,) if shape else MASK_SHAPES)
        ]
        verdicts = {form: answers.right(_masked(form)) for form in forms}
        accepted = [form for form, right in verdicts.items() if right]
        refused = all(right is None for right in verdicts.values())
        alone = [form for form in forms if optional and answers.right(replace(_masked(form), omitted=optional))]
        findings.self_forms += _most_general(_one_reading(alone))
        for form in (form for form, right in verdicts.items() if right is None):
            right = answers.right(replace(_masked(form), mode="training", gradients="everything"))
            if right or (right is False and form.meaning in {form.meaning for form in accepted}):
                sentence = f"it takes {form} in training{'' if right else ', wrongly,'} and raises in eval"
                findings.faults.append(Fault("mask_refused_in_eval", sentence, (), "mask"))
        if accepted:
            _judge_others(answers, accepted, [form for form, right in verdicts.items() if right is False], findings)
            _judge(answers, argument, accepted, cross, findings, stated=meaning is not None)
        elif alone:
            findings.remarks.append(f"{argument!r} is a mask only where {' and '.join(optional)} is not given")
        elif refused and (meaning or shape or parameters[argument].default is Parameter.empty):
            raise CannotTell(
                f"{argument!r} accepts no mask of the forms tried; "
                "settle it with conventions.mask=... and conventions.mask_shape=..."
            )
        elif refused:
            findings.remarks.append(f"{argument!r} accepts no mask of any known form: it was left alone")
        else:
            running = [form for form, right in verdicts.items() if right is False]
            _diagnose(answers, argument, running, findings, cross=False)
    findings.zeroes_hidden = answers.zeroes_hidden
    if findings.zeroes_hidden:
        findings.remarks.append("a position that the mask hides gets zeros, as a kernel that skips padding gives it")
    findings.causal_argument = _causal_argument(answers, cross, findings)
    return findings


def _masked(form: MaskForm, cross: bool = False) -> Situation:
    plain = replace(PLAIN, forms=(form,), gradients="none")
    return replace(plain, lengths=(5, 11), same="none") if cross else plain


_OF_A_CONTEXT = {"encoder", "context", "memory", "cross", "kv", "mem"}
_INVERSE = {"zero_blocks": "one_blocks", "true_attends": "true_blocks"}
_INVERSE |= {other: one for one, other in _INVERSE.items()}


def _judge_others(answers: _Answers, accepted: list[MaskForm], wrong: list[MaskForm], findings: MaskFindings) -> None:
    """Forms that the class takes and answers wrongly, beside those that are right."""
    meanings = {form.meaning for form in accepted}
    # By their nature wrong: the inverse, and numbers that are added where others hide.
    others = {_INVERSE.get(meaning, "") for meaning in meanings}
    for one, other in (({*NUMBERS}, {"additive"}), ({"additive"}, {*NUMBERS})):
        others |= other if one & meanings else set()
    faulty: dict[str, list[MaskForm]] = {}
    for form in wrong:
        read = answers.reads(form) if form.meaning not in others else "inverted"
        if read == "ignored" and form.meaning not in meanings:
            findings.remarks.append(f"a mask is ignored where it is {form}")
        elif read != "inverted" and not (read == "added" and "additive" in meanings):
            faulty.setdefault(read, []).append(form)
    for read, forms in faulty.items():
        does = {"": "is answered wrongly", "added": "is added to the scores", "ignored": "is ignored"}[read]
        fault = Fault(
            f"mask_{read or 'unknown'}", f"it takes a mask that {does}: {'; '.join(map(str, forms))}", (), "mask"
        )
        findings.faults.append(fault)
        findings.checks.append(answers.check(forms[0]))


def _judge(
    answers: _Answers, argument: str, accepted: list[MaskForm], cross: bool, findings: MaskFindings, stated: bool
) -> None:
    """Forms that are right in self-attention: what they say of the argument, and whether they are right across."""
    accepted = _one_reading(accepted)
    meanings = {form.meaning for form in accepted}
    if {"zero_blocks", "one_blocks"} <= meanings:
        shapes = ", ".join(form.shape for form in accepted if form.meaning == "one_blocks")
        sentence = f"ones in {argument!r} hide where it has the shape {shapes}, and show where it has another"
        findings.faults.append(Fault("mask_inverted", sentence, (), "mask"))
        inverted = next(form for form in accepted if form.meaning == "one_blocks")
        findings.checks.append(answers.check(replace(inverted, meaning="zero_blocks")))
    for number, boolean in (("one_blocks", "true_attends"), ("zero_blocks", "true_blocks")):
        if {number, boolean} <= meanings:
            hide = "numbers" if number == "one_blocks" else "booleans"
            sentence = f"ones in {argument!r} hide as {hide}, and show as the other"
            findings.faults.append(Fault("mask_inverted", sentence, (), "mask"))
    ones_hide = meanings <= {"one_blocks", "true_blocks"}
    if ones_hide and "one_blocks" in meanings and not stated and "key_padding" not in argument:
        findings.undecided = (
            f"the mask looks inverted: ones in {argument!r} hide, zeros show, the opposite of the usual mask of ones "
            "and zeros. If that is meant, say conventions.mask=one_blocks; if not, this is the fault"
        )
    if ones_hide:
        findings.remarks.append(f"in {argument!r} True hides, the opposite of scaled_dot_product_attention")
    if meanings == {"additive"}:
        findings.remarks.append(
            f"{argument!r} is added to the scores (0 shows, -inf hides): ones and zeros would hide nothing. "
            "If ones and zeros are meant, say conventions.mask=zero_blocks"
        )
    if cross:
        across = {form: answers.right(_masked(form, cross=True)) for form in accepted}
        wrong = [form for form, right in across.items() if right is False]
        if wrong:
            _diagnose(answers, argument, wrong, findings, cross=True)
        accepted = [form for form, right in across.items() if right] or accepted
    findings.forms += _most_general(accepted)
    additive = [form for form in accepted if form.meaning == "additive"]
    if additive:
        _judge_biases(answers, additive[0], findings)


def _judge_biases(answers: _Answers, form: MaskForm, findings: MaskFindings) -> None:
    """Whether real numbers are added to the scores, or else what an additive mask makes of them."""
    inputs, out = answers.ask(replace(_masked(form), hidden="finite biases"))
    formula, (bias,) = answers.found.formula, inputs.masks
    findings.biases = out is not None and answers.matches(formula, inputs, out)
    if findings.biases:
        return
    read = next(
        (
            words
            for words, visible in (
                ("hides", bias >= 0),
                ("hides", bias == 0),
                ("shows", bias <= 0),
                ("shows", bias < 1e9),
            )
            if out is not None and answers.matches(formula, replace(inputs, masks=(visible,)), out)
        ),
        "is refused" if out is None else "",
    )
    if read:
        words = f"a number other than 0 and -inf in {form.argument!r} {read} a key: no such number was verified"
        findings.remarks.append(words)
    else:
        sentence = f"numbers other than 0 and -inf in {form.argument!r} are not added to the scores"
        findings.faults.append(Fault("mask_unknown", sentence, (), "mask"))


def _one_reading(accepted: list[MaskForm]) -> list[MaskForm]:
    """Without -inf, where whatever is not zero hides: that hides by accident."""
    hides = any(form.meaning == "one_blocks" for form in accepted)
    return [form for form in accepted if not (hides and form.meaning == "additive")]


def _most_general(accepted: list[MaskForm]) -> list[MaskForm]:
    """Every shape in the first meaning, every meaning in one shape; those with more axes first."""
    accepted = sorted(accepted, key=lambda form: -sum(axis in form.shape for axis in "bhqk"))
    chosen = {form.meaning: form for form in reversed(accepted)} | {form.shape: form for form in reversed(accepted)}
    return [form for form in accepted if form in chosen.values()]


def _diagnose(answers: _Answers, argument: str, running: list[MaskForm], findings: MaskFindings, cross: bool) -> None:
    """Add the fault of this argument that explains the answers to the forms that the class does not refuse."""
    asked = {form: answers.ask(_masked(form, cross)) for form in running}

    def explains(fault: Fault, form: MaskForm) -> bool:
        inputs, out = asked[form]
        return out is not None and answers.matches(fault.applied_to(answers.found.formula), inputs, out)

    faults = {f.code: replace(f, sentence=f"{f.sentence} ({argument!r})") for f in FAULTS if f.stage == "mask"}
    ignored = faults["mask_ignored_across" if cross else "mask_ignored"]
    found = (ignored, running[0]) if all(explains(ignored, form) for form in running) else None
    # A meaning is another's inversion, and to add a mask of -inf is no fault.
    usual = [form for form in running if form.meaning in ("zero_blocks", "true_attends")]
    for code, forms in (("mask_inverted", usual), ("mask_added", usual), ("mask_tiled", running)):
        found = found or next(((faults[code], form) for form in forms if explains(faults[code], form)), None)
    fault, seen = found or (_unknown(argument), running[0])
    findings.faults.append(fault)
    findings.checks.append(answers.check(seen, cross))


def _unknown(argument: str) -> Fault:
    return Fault("unknown", f"of an unknown difference, first seen when {argument!r} is given a mask", (), "mask")


def _causal_argument(answers: _Answers, cross: bool, findings: MaskFindings) -> str | None:
    """The argument that switches causality on, if there is one that works alone."""
    if answers.found.formula.causal != "none":
        return None
    for name in signature(type(answers.candidate.module), "forward"):
        if name.lower() not in CAUSAL_ARGUMENTS:
            continue
        conventions = answers.candidate.conventions
        answers.candidate.conventions = replace(conventions, causal_argument=name)
        try:
            for T_q, T_k in [(7, 7), (5, 11)] if cross else [(7, 7)]:
                same = "all" if T_q == T_k else "none"
                causal = Situation((T_q, T_k), same=same, is_causal=True, gradients="none")
                inputs, out = answers.ask(causal)
                if out is None:
                    return None
                formula = answers.found.formula
                if answers.matches(replace(formula, causal="lower_right"), inputs, out):
                    continue
                named = [
                    f for f in FAULTS if "causal" in f.needs and answers.matches(f.applied_to(formula), inputs, out)
                ]
                findings.faults.append(named[0] if named else _unknown(name))
                return name
        finally:
            answers.candidate.conventions = conventions
        return name
    return None
