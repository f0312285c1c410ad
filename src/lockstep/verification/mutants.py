"""Checks that pass prove something only if they fail where they should."""

from collections.abc import Iterator, Sequence

from lockstep.verification.candidate import Candidate, Mutant, Situation, Spoiled
from lockstep.verification.checks import judged_checks
from lockstep.verification.formula import FAULTS, Fault, Formula


def _applies(fault: Fault, candidate: Candidate, asked: Sequence[Situation]) -> bool:
    """Whether the class can be asked something to which this fault gives another answer."""
    conventions = candidate.conventions
    offers = {
        "query": "key" in conventions.roles,
        "value": "value" in conventions.roles,
        "mask": bool(conventions.masks),
        "batch mask": any("b" in form.shape for form in conventions.masks),
        "causal": conventions.causal or bool(conventions.causal_argument),
        "lengths": any(situation.T_q < situation.T_k for situation in asked),
    }
    return all(offers[need] for need in fault.needs)


def mutants(candidate: Candidate, asked: Sequence[Situation]) -> Iterator[tuple[str, str]]:
    """Every fault, planted into the reference and put through the checks: its sentence, and what became of it."""
    causal = candidate.conventions.causal or bool(candidate.conventions.causal_argument)
    base = Formula(causal="lower_right" if causal else "none")
    for fault in FAULTS:
        name = f"{fault.code}: {fault.sentence}"
        if not _applies(fault, candidate, asked):
            yield name, "not applicable"
            continue
        failed = (c for c in judged_checks(Mutant(candidate, fault.applied_to(base)), asked) if not c.passed)
        first = next(failed, None)
        yield name, "NOT CAUGHT" if first is None else f"caught by {first.what}"


def blunt_checks(candidate: Candidate, asked: Sequence[Situation]) -> list[str]:
    """Numerical checks that still pass when the user's module is spoiled: one weight by 1%, and noise on the output."""
    with Spoiled(candidate) as spoiled:
        return [check.what for check in judged_checks(spoiled, asked) if check.numerical and check.passed]
