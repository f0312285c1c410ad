"""Last stage: a class whose mapping is known is put into every situation, and the checks are tried on mutants."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from lockstep.verification.calling import flags, optional_inputs
from lockstep.verification.candidate import Candidate
from lockstep.verification.certificate import Certificate, Finding
from lockstep.verification.checks import Check, Judged, judged_checks, smallest_failure
from lockstep.verification.construction import signature
from lockstep.verification.dropping import RATE, dropped_in_eval, dropped_in_training, dropping, gradient_error
from lockstep.verification.family import at_other_sizes
from lockstep.verification.mutants import blunt_checks, mutants
from lockstep.verification.reported_weights import reported
from lockstep.verification.rounding import rounds
from lockstep.verification.situations import (
    GRADIENTS,
    MODES,
    PLAIN,
    SAME,
    STORAGE,
    VALUES,
    Situation,
    axes,
    covering,
    plain_situations,
)
from lockstep.verification.user_code import UserCodeError

_ITS_OWN = ("dropout_on_output", "dropout_repeated")
"""What a class may do with dropout that nobody can set: around the attention, and not at all."""
ROUNDED = 1e-5
"""A relative difference that may be the rounding of float32."""


def certify(
    c: Certificate,
    candidate: Candidate,
    cls: type[nn.Module] | None,
    initial: Mapping[str, Tensor],
    *,
    unequal: bool,
    biases: bool,
    thorough: bool,
) -> None:
    """Judge a class and add what comes out to its certificate.

    Args:
        candidate: the class, its conventions and its mapping.
        cls: where it was constructed from one.
        initial: its parameters as it initialises them.
        unequal: it works with T_q other than T_k.
        biases: real numbers in its additive masks are added to the scores.
        thorough: at other sizes too, and in a covering array of situations.
    """
    candidates = {"": candidate}
    thorough = thorough and not c.findings  # what is wrong already need not be looked for
    if cls is not None and thorough:
        others, remarks = at_other_sizes(cls, c.arguments, candidate)
        candidates |= others
        c.remarks += remarks
    asked = _situations(c, candidates, unequal, biases, thorough)
    known: Judged = {}
    c.checks += judged_checks(candidates, asked, known)
    if c.findings:
        return
    failed = next((check for check in c.checks if not check.passed), None)
    if failed is not None and failed.situation is None:
        c.differs("unknown", f"unknown difference, first seen in: {failed.what}")
    elif failed is not None and failed.situation is not None:
        known = {}
        candidates = _rounding(c, candidates, asked, known, smallest_failure(candidates, failed.situation))
    if not c.findings:
        _dropout(c, candidates[""], cls)
    if c.findings:
        return
    c.mutants = dict(mutants(candidates, asked, known, thorough))
    survivors = [name for name, outcome in c.mutants.items() if outcome == "NOT CAUGHT"]
    blunt = blunt_checks(candidates, asked, known)
    if survivors or blunt:
        c.findings.append(Finding("void", f"the checks have no teeth here: {'; '.join([*survivors, *blunt])}"))
        return
    c.remarks.append("spoiled (one weight by 1%, noise on the output), it fails every numerical check")
    c.checks += reported(candidates[""], candidate.canonical(initial))
    c.verdict = "equivalent"


def _situations(
    c: Certificate, candidates: Mapping[str, Candidate], unequal: bool, biases: bool, thorough: bool
) -> list[Situation]:
    """What the class is asked, less what it may refuse and does; says so, and how far that reaches."""
    conventions, parameters = candidates[""].conventions, signature(type(candidates[""].module), "forward")
    switches = flags(candidates[""].module)
    offered = axes(
        conventions,
        unequal=unequal,
        biases=biases,
        options=switches,
        optional=optional_inputs(candidates[""].module, conventions),
        sizes=list(candidates),
        num_heads=candidates[""].sizes.num_heads,
    )
    if candidates[""].dtype != torch.float64:
        offered["precision"].remove("float32")
    asked = plain_situations(offered, conventions)
    if thorough:
        asked = list(dict.fromkeys([*asked, *covering(offered, conventions)]))
    answered, refused = [], dict[str, list[Situation]]()
    for situation in asked:
        candidate = candidates[situation.size]
        try:
            if situation.refusable:
                with candidate.context(situation) as dtype:
                    candidate.call(candidate.draw(situation, dtype=dtype), situation)
            answered.append(situation)
        except UserCodeError as error:
            refused.setdefault(str(error), []).append(situation)
    for reason, situations in refused.items():
        plainest = min(situations, key=lambda s: len(str(s)))
        more = f", and {len(situations) - 1} like it" if len(situations) > 1 else ""
        c.remarks.append(f"it refuses {plainest}{more}: {reason}")
    masks = {form.argument for form in (*conventions.masks, *conventions.self_masks)}
    used = {*conventions.inputs, *masks, conventions.causal_argument, *switches}
    several = conventions.output is not None or bool(switches)
    c.reach = _reach(candidates, answered) | {
        "other outputs": "not verified" if several else "none",
        "arguments left as they are": ", ".join(name for name in parameters if name not in used) or "none",
    }
    return answered


def _reach(candidates: Mapping[str, Candidate], asked: Sequence[Situation]) -> dict[str, str]:
    """For each axis, what was tried of it."""
    own = candidates[""].sizes
    tried = {field.name: list(dict.fromkeys(getattr(s, field.name) for s in asked)) for field in fields(Situation)}
    full = str(candidates[""].dtype).removeprefix("torch.")
    lengths, batches = sorted({T for pair in tried["lengths"] for T in pair}), sorted(tried["batch"])
    return {
        "sizes": "; ".join([f"{own.num_heads} heads of {own.head_dim}", *list(candidates)[1:]]),
        "lengths": f"T of {', '.join(map(str, lengths))}",
        "batches": f"B of {', '.join(map(str, batches))}",
        "inputs": ", ".join([*(SAME[same] for same in tried["same"]), *(STORAGE[of] for of in tried["storage"])]),
        "values": ", ".join(VALUES[values] for values in tried["values"]),
        "modes": ", ".join(
            [*(MODES[mode] for mode in tried["mode"]), *(GRADIENTS[gradients] for gradients in tried["gradients"])]
        ),
        "gradients from above": ", ".join(tried["upstream"]),
        "precision": f"{', '.join(p.replace('full', full) for p in tried['precision'])}, on the CPU",
        "masks": ", ".join(tried["hidden"]) if any(tried["forms"]) else "none",
    }


def _dropout(c: Certificate, candidate: Candidate, cls: type | None) -> None:
    weights = {name: tensor.double() for name, tensor in candidate.weights().items()}
    try:
        with dropping(candidate, cls, c.arguments) as (anew, set_by):
            figure = dropped_in_eval(candidate, anew)
            rate = RATE if set_by else None
            place = dropped_in_training(anew, weights, rate)
            masked = [form for form in candidate.conventions.masks if "b" in form.shape][:1] if place else []
            with_mask = dropped_in_training(anew, weights, rate, tuple(masked))
            wrong_gradient = gradient_error(anew) > 1e-4
    except UserCodeError as error:
        c.reach["dropout in training"] = f"not verified: {error}"
        return
    check = Check("dropout is inactive in eval", figure, 1e-10 if candidate.dtype == torch.float64 else ROUNDED, False)
    c.checks.append(replace(check, note="" if set_by or place else "it has none"))
    drops = "nothing is dropped" if place is None else place.words
    c.reach["dropout in training"] = f"{drops}{f', at a rate of {RATE}' if set_by else ''}"
    if not check.passed:
        c.differs("dropout_in_eval", f"dropout stays active in eval: at {RATE} the answer is another")
    elif wrong_gradient:
        c.differs("dropout_gradient", "equals the reference in eval; in training, it drops and has another gradient")
    elif (with_mask and with_mask.words) != (place and place.words):
        does = with_mask.words if with_mask else "nothing is dropped"
        c.differs("dropout_masked", f"equals the reference in eval; in training, under a mask, {does}")
    elif place is not None and place.fault and (set_by == "argument" or place.fault not in _ITS_OWN):
        c.differs(place.fault, f"equals the reference in eval; in training, {place.words}")
    elif place is not None and (place.fault or not set_by):
        c.remarks.append(f"in training, {place.words}, which no argument sets")


def _rounding(
    c: Certificate, candidates: dict[str, Candidate], asked: Sequence[Situation], known: Judged, failed: Situation
) -> dict[str, Candidate]:
    """Say what fails; where that is the rounding of float32, judge by what float32 owes, and return what was judged."""
    again = [check for check in judged_checks(candidates, [failed]) if not check.passed]
    if not again:
        c.differs("keeps_state", f"not always the reference: it failed, and when asked again did not: {failed}")
        return candidates
    check = again[0]
    seen = ", ".join(str(said) for said in (check.figure, check.note) if said)
    what = f"{check.what} ({seen})"
    small = isinstance(check.figure, float) and check.figure <= ROUNDED and candidates[""].dtype == torch.float64
    if small and rounds(candidates[failed.size], failed):
        single = {
            size: Candidate(of.module.float(), of.sizes, of.conventions, of.mapping) for size, of in candidates.items()
        }
        checks = list(judged_checks(single, asked, known))
        c.checks = [own for own in c.checks if own.situation is None] + checks
        c.precision = "float32 inside"
        wrong = next((check.situation for check in checks if not check.passed), None)
        return single if wrong is None else _rounding(c, single, asked, known, smallest_failure(single, wrong))
    if small:
        c.differs(
            "single_precision",
            f"unknown difference: right to single precision only, it rounds, or adds a small constant: {what}",
        )
    elif isinstance(check.figure, str) and check.figure.startswith("it writes"):
        c.differs("changes_inputs", f"equals the reference except that {check.figure}: {failed}")
    elif failed == PLAIN:
        c.differs("unknown", f"unknown difference, first seen in plain self-attention: {what}")
    else:
        c.differs("in_context", f"equals the reference in plain use, and not here: {what}")
    return candidates
