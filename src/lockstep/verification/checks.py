"""The judged checks: each a figure and a limit, the same for the user's class, for mutants and for spoiled copies.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.verification.candidate import Candidate
from lockstep.verification.drawing import Given, Inputs, draw
from lockstep.verification.formula import relative_difference
from lockstep.verification.situations import LONG, NARROW, Situation, possible
from lockstep.verification.user_code import CannotTell, UserCodeError, user_code

LIMITS = {"float64": 1e-10, "float32": 5e-5, "float16": 2e-2, "autocast": 0.1, "bfloat16": 0.1}
"""On the largest difference, relative to the largest value of the reference; below float64, four times the
reference's own rounding where that is more."""
_LOOSER = {"large": 50, "huge": 500, "offset": 500, "immense": 1000}
"""Times that, where the scores, and with them their rounding, are so much larger; ten times for long sums."""
_FLOORS = {"float64": 1e-3, "float32": 0.1, "float16": 0.5, "autocast": 0.5, "bfloat16": 0.5}
"""Of the largest gradient: the least that another is relative to, since the key bias's is zero but for rounding."""


@dataclass(frozen=True)
class Check:
    """One line of the certificate.

    Args:
        what: what was compared.
        figure: what came out.
        limit: what the figure may be; None where it is only reported.
        numerical: the figure is a difference, which a spoiled module must exceed.
        note: a remark beside the figure.
        situation: in which it was compared.
    """

    what: str
    figure: float | str
    limit: float | None = None
    numerical: bool = True
    note: str = ""
    situation: Situation | None = None

    @property
    def judged(self) -> bool:
        return self.limit is not None

    @property
    def passed(self) -> bool:
        return self.limit is None or (isinstance(self.figure, float) and self.figure <= self.limit)


@dataclass(frozen=True)
class _Answer:
    """The outputs (B, T_q, D) of two calls, which of their rows are judged, and the gradients of both added up."""

    outputs: list[Tensor]
    rows: list[Tensor]
    gradients: dict[str, Tensor]


_NONE: tuple[dict[str, float], dict[str, float]] = ({}, {})
Judged = dict[Situation, _Answer]
"""What the reference answers, which is the same for a class and for all its mutants."""


def judged_checks(
    candidates: Mapping[str, Candidate], asked: Sequence[Situation], known: Judged | None = None
) -> Iterator[Check]:
    """All judged checks.

    Args:
        candidates: the class, by the names of its sizes.
        asked: the situations to put it in, the plainest first.
        known: the reference's answers, kept for the next who is asked the same.
    """
    known = {} if known is None else known
    for situation in asked:
        yield from _situation_checks(candidates[situation.size], situation, known)


def smallest_failure(candidates: Mapping[str, Candidate], failed: Situation) -> Situation:
    """The plainest situation that fails as this one does: nothing of it can be made plain again."""
    for simpler in failed.simpler():
        candidate = candidates[simpler.size]
        asked = possible(simpler, candidate.conventions)
        if asked and not all(check.passed for check in _situation_checks(candidate, simpler, {})):
            return smallest_failure(candidates, simpler)
    return failed


def _situation_checks(candidate: Candidate, s: Situation, known: Judged) -> list[Check]:
    """Two calls, so that nothing may be carried from one to the next, and then their backward passes."""
    with candidate.context(s) as dtype:
        given = [draw(s, candidate.conventions.roles, candidate.sizes, seed, dtype) for seed in (0, 1)]
        weights = candidate.weights()
        if s not in known:
            known[s] = _reference(candidate, s, weights, given, torch.float64)
        exact, own = known[s], _NONE
        precision = str(dtype).removeprefix("torch.") if s.precision == "full" else s.precision
        if precision != "float64":
            own = _differences(_reference(candidate, s, weights, given, dtype), exact, precision)
        try:
            found = _answer(candidate, s, given, dtype, exact)
        except UserCodeError as error:
            return [Check(f"output, {s}", str(error), 0.0, situation=s)]
    suffix = "" if precision == "float64" else f" {'under' if precision == 'autocast' else 'in'} {precision}"
    # What spoils a class can be less than the rounding of short numbers, or of large scores.
    sharp = precision == "float64" and s.values not in _LOOSER
    limit = LIMITS[precision] * _LOOSER.get(s.values, 1) * (10 if max(s.lengths) >= LONG else 1)
    checks = []
    for kind, figures, nulls in zip(("output", "gradients"), _differences(found, exact, precision), own, strict=True):
        if figures:
            own_limit = 5 * limit if kind == "gradients" and s.precision in NARROW else limit
            limits = {name: max(own_limit, 4 * nulls.get(name, 0.0)) for name in figures}
            worst = max(figures, key=lambda name: figures[name] / limits[name])
            sharp = sharp and (kind == "output" or any(g.abs().max() > 1e-6 for g in exact.gradients.values()))
            note = f"largest in {worst}" if kind == "gradients" else ""
            note += f"{', ' * bool(note)}the reference itself: {nulls[worst]:.1e}" if worst in nulls else ""
            checks.append(Check(f"{kind}{suffix}, {s}", figures[worst], limits[worst], sharp, note, s))
    if candidate.written:
        checks.append(Check(f"output, {s}", f"it writes into {', '.join(sorted(candidate.written))}", 0.0, situation=s))
    return checks


def _reference(
    candidate: Candidate, s: Situation, weights: Mapping[str, Tensor], given: Sequence[Given], dtype: torch.dtype
) -> _Answer:
    learns = s.learns and s.gradients != "inputs"
    own = {name: tensor.detach().to(dtype, copy=True).requires_grad_(learns) for name, tensor in weights.items()}
    inputs = [draw(dtype) for draw in given]
    answers = [candidate.expected(own, x, s) for x in inputs]
    if s.learns:
        for out, rows in answers:
            _backward(out, rows, s)
    leaves = _numbered(inputs) | (own if learns else {})
    gradients = {name: _gradient(x) for name, x in leaves.items()} if s.learns else {}
    return _Answer([out.detach() for out, _ in answers], [rows for _, rows in answers], gradients)


def _answer(candidate: Candidate, s: Situation, given: Sequence[Given], dtype: torch.dtype, exact: _Answer) -> _Answer:
    inputs = [draw(dtype) for draw in given]
    outputs = [candidate.call(inputs[0], s)]
    if s.gradients == "inference" and s.storage == "contiguous":  # tensors that were given before, of other contents
        outputs[0] = outputs[0].clone()
        for old, new in zip(*((x.query, x.key, x.value) for x in inputs), strict=True):
            old.copy_(new)
        inputs[1] = replace(inputs[0], masks=inputs[1].masks)
    outputs.append(candidate.call(inputs[1], s))
    gradients = {}
    # Where a row that nobody judges is NaN, so is every gradient.
    if s.learns and all(rows.all() or out.isfinite().all() for out, rows in zip(outputs, exact.rows, strict=True)):
        try:
            with user_code("the backward pass"):
                for out, rows in zip(outputs, exact.rows, strict=True):
                    _backward(out, rows, s)
        except UserCodeError as error:
            if "not implemented" in str(error):
                raise CannotTell(f"this machine lacks it: {error}") from error
            raise
        gradients = {name: _gradient(x) for name, x in _numbered(inputs).items()}
        if s.gradients != "inputs":
            gradients |= candidate.canonical({n: _gradient(p) for n, p in candidate.module.named_parameters()})
    return _Answer([out.detach() for out in outputs], exact.rows, gradients)


def _backward(out: Tensor, rows: Tensor, s: Situation) -> None:
    """Of the judged rows (B, T_q) of an output (B, T_q, D), from a gradient that every precision can hold."""
    generator = torch.Generator().manual_seed(2)
    if s.upstream == "sum" and rows.all():
        direction = torch.ones((), dtype=out.dtype).expand_as(out)
    else:
        direction = torch.randn(out.shape, generator=generator).bfloat16().to(out.dtype) * rows[..., None]
    if s.upstream == "transposed":
        direction = direction.transpose(0, 1).contiguous().transpose(0, 1)
    out.backward(direction * 1024 if s.upstream == "large" else direction)  # type: ignore[no-untyped-call]


def _numbered(inputs: Sequence[Inputs]) -> dict[str, Tensor]:
    leaves = [(call, leaf) for call, x in enumerate(inputs, 1) for leaf in x.leaves]
    return {f"input {index} of call {call}": leaf for index, (call, leaf) in enumerate(leaves)}


def _gradient(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def _differences(found: _Answer, exact: _Answer, precision: str) -> tuple[dict[str, float], dict[str, float]]:
    """Of each output and of each gradient, by name."""
    both = zip(found.outputs, exact.outputs, exact.rows, strict=True)
    outputs = {f"call {i}": relative_difference(own[rows], out[rows]) for i, (own, out, rows) in enumerate(both, 1)}
    floor = _FLOORS[precision] * max([1.0, *(float(gradient.abs().max()) for gradient in exact.gradients.values())])
    gradients = {
        name: relative_difference(found.gradients[name], expected, floor)
        for name, expected in exact.gradients.items()
        if found.gradients
    }
    return outputs, gradients
