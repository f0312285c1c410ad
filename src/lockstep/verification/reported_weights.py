"""What is worth knowing about an equivalent class and is no reason for a verdict."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lockstep.verification.candidate import Candidate
from lockstep.verification.checks import Check
from lockstep.verification.drawing import Inputs
from lockstep.verification.formula import relative_difference
from lockstep.verification.situations import PLAIN
from lockstep.verification.user_code import UserCodeError


def reported(candidate: Candidate, initial: dict[str, Tensor]) -> Iterator[Check]:
    """Figures without a limit.

    Args:
        candidate: in float64.
        initial: the canonical weights as the class initialises them.
    """
    yield _empty_rows(candidate)
    yield from _initialisation(candidate, initial)
    yield from _optimisers(candidate)
    state = [name for name, _ in candidate.module.named_buffers()]
    yield Check("stored state beside the parameters", ", ".join(state) or "none")


def _empty_rows(candidate: Candidate) -> Check:
    """What a query gets that may see nothing."""
    what = "a query that may see nothing gets"
    form = next((form for form in candidate.conventions.masks if "q" in form.shape), None)
    if form is None:
        return Check(what, "not asked: no mask has queries")
    situation = replace(PLAIN, forms=(form,), gradients="none")
    inputs = candidate.draw(situation)
    visible = inputs.masks[0].clone()
    visible[..., 3, :] = False
    try:
        with torch.no_grad():
            row = candidate.call(Inputs(inputs.query, inputs.key, inputs.value, (visible,)), situation)[:, 3]
    except UserCodeError as error:
        return Check(what, f"an error: {error}")
    weights = candidate.weights()
    alone = weights.get("output.bias", torch.zeros(candidate.sizes.d_model, dtype=torch.float64)).expand_as(row)
    uniform = dict(weights)
    uniform["query.weight"] = torch.zeros_like(weights["query.weight"])
    uniform.pop("query.bias", None)
    mean = candidate.expected(uniform, Inputs(inputs.query, inputs.key, inputs.value), PLAIN)[0][:, 3]
    if row.isnan().any():
        return Check(what, "NaN")
    if torch.allclose(row, alone, rtol=0, atol=1e-9):
        return Check(what, "zero weights: the output bias alone")
    return Check(what, "the mean of all values" if torch.allclose(row, mean, rtol=0, atol=1e-6) else "something else")


def _initialisation(candidate: Candidate, initial: dict[str, Tensor]) -> Iterator[Check]:
    """Deviation of the initial weights over that of Xavier on D x D, which the reference uses."""
    reference = (1 / candidate.sizes.d_model) ** 0.5
    ratios = [f"{n.split('.')[0]} {float(w.std()) / reference:.2f}" for n, w in initial.items() if n.endswith("weight")]
    yield Check("initial weights, deviation over the reference's", ", ".join(ratios))


def _optimisers(candidate: Candidate) -> Iterator[Check]:
    """One step in this layout, beside one step on canonical D x D matrices from the same gradients."""
    generator = torch.Generator().manual_seed(3)
    weights = {n: w for n, w in candidate.weights().items() if n.endswith("weight")}
    gradients = {n: torch.randn(w.shape, generator=generator, dtype=w.dtype) for n, w in weights.items()}
    mapping = [layout for layout in candidate.mapping if layout.kind == "weight"]
    unbiased = Candidate(candidate.module, candidate.sizes, candidate.conventions, mapping)

    def matrices(canonical: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t.flatten(1) if n == "output.weight" else t.flatten(0, 1) for n, t in canonical.items()}

    optimisers: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
        "Muon": lambda p: torch.optim.Muon(p, lr=0.1),
    }
    for name, make in optimisers.items():
        what = f"{name} in this layout against D x D matrices"
        try:
            own = unbiased.canonical(_step(make, unbiased.stored(weights), unbiased.stored(gradients)))
        except ValueError as error:
            yield Check(what, f"refused: {error}")
            continue
        expected = _step(make, matrices(weights), matrices(gradients))
        figure = max(relative_difference(own[n].reshape(expected[n].shape), expected[n]) for n in expected)
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
