"""The judged checks: each a figure and a limit, the same for the user's class, for mutants and for spoiled copies.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from lockstep.verification.candidate import Candidate, Inputs, Situation
from lockstep.verification.construction import WithoutDropout
from lockstep.verification.formula import relative_difference
from lockstep.verification.user_code import UserCodeError

FLOAT64, FLOAT32 = 1e-10, 1e-5
"""Limits on the largest difference, relative to the largest value of the reference."""


@dataclass(frozen=True)
class Check:
    """One line of the certificate.

    Args:
        what: what was compared.
        figure: what came out.
        limit: what the figure may be; None where it is only reported.
        numerical: the figure is a difference, which a spoiled module must exceed.
        note: a remark beside the figure.
    """

    what: str
    figure: float | str
    limit: float | None = None
    numerical: bool = True
    note: str = ""

    @property
    def judged(self) -> bool:
        return self.limit is not None

    @property
    def passed(self) -> bool:
        return self.limit is None or (isinstance(self.figure, float) and self.figure <= self.limit)


def judged_checks(candidate: Candidate, asked: Sequence[Situation]) -> Iterator[Check]:
    """All judged checks, those that most faults fail first.

    Args:
        candidate: in float64.
        asked: the situations to put it in, the plainest first.
    """
    for situation in asked:
        yield from _outputs_and_gradients(candidate, situation)
    yield _single_precision(candidate, asked)
    yield _modes_agree(candidate, asked)
    yield _deterministic(candidate, asked[0])
    yield _neighbours(candidate, asked[-1])
    yield from _hidden_keys(candidate, asked)
    yield _unchanged(candidate, asked)


def _outputs_and_gradients(candidate: Candidate, situation: Situation) -> Iterator[Check]:
    """Outputs, and the gradients of a random projection of them to every input and every weight."""
    inputs = candidate.draw(situation)
    inputs = inputs.mapped(lambda x: x.clone().requires_grad_())
    leaves = list({id(x): x for x in (inputs.query, inputs.key, inputs.value)}.values())
    names = [name for name, _ in candidate.module.named_parameters()]
    weights = {name: tensor.requires_grad_() for name, tensor in candidate.weights().items()}

    try:
        out = candidate.call(inputs, situation)
    except UserCodeError as error:
        yield Check(f"output, {situation.name}", str(error), FLOAT64)
        return
    expected, rows = candidate.expected(weights, inputs, situation)
    yield Check(f"output, {situation.name}", relative_difference(out[rows], expected[rows]), FLOAT64)

    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    direction = direction * rows[..., None]
    reference = _gradients(expected, direction, [*leaves, *weights.values()])
    what = f"gradients, {situation.name}"
    try:
        found = _gradients(out, direction, [*leaves, *candidate.module.parameters()])
    except RuntimeError as error:
        yield Check(what, f"the backward pass raised: {error}", FLOAT64)
        return
    by_name = dict(zip(names, found[len(leaves) :], strict=True))
    own = [*found[: len(leaves)], *candidate.canonical(by_name).values()]
    # The key bias has a gradient of zero up to rounding, which is measured against the others'.
    floor = 1e-3 * max(float(g.abs().max()) for g in reference)
    figures = [relative_difference(a, b, floor) for a, b in zip(own, reference, strict=True)]
    worst = max(range(len(figures)), key=figures.__getitem__)
    labels = [f"input {i}" for i in range(len(leaves))] + list(weights)
    yield Check(what, figures[worst], FLOAT64, note=f"largest in {labels[worst]}")


def _gradients(out: Tensor, direction: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad((out * direction).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(x) if gradient is None else gradient for gradient, x in zip(found, leaves, strict=True)]


def errors_in(dtype: torch.dtype, candidate: Candidate, asked: Sequence[Situation]) -> tuple[float, float]:
    """The largest differences of the class and of the reference in a precision from the reference in float64."""
    figure = own = 0.0
    module = candidate.module
    state = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    try:
        module.to(dtype)
        weights = candidate.weights()
        for situation in asked:
            inputs = candidate.draw(situation, dtype=dtype)
            double = inputs.mapped(Tensor.double)
            with torch.no_grad():
                exact, rows = candidate.expected({n: w.double() for n, w in weights.items()}, double, situation)
                figure = max(figure, relative_difference(candidate.call(inputs, situation)[rows], exact[rows]))
                reference, _ = candidate.expected(weights, inputs, situation)
                own = max(own, relative_difference(reference[rows], exact[rows]))
        return figure, own
    finally:
        module.double()
        for tensor, before in state:
            tensor.data = before


def _single_precision(candidate: Candidate, asked: Sequence[Situation]) -> Check:
    try:
        figure, own = errors_in(torch.float32, candidate, asked)
    except UserCodeError as error:
        return Check("float32 against float64", str(error), FLOAT32)
    return Check("float32 against float64", figure, max(FLOAT32, 4 * own), note=f"the reference itself: {own:.1e}")


def _modes_agree(candidate: Candidate, asked: Sequence[Situation]) -> Check:
    """Train and eval, with and without grad, in calls of other contents one after the other; nothing is dropped."""
    what, worst, weights = "train and eval, grad and no-grad agree", (0.0, ""), candidate.weights()
    modes = list(product((False, True), repeat=2))
    try:
        for situation in asked:
            for seed, (training, grad) in enumerate(modes, 1):
                inputs = candidate.draw(situation, seed)
                expected, rows = candidate.expected(weights, inputs, situation)
                candidate.module.train(training)
                with torch.set_grad_enabled(grad), WithoutDropout():
                    out = candidate.call(inputs, situation).detach()
                worst = max(worst, (relative_difference(out[rows], expected[rows]), situation.name))
    except UserCodeError as error:
        return Check(what, str(error), FLOAT64)
    finally:
        candidate.module.eval()
    return Check(what, worst[0], FLOAT64, note=f"largest in: {worst[1]}" if worst[0] > FLOAT64 else "")


def _deterministic(candidate: Candidate, situation: Situation) -> Check:
    inputs = candidate.draw(situation)
    with torch.no_grad():
        first, second = candidate.call(inputs, situation), candidate.call(inputs, situation)
    return Check("deterministic: called twice", relative_difference(first, second), 0.0)


def _neighbours(candidate: Candidate, situation: Situation) -> Check:
    """The first sample's output when the second sample is another."""
    inputs = candidate.draw(situation)
    changed = inputs.mapped(lambda x: torch.cat([x[:1], x[1:].flip(-1) * 3]))
    with torch.no_grad():
        figure = relative_difference(candidate.call(inputs, situation)[:1], candidate.call(changed, situation)[:1])
    return Check("independent of batch neighbours", figure, FLOAT64)


def _hidden_keys(candidate: Candidate, asked: Sequence[Situation]) -> Iterator[Check]:
    """What is hidden must not matter: the last key is changed, hidden by a mask, or causally from earlier queries."""
    for situation in asked:
        causal = not situation.forms and (situation.is_causal or candidate.conventions.causal)
        if situation.T_k == 1 or (causal and situation.T_q == 1) or not (causal or situation.forms):
            continue
        inputs = candidate.draw(situation)
        masks = [torch.ones_like(mask) for mask in inputs.masks]
        for mask in masks:
            mask[..., -1] = False
        inputs = Inputs(inputs.query, inputs.key, inputs.value, tuple(masks))
        changed = inputs.mapped(lambda x: torch.cat([x[:, :-1], x[:, -1:] * 3 + 1], 1))
        if not situation.same:
            changed = Inputs(inputs.query, changed.key, changed.value, inputs.masks)
        # The last query sees the last key causally; in self-attention it is the token that changed.
        judged = slice(0, -1) if causal or situation.same else slice(None)
        what = f"hidden keys do not matter, {situation.name}"
        try:
            with torch.no_grad():
                before, after = candidate.call(inputs, situation), candidate.call(changed, situation)
        except UserCodeError as error:
            yield Check(what, str(error), FLOAT64)
            continue
        yield Check(what, relative_difference(before[:, judged], after[:, judged]), FLOAT64)


def _unchanged(candidate: Candidate, asked: Sequence[Situation]) -> Check:
    """Masks are turned over, so that whatever is written into them shows."""
    changed = 0
    for situation in asked:
        inputs = candidate.draw(situation)
        inputs = Inputs(inputs.query, inputs.key, inputs.value, tuple(~mask for mask in inputs.masks))
        changed += candidate.changed_by_a_call(inputs, situation)
    return Check("inputs, masks and parameters unchanged", float(changed), 0.0, numerical=False)
