"""The formula against values worked out by hand, against torch, and every fault against the reference."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.attention import reference
from lockstep.verification.formula import FAULTS, Formula, evaluate

Weights = dict[str, Tensor]


def identity(H: int, K: int) -> Weights:
    """Identity projections, no biases."""
    D = H * K
    weights = {f"{role}.weight": torch.eye(D).view(H, K, D) for role in ("query", "key", "value")}
    return weights | {"output.weight": torch.eye(D).view(D, H, K)}


def equal_scores(formula: Formula, values: list[float], T_q: int, visible: Tensor | None = None) -> list[float]:
    """One head of width 1, every raw score 0; the outputs of the judged rows."""
    T_k = len(values)
    value = torch.tensor(values, dtype=torch.float32).view(1, T_k, 1)
    out, rows = evaluate(formula, identity(1, 1), torch.zeros(1, T_q, 1), torch.zeros(1, T_k, 1), value, visible)
    return out[rows].flatten().tolist()


TRIANGLE = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (Formula(), [1, 1.5, 2]),
        (Formula(mask="inverted"), [2.5, 3]),
        (Formula(mask="added"), [1.635827, 1.733043, 2]),
        (Formula(mask="ignored"), [2, 2, 2]),
    ],
)
def test_a_triangular_mask(formula: Formula, expected: list[float]) -> None:
    """Three equal scores, V = [1, 2, 3]; inverted, the last row sees nothing and is not judged."""
    found = equal_scores(formula, [1, 2, 3], 3, TRIANGLE)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_row_that_sees_nothing_is_not_judged() -> None:
    visible = torch.tensor([[False, False], [True, True]])[None, None]
    assert equal_scores(Formula(), [2, 4], 2, visible) == [3]


@pytest.mark.parametrize(("T_q", "T_k", "right", "wrong"), [(1, 4, [2.5], [1]), (2, 5, [2.5, 3], [1, 1.5])])
def test_causality_with_a_longer_key_side(T_q: int, T_k: int, right: list[float], wrong: list[float]) -> None:
    values = [float(i + 1) for i in range(T_k)]
    assert equal_scores(Formula(causal="lower_right"), values, T_q) == pytest.approx(right)
    assert equal_scores(Formula(causal="upper_left"), values, T_q) == pytest.approx(wrong)


@pytest.mark.parametrize(("formula", "first"), [(Formula(), 0.880797), (Formula(scale="sqrt(d_model)"), 0.731059)])
def test_the_scale(formula: Formula, first: float) -> None:
    """Width 16, four heads, raw products [4, 0] in head 0."""
    query = torch.zeros(1, 1, 16)
    query[..., 0] = 2
    key, value = torch.zeros(1, 2, 16), torch.zeros(1, 2, 16)
    key[0, 0, 0] = 2
    value[0, 0, 0] = 1
    out, _ = evaluate(formula, identity(4, 4), query, key, value)
    assert out[0, 0, 0].item() == pytest.approx(first, abs=1e-6)


def test_softmax_over_the_wrong_axis() -> None:
    """Scaled scores [[0, ln 3], [0, 0]]: weights [[.25, .75], [.5, .5]]; over queries [[.5, .75], [.5, .25]]."""
    weights = identity(1, 2)
    query = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    key = torch.tensor([[[0.0, 0.0], [math.log(3) * math.sqrt(2), 0.0]]])
    value = torch.eye(2)[None]
    right, _ = evaluate(Formula(), weights, query, key, value)
    wrong, _ = evaluate(Formula(softmax="queries"), weights, query, key, value)
    assert torch.allclose(right[0], torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    assert torch.allclose(wrong[0], torch.tensor([[0.5, 0.75], [0.5, 0.25]]))


def test_splitting_by_reshape_mixes_time_with_features() -> None:
    """x = [[0..3], [4..7]]: head 0 is [[0, 1], [4, 5]]; by reshape it is [[0, 1], [2, 3]].

    Each position attends to itself alone, so that the heads come out as they were split.
    """
    x = torch.arange(8.0).view(1, 2, 4)
    diagonal = torch.eye(2, dtype=torch.bool)[None, None]
    right, _ = evaluate(Formula(), identity(2, 2), x, x, x, diagonal)
    wrong, _ = evaluate(Formula(split=("query", "key", "value")), identity(2, 2), x, x, x, diagonal)
    assert torch.equal(right, x)
    assert wrong[0, :, :2].tolist() == [[0, 1], [2, 3]]


def random_weights() -> Weights:
    H, K, D = 3, 4, 12
    shapes = {"query": (H, K, D), "key": (H, K, D), "value": (H, K, D), "output": (D, H, K)}
    weights = {f"{role}.weight": torch.randn(shape).double() for role, shape in shapes.items()}
    biases = {f"{role}.bias": torch.randn(H, K).double() for role in ("query", "key", "value")}
    return weights | biases | {"output.bias": torch.randn(D).double()}


def test_without_a_fault_it_is_the_reference_and_torch() -> None:
    torch.manual_seed(0)
    weights = random_weights()
    query, key, value = (torch.randn(2, T, 12).double() for T in (5, 7, 7))
    visible = torch.rand(2, 3, 5, 7) < 0.7
    visible[..., 0] = True
    out, rows = evaluate(Formula(causal="lower_right"), weights, query, key, value, visible)
    assert rows.all()
    assert torch.allclose(
        out, reference.attention(weights, query, key, value, visible, is_causal=True), rtol=0, atol=1e-12
    )

    def flat(kind: str) -> Tensor:
        return torch.cat([weights[f"{role}.{kind}"].flatten(0, 1) for role in ("query", "key", "value")])

    theirs, _ = F.multi_head_attention_forward(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), 12, 3, flat("weight"), flat("bias"), None,
        None, False, 0.0, weights["output.weight"].flatten(1), weights["output.bias"],
        attn_mask=~(visible & torch.ones(5, 7, dtype=torch.bool).tril(2)).flatten(0, 1),
    )  # fmt: skip
    assert torch.allclose(out, theirs.transpose(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.code} {dict(fault.changes)}")
def test_every_fault_changes_the_output(fault: object) -> None:
    torch.manual_seed(0)
    weights = random_weights()
    query, key, value = (torch.randn(2, 5, 12).double() for _ in range(3))
    visible = torch.rand(2, 1, 5, 5) < 0.6
    visible[..., 0] = True
    T_k = 7 if "lengths" in fault.needs else 5
    if T_k == 7:
        key, value, visible = (
            torch.randn(2, 7, 12).double(),
            torch.randn(2, 7, 12).double(),
            visible.repeat(1, 1, 1, 2)[..., :7],
        )
    base = Formula(causal="lower_right")
    right, _ = evaluate(base, weights, query, key, value, visible)
    wrong, rows = evaluate(fault.applied_to(base), weights, query, key, value, visible)
    assert rows.any()
    assert not (wrong[rows] - right[rows]).abs().max() < 1e-3
