"""The judged checks: each a figure and a limit, the same for the user's class, for mutants and for spoiled copies.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.verification.subject import Inputs, Situation, Subject, situations
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


def judged_checks(subject: Subject, equal_lengths: bool = False) -> Iterator[Check]:
    """All judged checks, the quickest to fail first.

    Args:
        subject: in float64.
        equal_lengths: the class works with T_q = T_k only.
    """
    asked = situations(subject.conventions, equal_lengths)
    for situation in asked:
        yield from _outputs_and_gradients(subject, situation)
    yield from _single_precision(subject, [s for s in asked if s.form is None])
    yield _modes_agree(subject, asked[0])
    yield _deterministic(subject, asked[0])
    yield _neighbours(subject, asked[-1])
    yield from _hidden_keys(subject, asked)
    yield _inputs_unchanged(subject, asked[-1])


def _outputs_and_gradients(subject: Subject, situation: Situation) -> Iterator[Check]:
    """Outputs, and the gradients of a random projection of them to every input and every weight."""
    inputs = subject.draw(situation)
    leaves = {id(x): x.clone().requires_grad_() for x in (inputs.query, inputs.key, inputs.value)}
    leaved = Inputs(leaves[id(inputs.query)], leaves[id(inputs.key)], leaves[id(inputs.value)], inputs.visible)
    names = [name for name, _ in subject.module.named_parameters()]
    parameters = list(subject.module.parameters())
    weights = {name: tensor.requires_grad_() for name, tensor in subject.weights().items()}

    try:
        out = subject.call(leaved, situation)
    except UserCodeError as error:
        yield Check(f"output, {situation.name}", str(error), FLOAT64)
        return
    expected, rows = subject.expected(weights, leaved, situation)
    yield Check(f"output, {situation.name}", relative(out[rows].detach(), expected[rows].detach()), FLOAT64)

    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    direction = direction * rows[..., None]
    wanted = [*leaves.values(), *weights.values()]
    expected_grads = torch.autograd.grad((expected * direction).sum(), wanted, allow_unused=True)
    what = f"gradients, {situation.name}"
    try:
        found = torch.autograd.grad((out * direction).sum(), [*leaves.values(), *parameters], allow_unused=True)
    except RuntimeError as error:
        yield Check(what, f"the backward pass raised: {error}", FLOAT64)
        return
    dense = [torch.zeros_like(x) if g is None else g for g, x in zip(found, [*leaves.values(), *parameters], strict=True)]
    own = [*dense[: len(leaves)], *subject.canonical(dict(zip(names, dense[len(leaves) :], strict=True))).values()]
    reference = [torch.zeros_like(x) if g is None else g for g, x in zip(expected_grads, wanted, strict=True)]
    # The key bias has a gradient of zero up to rounding, which is measured against the others'.
    floor = 1e-3 * max(float(g.abs().max()) for g in reference)
    figures = [relative(a, b, floor) for a, b in zip(own, reference, strict=True)]
    worst = max(range(len(figures)), key=figures.__getitem__)
    labels = [f"input {i}" for i in range(len(leaves))] + list(weights)
    yield Check(what, figures[worst], FLOAT64, note=f"largest in {labels[worst]}")


def _single_precision(subject: Subject, asked: list[Situation]) -> Iterator[Check]:
    """float32 against the float64 reference, beside the error that the reference itself makes in float32."""
    figure = own = 0.0
    state = [(tensor, tensor.detach().clone()) for tensor in (*subject.module.parameters(), *subject.module.buffers())]
    try:
        subject.module.float()
        single = subject.weights()
        for situation in asked:
            inputs = subject.draw(situation, dtype=torch.float32)
            doubled = {id(x): x.double() for x in (inputs.query, inputs.key, inputs.value)}
            double = Inputs(*(doubled[id(x)] for x in (inputs.query, inputs.key, inputs.value)), inputs.visible)
            with torch.no_grad():
                exact, rows = subject.expected({n: w.double() for n, w in single.items()}, double, situation)
                figure = max(figure, relative(subject.call(inputs, situation)[rows], exact[rows]))
                own = max(own, relative(subject.expected(single, inputs, situation)[0][rows], exact[rows]))
        yield Check("float32 against float64", figure, max(FLOAT32, 4 * own), note=f"the reference itself: {own:.1e}")
    except UserCodeError as error:
        yield Check("float32 against float64", str(error), FLOAT32)
    finally:
        subject.module.double()
        for tensor, before in state:
            tensor.data = before


def _modes_agree(subject: Subject, situation: Situation) -> Check:
    """Train and eval, with and without grad; dropout is 0."""
    inputs = subject.draw(situation)
    weights = subject.weights()
    expected, rows = subject.expected(weights, inputs, situation)
    figure = 0.0
    for training in (False, True):
        for grad in (False, True):
            subject.module.train(training)
            with torch.set_grad_enabled(grad):
                figure = max(figure, relative(subject.call(inputs, situation)[rows].detach(), expected[rows]))
    subject.module.eval()
    return Check("train and eval, grad and no-grad agree", figure, FLOAT64)


def _deterministic(subject: Subject, situation: Situation) -> Check:
    inputs = subject.draw(situation)
    with torch.no_grad():
        first, second = subject.call(inputs, situation), subject.call(inputs, situation)
    return Check("deterministic: called twice", relative(first, second), 0.0)


def _neighbours(subject: Subject, situation: Situation) -> Check:
    """The first sample's output when the second sample is another."""
    inputs = subject.draw(situation)

    def other(x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[1:].flip(-1) * 3])

    changed = _mapped(inputs, other)
    with torch.no_grad():
        figure = relative(subject.call(inputs, situation)[:1], subject.call(changed, situation)[:1])
    return Check("independent of batch neighbours", figure, FLOAT64)


def _mapped(inputs: Inputs, change: object) -> Inputs:
    """Inputs changed one by one; one tensor stays one tensor."""
    assert callable(change)
    changed = {id(x): change(x) for x in (inputs.query, inputs.key, inputs.value)}
    return Inputs(*(changed[id(x)] for x in (inputs.query, inputs.key, inputs.value)), inputs.visible)


def _hidden_keys(subject: Subject, asked: list[Situation]) -> Iterator[Check]:
    """What is hidden must not matter: the last key, by causality and by each mask."""
    causal = subject.conventions.causal
    for situation in asked:
        if not (situation.form or situation.is_causal or causal) or situation.T_k == 1:
            continue
        inputs = subject.draw(situation)
        if situation.form is not None:
            visible = torch.ones(inputs.visible.shape if inputs.visible is not None else (1,), dtype=torch.bool)
            visible[..., -1] = False
            inputs = Inputs(inputs.query, inputs.key, inputs.value, visible)
        changed = _mapped(inputs, lambda x: torch.cat([x[:, :-1], x[:, -1:] * 3 + 1], 1))
        # In self-attention the last query changes with the last key; with T_q = 1 it would be the only one.
        changed = changed if inputs.query is inputs.key else Inputs(inputs.query, changed.key, changed.value, inputs.visible)
        unmoved = slice(None) if situation.form is not None and inputs.query is not inputs.key else slice(0, -1)
        if situation.T_q == 1 and (unmoved.stop == -1):
            continue
        try:
            with torch.no_grad():
                before, after = subject.call(inputs, situation), subject.call(changed, situation)
        except UserCodeError as error:
            yield Check(f"hidden keys do not matter, {situation.name}", str(error), FLOAT64)
            continue
        yield Check(f"hidden keys do not matter, {situation.name}", relative(before[:, unmoved], after[:, unmoved]), FLOAT64)


def _inputs_unchanged(subject: Subject, situation: Situation) -> Check:
    inputs = subject.draw(situation)
    given = [x for x in (inputs.query, inputs.key, inputs.value, inputs.visible) if x is not None]
    before = [x.clone() for x in given]
    weights = [p.detach().clone() for p in subject.module.parameters()]
    with torch.no_grad():
        subject.call(inputs, situation)
    changed = sum(not torch.equal(a, b) for a, b in zip(given, before, strict=True))
    changed += sum(not torch.equal(a, b) for a, b in zip(subject.module.parameters(), weights, strict=True))
    return Check("inputs, masks and parameters unchanged", float(changed), 0.0, numerical=False)
