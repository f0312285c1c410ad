"""What is supposed of a module: which parameter plays which role, in which layout, in which formula."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.attention.layout import Layout
from lockstep.verification.construction import Sizes
from lockstep.verification.formula import Fault, Formula, Norm, evaluate, plain_norm, relative_difference
from lockstep.verification.weight_search import Cell, layouts

AGREES = 2e-5
"""Relative error below which a hypothesis is taken: above float32's rounding, far below the wrong ones' distance."""


@dataclass(frozen=True)
class Hypothesis:
    """What is known so far."""

    cells: dict[str, Cell] = field(default_factory=dict)
    formula: Formula = field(default_factory=Formula)
    faults: tuple[Fault, ...] = ()
    norm: Norm = plain_norm

    def layouts(self) -> list[Layout]:
        """Weights, then biases."""
        kinds = ("weight", "bias")
        chosen = [{n.split(".")[0]: c for n, c in self.cells.items() if n.endswith(kind)} for kind in kinds]
        order = (*INPUT_ROLES, "output")
        return [
            layout for of_kind in chosen for layout in sorted(layouts(of_kind), key=lambda x: order.index(x.roles[0]))
        ]

    def weights(self, module: nn.Module, sizes: Sizes) -> dict[str, Tensor]:
        """The canonical weights, as far as their places are known."""
        tensors = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
        return {name: cell.read(name, tensors, sizes) for name, cell in self.cells.items()}

    def scored(self, query: Cell, key: Cell) -> "Hypothesis":
        return replace(self, cells=self.cells | {"query.weight": query, "key.weight": key})

    def faulty(self, fault: Fault) -> "Hypothesis":
        return replace(self, formula=fault.applied_to(self.formula), faults=(*self.faults, fault))


def reproduces(
    formula: Formula,
    weights: Mapping[str, Tensor],
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    norm: Norm,
    visible: Tensor | None = None,
) -> bool:
    """Whether a formula gives the judged rows of an output (B, T_q, D)."""
    if not formula.fits(inputs[0].size(1), inputs[1].size(1)):
        return False
    expected, rows = evaluate(formula, weights, *inputs, visible, norm)
    alike = out.shape == expected.shape and bool(rows.any())
    return alike and relative_difference(out[rows], expected[rows]) <= AGREES


def has_scores_fault(hypothesis: Hypothesis) -> bool:
    return any(fault.stage == "scores" for fault in hypothesis.faults)


def stored_alike(hypothesis: Hypothesis) -> bool:
    """Whether query, key and value are read in one way; a value that all heads share may differ."""
    value, query, key = (hypothesis.cells[f"{role}.weight"].axes for role in ("value", "query", "key"))
    return query == key and ("h" not in value or value == query)


def tied(chosen: dict[str, Cell]) -> Fault:
    """Roles that are read from one place."""
    places: dict[Cell, list[str]] = {}
    for role in INPUT_ROLES:
        places.setdefault(chosen[f"{role}.weight"], []).append(role)
    shared = "; ".join(" and ".join(roles) for roles in places.values() if len(roles) > 1) or "some roles"
    return Fault(
        "tied_weights", f"{shared} share one parameter: it is the reference only at tied weights", (), "scores"
    )
