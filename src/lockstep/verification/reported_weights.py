"""What is worth knowing about an equivalent class and is no reason for a verdict."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lockstep.verification.candidate import Inputs, Situation, Subject
from lockstep.verification.checks import Check, relative
from lockstep.verification.user_code import UserCodeError


def reported(subject: Subject, initial: dict[str, Tensor]) -> Iterator[Check]:
    """Figures without a limit.

    Args:
        subject: in float64.
        initial: the canonical weights as the class initialises them.
    """
    yield _empty_rows(subject)
    yield from _initialisation(subject, initial)
    yield from _optimisers(subject)
    state = [name for name, _ in subject.module.named_buffers()]
    yield Check("stored state beside the parameters", ", ".join(state) or "none")
    yield _bfloat16(subject)


def _empty_rows(subject: Subject) -> Check:
    """What a query gets that may see nothing."""
    what = "a query that may see nothing gets"
    form = next((form for form in subject.conventions.masks if "q" in form.shape), None)
    if form is None:
        return Check(what, "not asked: no mask has queries")
    situation = Situation("a row of the mask is empty", 7, 7, forms=(form,))
    inputs = subject.draw(situation)
    visible = inputs.masks[0].clone()
    visible[..., 3, :] = False
    try:
        with torch.no_grad():
            row = subject.call(Inputs(inputs.query, inputs.key, inputs.value, (visible,)), situation)[:, 3]
    except UserCodeError as error:
        return Check(what, f"an error: {error}")
    weights = subject.weights()
    alone = weights.get("output.bias", torch.zeros(subject.sizes.d_model, dtype=torch.float64)).expand_as(row)
    uniform = dict(weights)
    uniform["query.weight"] = torch.zeros_like(weights["query.weight"])
    uniform.pop("query.bias", None)
    plain = Situation("uniform", 7, 7)
    mean = subject.expected(uniform, Inputs(inputs.query, inputs.key, inputs.value), plain)[0][:, 3]
    if row.isnan().any():
        return Check(what, "NaN")
    if torch.allclose(row, alone, rtol=0, atol=1e-9):
        return Check(what, "zero weights: the output bias alone")
    return Check(what, "the mean of all values" if torch.allclose(row, mean, rtol=0, atol=1e-6) else "something else")


def _initialisation(subject: Subject, initial: dict[str, Tensor]) -> Iterator[Check]:
    """Deviation of the initial weights over that of Xavier on D x D, which the reference uses."""
    reference = (1 / subject.sizes.d_model) ** 0.5
    ratios = [f"{n.split('.')[0]} {float(w.std()) / reference:.2f}" for n, w in initial.items() if n.endswith("weight")]
    yield Check("initial weights, deviation over the reference's", ", ".join(ratios))


def _optimisers(subject: Subject) -> Iterator[Check]:
    """One step in this layout, beside one step on canonical D x D matrices from the same gradients."""
    generator = torch.Generator().manual_seed(3)
    H, K = subject.sizes.num_heads, subject.sizes.head_dim
    weights = {n: w for n, w in subject.weights().items() if n.endswith("weight")}
    gradients = {n: torch.randn(w.shape, generator=generator, dtype=w.dtype) for n, w in weights.items()}
    layouts = [layout for layout in subject.mapping if layout.kind == "weight"]

    def matrices(canonical: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t.flatten(1) if n == "output.weight" else t.flatten(0, 1) for n, t in canonical.items()}

    def stored(canonical: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t for layout in layouts for name, t in layout.write(canonical, H, K).items()}

    optimisers: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
        "Muon": lambda p: torch.optim.Muon(p, lr=0.1),
    }
    for name, make in optimisers.items():
        what = f"{name} in this layout against D x D matrices"
        try:
            found = _step(make, stored(weights), stored(gradients))
        except ValueError as error:
            yield Check(what, f"refused: {error}")
            continue
        own: dict[str, Tensor] = {}
        for layout in layouts:
            own |= layout.read(found, H, K)
        expected = _step(make, matrices(weights), matrices(gradients))
        figure = max(relative(own[n].reshape(expected[n].shape), expected[n]) for n in expected)
        yield Check(what, figure, note="the same step" if figure < 1e-9 else "another step: it sees whole matrices")


def _step(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], values: dict[str, Tensor], gradients: dict[str, Tensor]
) -> dict[str, Tensor]:
    parameters = {name: torch.nn.Parameter(tensor.contiguous().clone()) for name, tensor in values.items()}
    optimiser = make(list(parameters.values()))
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].contiguous().clone()
    optimiser.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


def _bfloat16(subject: Subject) -> Check:
    """The class in bfloat16 against the float64 reference, beside the reference in bfloat16."""
    what = "bfloat16 against float64"
    situation = Situation("self-attention", 7, 7)
    state = [(tensor, tensor.detach().clone()) for tensor in (*subject.module.parameters(), *subject.module.buffers())]
    try:
        subject.module.bfloat16()
        low = subject.weights()
        inputs = subject.draw(situation, dtype=torch.bfloat16)
        double = inputs.mapped(Tensor.double)
        with torch.no_grad():
            exact, rows = subject.expected({n: w.double() for n, w in low.items()}, double, situation)
            own = relative(subject.expected(low, inputs, situation)[0][rows], exact[rows])
            figure = relative(subject.call(inputs, situation)[rows], exact[rows])
    except UserCodeError as error:
        return Check(what, str(error))
    finally:
        subject.module.double()
        for tensor, before in state:
            tensor.data = before
    return Check(what, figure, note=f"the reference itself: {own:.1e}")
