"""The judged checks: each a figure and a limit, the same for the user's class, for mutants and for spoiled copies.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from lockstep.verification.candidate import Inputs, Situation, Subject
from lockstep.verification.construction import WithoutDropout
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


def relative(found: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """The largest difference over the largest expected value; infinite where something is NaN."""
    if found.numel() == 0:
        return 0.0
    scale = max(float(expected.abs().max()), floor, 1e-300)
    figure = float((found.double() - expected.double()).abs().max()) / scale
    return figure if figure == figure else float("inf")


def judged_checks(subject: Subject, asked: Sequence[Situation]) -> Iterator[Check]:
    """All judged checks, those that most faults fail first.

    Args:
        subject: in float64.
        asked: the situations to put it in, the plainest first.
    """
    for situation in asked:
        yield from _outputs_and_gradients(subject, situation)
    yield _single_precision(subject, asked)
    yield _modes_agree(subject, asked)
    yield _deterministic(subject, asked[0])
    yield _neighbours(subject, asked[-1])
    yield from _hidden_keys(subject, asked)
    yield _unchanged(subject, asked)


def _outputs_and_gradients(subject: Subject, situation: Situation) -> Iterator[Check]:
    """Outputs, and the gradients of a random projection of them to every input and every weight."""
    inputs = subject.draw(situation)
    inputs = inputs.mapped(lambda x: x.clone().requires_grad_())
    leaves = list({id(x): x for x in (inputs.query, inputs.key, inputs.value)}.values())
    names = [name for name, _ in subject.module.named_parameters()]
    parameters = list(subject.module.parameters())
    weights = {name: tensor.requires_grad_() for name, tensor in subject.weights().items()}

    try:
        out = subject.call(inputs, situation)
    except UserCodeError as error:
        yield Check(f"output, {situation.name}", str(error), FLOAT64)
        return
    expected, rows = subject.expected(weights, inputs, situation)
    yield Check(f"output, {situation.name}", relative(out[rows].detach(), expected[rows].detach()), FLOAT64)

    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    direction = direction * rows[..., None]
    wanted = [*leaves, *weights.values()]
    expected_grads = torch.autograd.grad((expected * direction).sum(), wanted, allow_unused=True)
    what = f"gradients, {situation.name}"
    try:
        found = torch.autograd.grad((out * direction).sum(), [*leaves, *parameters], allow_unused=True)
    except RuntimeError as error:
        yield Check(what, f"the backward pass raised: {error}", FLOAT64)
        return
    dense = [torch.zeros_like(x) if g is None else g for g, x in zip(found, [*leaves, *parameters], strict=True)]
    own = [*dense[: len(leaves)], *subject.canonical(dict(zip(names, dense[len(leaves) :], strict=True))).values()]
    reference = [torch.zeros_like(x) if g is None else g for g, x in zip(expected_grads, wanted, strict=True)]
    # The key bias has a gradient of zero up to rounding, which is measured against the others'.
    floor = 1e-3 * max(float(g.abs().max()) for g in reference)
    figures = [relative(a, b, floor) for a, b in zip(own, reference, strict=True)]
    worst = max(range(len(figures)), key=figures.__getitem__)
    labels = [f"input {i}" for i in range(len(leaves))] + list(weights)
    yield Check(what, figures[worst], FLOAT64, note=f"largest in {labels[worst]}")


def _single_precision(subject: Subject, asked: Sequence[Situation]) -> Check:
    """float32 against the float64 reference, beside the error that the reference itself makes in float32."""
    figure = own = 0.0
    state = [(tensor, tensor.detach().clone()) for tensor in (*subject.module.parameters(), *subject.module.buffers())]
    try:
        subject.module.float()
        single = subject.weights()
        for situation in asked:
            inputs = subject.draw(situation, dtype=torch.float32)
            double = inputs.mapped(Tensor.double)
            with torch.no_grad():
                exact, rows = subject.expected({n: w.double() for n, w in single.items()}, double, situation)
                figure = max(figure, relative(subject.call(inputs, situation)[rows], exact[rows]))
                own = max(own, relative(subject.expected(single, inputs, situation)[0][rows], exact[rows]))
        return Check("float32 against float64", figure, max(FLOAT32, 4 * own), note=f"the reference itself: {own:.1e}")
    except UserCodeError as error:
        return Check("float32 against float64", str(error), FLOAT32)
    finally:
        subject.module.double()
        for tensor, before in state:
            tensor.data = before


def _modes_agree(subject: Subject, asked: Sequence[Situation]) -> Check:
    """Train and eval, with and without grad, in calls of other contents one after the other; nothing is dropped."""
    what, worst, weights = "train and eval, grad and no-grad agree", (0.0, ""), subject.weights()
    modes = list(product((False, True), repeat=2))
    try:
        for situation in asked:
            for seed, (training, grad) in enumerate(modes, 1):
                inputs = subject.draw(situation, seed)
                expected, rows = subject.expected(weights, inputs, situation)
                subject.module.train(training)
                with torch.set_grad_enabled(grad), WithoutDropout():
                    out = subject.call(inputs, situation).detach()
                worst = max(worst, (relative(out[rows], expected[rows]), situation.name))
    except UserCodeError as error:
        return Check(what, str(error), FLOAT64)
    finally:
        subject.module.eval()
    return Check(what, worst[0], FLOAT64, note=f"largest in: {worst[1]}" if worst[0] > FLOAT64 else "")


def _deterministic(subject: Subject, situation: Situation) -> Check:
    inputs = subject.draw(situation)
    with torch.no_grad():
        first, second = subject.call(inputs, situation), subject.call(inputs, situation)
    return Check("deterministic: called twice", relative(first, second), 0.0)


def _neighbours(subject: Subject, situation: Situation) -> Check:
    """The first sample's output when the second sample is another."""
    inputs = subject.draw(situation)
    changed = inputs.mapped(lambda x: torch.cat([x[:1], x[1:].flip(-1) * 3]))
    with torch.no_grad():
        figure = relative(subject.call(inputs, situation)[:1], subject.call(changed, situation)[:1])
    return Check("independent of batch neighbours", figure, FLOAT64)


def _hidden_keys(subject: Subject, asked: Sequence[Situation]) -> Iterator[Check]:
    """What is hidden must not matter: the last key is changed, hidden by a mask, or causally from earlier queries."""
    for situation in asked:
        causal = not situation.forms and (situation.is_causal or subject.conventions.causal)
        if situation.T_k == 1 or (causal and situation.T_q == 1) or not (causal or situation.forms):
            continue
        inputs = subject.draw(situation)
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
                before, after = subject.call(inputs, situation), subject.call(changed, situation)
        except UserCodeError as error:
            yield Check(what, str(error), FLOAT64)
            continue
        yield Check(what, relative(before[:, judged], after[:, judged]), FLOAT64)


def _unchanged(subject: Subject, asked: Sequence[Situation]) -> Check:
    """Masks are turned over, so that whatever is written into them shows."""
    changed = 0
    for situation in asked:
        inputs = subject.draw(situation)
        inputs = Inputs(inputs.query, inputs.key, inputs.value, tuple(~mask for mask in inputs.masks))
        changed += subject.changed_by_a_call(inputs, situation)
    return Check("inputs, masks and parameters unchanged", float(changed), 0.0, numerical=False)
