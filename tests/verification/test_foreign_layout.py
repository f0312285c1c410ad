"""Layouts: values worked out by hand, and conversions that are exact in both directions."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.attention.layout import Layout

QKV = ("query", "key", "value")


@pytest.mark.parametrize(
    ("axes", "rows"),
    [
        ("(r h k) d", {"query": [0, 1], "key": [2, 3], "value": [4, 5]}),
        ("(h r k) d", {"query": [0, 3], "key": [1, 4], "value": [2, 5]}),
    ],
)
def test_packed_rows_go_where_the_layout_says(axes: str, rows: dict[str, list[int]]) -> None:
    """Width 2, two heads, packed rows numbered 0 to 5: in blocks, and interleaved by head."""
    packed = torch.arange(6.0)[:, None].expand(6, 2)
    read = Layout("w", axes, QKV).read({"w": packed}, 2, 1)
    assert {role: read[f"{role}.weight"][:, 0, 0].tolist() for role in QKV} == rows


def test_a_linear_layer_applies_the_transpose_of_in_out_storage() -> None:
    """W = [[1, 2], [0, 1]] on x = [1, 1] is [3, 1]; read as (in, out) it is [1, 3]."""
    w = {"w": torch.tensor([[1.0, 2.0], [0.0, 1.0]])}
    x = torch.ones(2)
    out_in = Layout("w", "(h k) d", ("query",)).read(w, 2, 1)["query.weight"]  # (H, K, D)
    in_out = Layout("w", "d (h k)", ("query",)).read(w, 2, 1)["query.weight"]
    assert (out_in @ x).flatten().tolist() == [3, 1]
    assert (in_out @ x).flatten().tolist() == [1, 3]


LAYOUTS = st.one_of(
    st.builds(
        Layout,
        st.just("w"),
        st.permutations(["r", "h", "k", "d"]).map(lambda p: f"({p[0]} {p[1]}) {p[2]} {p[3]}"),
        st.sampled_from(list(permutations(QKV))),
    ),
    st.builds(Layout, st.just("h.{}.w"), st.sampled_from(["h k d", "h d k"]), st.sampled_from([(r,) for r in QKV])),
    st.builds(
        Layout,
        st.just("w"),
        st.sampled_from(["d (h k)", "(k h) d", "h k d", "(d h) 1 k"]),
        st.just(("output",)),
        st.permutations(range(3)).map(tuple),
    ),
    st.builds(Layout, st.just("b"), st.sampled_from(["(r h k)", "(h r k)", "h (k r)", "r 1 (h k)"]), st.just(QKV)),
)


@given(LAYOUTS)
def test_a_round_trip_is_exact_in_both_directions(layout: Layout) -> None:
    H, K = 3, 4
    shapes = {"output.weight": (H * K, H, K)} | {f"{role}.weight": (H, K, H * K) for role in QKV}
    shapes |= {f"{role}.bias": (H, K) for role in QKV}
    canonical = {f"{role}.{layout.kind}": torch.randn(shapes[f"{role}.{layout.kind}"]) for role in layout.roles}
    stored = layout.write(canonical, H, K)
    back = layout.read(stored, H, K)
    assert set(back) == set(canonical)
    assert all(torch.equal(back[name], canonical[name]) for name in canonical)
    again = layout.write(back, H, K)
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_heads_in_another_order() -> None:
    """Position 0 holds canonical head 2, and so on; a reversed order is known for every number of heads."""
    weight = {"w": torch.arange(3.0).repeat(3, 1)}  # (D, H·K), K = 1
    read = Layout("w", "d (h k)", ("output",), (2, 0, 1)).read(weight, 3, 1)
    assert read["output.weight"][0, :, 0].tolist() == [1, 2, 0]
    wide = {"w": torch.arange(4.0).repeat(4, 1)}
    assert Layout("w", "d (h k)", ("output",), (1, 0)).read(wide, 4, 1)["output.weight"][0, :, 0].tolist() == [
        3,
        2,
        1,
        0,
    ]
    with pytest.raises(ValueError, match="known for 3 heads, not for 4"):
        Layout("w", "d (h k)", ("output",), (2, 0, 1)).read(wide, 4, 1)
