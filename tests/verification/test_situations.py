"""The covering array: every two values that can meet do, and every question has an answer."""

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch

from lockstep.verification.construction import Sizes
from lockstep.verification.conventions import Conventions, MaskForm
from lockstep.verification.drawing import draw
from lockstep.verification.formula import Formula, evaluate
from lockstep.verification.situations import HIDDEN, PLAIN, Situation, axes, covering, plain_situations, possible

FORMS = (MaskForm("mask", "additive", "b h q k"), MaskForm("mask", "true_attends", "b h q k"),
         MaskForm("padding", "zero_blocks", "b k"))  # fmt: skip
CALLS = {
    "three inputs": Conventions({"q": "query", "k": "key", "v": "value"}, masks=FORMS, causal_argument="causal"),
    "x alone": Conventions({"x": "query"}, causal=True),
    "x and context": Conventions({"x": "query", "context": "key"}, masks=FORMS[1:2]),
}


def offered(conventions: Conventions) -> dict[str, list[Any]]:
    return axes(
        conventions,
        unequal=True,
        biases=True,
        options={"need_weights": True},
        optional=["context"] if "context" in conventions.inputs else [],
        sizes=["", "one head"],
        num_heads=5,
    )


@pytest.mark.parametrize("conventions", CALLS.values(), ids=CALLS.keys())
def test_every_two_values_that_can_meet_do(conventions: Conventions) -> None:
    values = offered(conventions)
    array = covering(values, conventions)
    missing = []
    for (one, own), (other, others) in combinations(values.items(), 2):
        met = {(getattr(s, one), getattr(s, other)) for s in array}
        missing += [{one: a, other: b} for a, b in product(own, others) if (a, b) not in met]
    # What never meets cannot: some third value would have to be two at once.
    bound = {name: values[name] for name in ("forms", "same", "lengths")} | {"gradients": ["everything", "none"]}
    for pair in missing:
        thirds = (dict(zip(bound, chosen, strict=True)) for chosen in product(*bound.values()))
        assert not any(possible(Situation(**{**third, **pair}), conventions) for third in thirds), pair
    assert len(array) < 150


def test_the_array_is_always_the_same() -> None:
    conventions = CALLS["three inputs"]
    assert covering(offered(conventions), conventions) == covering(offered(conventions), conventions)


def test_the_plainest_is_asked_first() -> None:
    first, *others = plain_situations(offered(CALLS["three inputs"]), CALLS["three inputs"])
    assert first == PLAIN
    assert PLAIN not in others


@pytest.mark.parametrize("hidden", [h for h in HIDDEN if h not in ("one sample blind", "finite biases")])
@pytest.mark.parametrize("forms", [FORMS[:1], FORMS[2:], FORMS], ids=["queries", "padding", "both"])
@pytest.mark.parametrize("lengths", [(7, 7), (2, 4), (1, 5), (3, 1), (1, 1)], ids=str)
def test_every_query_sees_something(hidden: str, forms: tuple[MaskForm, ...], lengths: tuple[int, int]) -> None:
    """What a query gets that sees nothing is nobody's convention; the causal switch is on where it may be."""
    s = replace(PLAIN, hidden=hidden, forms=forms, lengths=lengths, same="none", is_causal=lengths[0] <= lengths[1])
    sizes = Sizes(12, 3)
    x = draw(s, ("query", "key", "value"), sizes)(torch.float64)
    weights = {f"{role}.weight": torch.ones(3, 4, 12).double() for role in ("query", "key", "value")}
    weights["output.weight"] = torch.ones(12, 3, 4).double()
    formula = Formula(causal="lower_right" if s.is_causal else "none")
    _, rows = evaluate(formula, weights, x.query, x.key, x.value, x.visible)
    assert rows.all()


def test_inputs_lie_and_are_related_as_they_should() -> None:
    sizes, roles = Sizes(12, 3), ("query", "key", "value")

    def of(**changes: Any) -> Any:
        return draw(replace(PLAIN, same="none", **changes), roles, sizes)(torch.float64)

    assert not of(storage="transposed").query.is_contiguous()
    assert of(storage="one sample").query.stride(0) == 0
    overlapping = of(storage="overlapping", lengths=(2, 4))
    assert overlapping.query.data_ptr() == overlapping.key.data_ptr()
    assert len(overlapping.leaves) == 2
    assert len(of(gradients="the key").leaves) == 1
    assert not of(gradients="weights").leaves
    one = draw(replace(PLAIN, same="query and key"), roles, sizes)(torch.float64)
    assert one.query is one.key
    assert one.value is not one.key
    narrow = draw(PLAIN, roles, sizes, dtype=torch.float32)
    assert torch.equal(narrow(torch.float32).query.double(), narrow(torch.float64).query)
