"""Checks that pass prove something only if they fail where they should."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.verification.candidate import Candidate, Mutant, Spoiled
from lockstep.verification.checks import Judged, judged_checks
from lockstep.verification.drawing import Inputs
from lockstep.verification.formula import FAULTS, Fault, Formula
from lockstep.verification.situations import LONG, Situation


@dataclass(frozen=True)
class ContextFault:
    """The right formula, got wrong in one context alone.

    Args:
        sentence: the context.
        where: tells it, from the module, the inputs and the output.
        needs: see :class:`~lockstep.verification.formula.Fault`.
        gradient: the output stays right, and its gradient is wrong.
    """

    sentence: str
    where: Callable[[nn.Module, Inputs, Tensor], bool]
    needs: tuple[str, ...] = ()
    gradient: bool = False

    def twist(self, module: nn.Module, inputs: Inputs, out: Tensor) -> Tensor:
        if not self.where(module, inputs, out):
            return out
        return out.detach() + (out - out.detach()) * 1.5 if self.gradient else out * 1.5


def _hidden(inputs: Inputs) -> Tensor:
    """Whether keys are hidden from every query (..., T_k)."""
    visible = inputs.visible
    return torch.zeros(1, dtype=torch.bool) if visible is None or visible.is_floating_point() else ~visible.any(-2)


CONTEXTS = (
    ContextFault("in training", lambda m, x, out: m.training),
    ContextFault("its gradient, in training", lambda m, x, out: m.training, gradient=True),
    ContextFault("without gradients", lambda m, x, out: not torch.is_grad_enabled()),
    ContextFault("in inference mode", lambda m, x, out: torch.is_inference_mode_enabled()),
    ContextFault("under autocast", lambda m, x, out: torch.is_autocast_enabled("cpu"), ("autocast",)),
    ContextFault("in float32", lambda m, x, out: x.query.dtype == torch.float32),
    ContextFault("its gradient, where no input learns", lambda m, x, out: not x.leaves, gradient=True),
    ContextFault("its gradient, where no weight learns", lambda m, x, out: not next(m.parameters()).requires_grad,
                 gradient=True),
    ContextFault("one sample", lambda m, x, out: out.size(0) == 1),
    ContextFault("more than two samples", lambda m, x, out: out.size(0) > 2),
    ContextFault("as many samples as positions", lambda m, x, out: out.size(0) == out.size(1)),
    ContextFault("an even number of positions", lambda m, x, out: out.size(1) % 2 == 0),
    ContextFault("two positions", lambda m, x, out: out.size(1) == 2),
    ContextFault(f"{LONG} positions and more", lambda m, x, out: out.size(1) >= LONG),
    ContextFault("more queries than keys", lambda m, x, out: out.size(1) > x.key.size(1), ("lengths", "longer")),
    ContextFault("more keys than queries", lambda m, x, out: out.size(1) < x.key.size(1), ("lengths",)),
    ContextFault("query and key one tensor, the value another",
                 lambda m, x, out: x.query is x.key and x.key is not x.value, ("value",)),
    ContextFault("query and value one tensor, the key another",
                 lambda m, x, out: x.query is x.value and x.key is not x.value, ("value",)),
    ContextFault("key and value one tensor, the query another",
                 lambda m, x, out: x.key is x.value and x.key is not x.query, ("query",)),
    ContextFault("the query's storage is the key's",
                 lambda m, x, out: x.query is not x.key and x.query.data_ptr() == x.key.data_ptr(), ("query",)),
    ContextFault("inputs that are not contiguous", lambda m, x, out: not x.query.is_contiguous()),
    ContextFault("expanded inputs", lambda m, x, out: x.query.stride(0) == 0),
    ContextFault("rows of zeros", lambda m, x, out: not bool(x.query[:, 0].any())),
    ContextFault("equal keys", lambda m, x, out: x.key.size(1) > 1 and not bool((x.key - x.key[:, :1]).any())),
    ContextFault("huge inputs", lambda m, x, out: bool((x.query.detach().abs() > 30).any())),
    ContextFault("the first key hidden", lambda m, x, out: bool(_hidden(x)[..., 0].any()), ("mask", "key mask")),
    ContextFault("the last key hidden", lambda m, x, out: bool(_hidden(x)[..., -1].any()), ("mask", "key mask")),
    ContextFault("a mask that hides nothing",
                 lambda m, x, out: x.visible is not None and bool(x.visible.all()), ("mask",)),
)  # fmt: skip


def _applies(needs: Sequence[str], candidates: Mapping[str, Candidate], asked: Sequence[Situation]) -> bool:
    """Whether the class can be asked something to which the fault gives another answer."""
    conventions = candidates[""].conventions
    causal = conventions.causal or bool(conventions.causal_argument)
    offers = {
        "query": "key" in conventions.roles,
        "value": "value" in conventions.roles,
        "heads": any(candidate.sizes.num_heads > 1 for candidate in candidates.values()),
        "mask": bool(conventions.masks),
        "key mask": bool(conventions.masks) and not conventions.causal,
        "batch mask": any("b" in form.shape for form in conventions.masks),
        "causal": causal,
        "lengths": any(situation.lengths[0] < situation.lengths[1] for situation in asked),
        "autocast": any(situation.precision == "autocast" for situation in asked),
        "longer": any(situation.lengths[0] > situation.lengths[1] for situation in asked),
    }
    return all(offers[need] for need in needs)


def mutants(
    candidates: Mapping[str, Candidate], asked: Sequence[Situation], known: Judged, thorough: bool
) -> Iterator[tuple[str, str]]:
    """Every fault, planted into the reference and put through the checks: its sentence, and what became of it.

    Args:
        thorough: those of one context alone as well.
    """
    conventions = candidates[""].conventions
    causal = conventions.causal or bool(conventions.causal_argument)
    base = Formula(causal="lower_right" if causal else "none")

    def outcome(fault: Fault | ContextFault) -> str:
        if not _applies(fault.needs, candidates, asked):
            return "not applicable"
        if isinstance(fault, Fault):
            planted = {size: Mutant(of, fault.applied_to(base)) for size, of in candidates.items()}
        else:
            planted = {size: Mutant(of, base, fault.twist) for size, of in candidates.items()}
        failed = next((check for check in judged_checks(planted, asked, known) if not check.passed), None)
        return "NOT CAUGHT" if failed is None else f"caught by {failed.what}"

    for fault in FAULTS:
        yield f"{fault.code}: {fault.sentence}", outcome(fault)
    for context in CONTEXTS if thorough else ():
        yield f"in_context: wrong with {context.sentence}", outcome(context)


def blunt_checks(candidates: Mapping[str, Candidate], asked: Sequence[Situation], known: Judged) -> list[str]:
    """Numerical checks that still pass when the user's module is spoiled: one weight by 1%, and noise on the output."""
    with Spoiled(candidates[""]) as spoiled:
        own = [situation for situation in asked if not situation.size]
        return [check.what for check in judged_checks({"": spoiled}, own, known) if check.numerical and check.passed]
