"""Ordered arithmetic: the readable variants agree in every bit, in float32 on the CPU."""

import pytest
import torch
from conftest import VARIANTS, make_variant

from lockstep.attention.dropout import _keep, dropout

ORDERED = [name for name in VARIANTS if getattr(make_variant(name, "ordered")(8, 2), "arithmetic", "") == "ordered"]


def bits(make, weights, query, memory, dropout_probability):
    """Output and every gradient of causal self-attention, then cross-attention, as a decoder layer calls them."""
    torch.manual_seed(1)
    module = make(query.size(-1), 4, dropout=dropout_probability)
    module.load_state_dict(module.from_canonical(weights))
    query, memory = query.clone().requires_grad_(), memory.clone().requires_grad_()
    x = query * 1.0
    x = x + module(x.view_as(x), x.view_as(x), x.view_as(x), None, True)
    padding = torch.ones(memory.shape[:2], dtype=torch.bool)
    padding[1, 1:] = False
    out = module(x, memory.view_as(memory), memory.view_as(memory), padding[:, None, None])
    out.sin().sum().backward()
    gradients = module.to_canonical({name: p.grad for name, p in module.named_parameters()})
    return {"output": out, "query": query.grad, "memory": memory.grad, **gradients}


def test_ordered_variants_are_the_three_that_batch_heads():
    assert ORDERED == ["einsum", "fused", "packed"]


def assert_every_bit_agrees(T, B):
    D, reference, p = 128, make_variant("per_head"), 0.1 * (T % 2)
    weights = {name: torch.randn(shape) * 0.2 for name, shape in reference(D, 4).canonical_shapes().items()}
    query, memory = torch.randn(B, T, D), torch.randn(B, T + 1 + T % 3, D)
    expected = bits(reference, weights, query, memory, p)
    for name in ORDERED:
        for tensor, value in bits(make_variant(name, "ordered"), weights, query, memory, p).items():
            assert torch.equal(value, expected[tensor]), f"{name}, T = {T}, B = {B}: {tensor} differs"


def test_every_bit_agrees_with_the_loop_over_heads_at_every_length():
    for T in range(1, 41):
        assert_every_bit_agrees(T, (2, 3, 17)[T % 3])


@pytest.mark.slow
@pytest.mark.parametrize("B", [2, 3, 17])
def test_every_bit_agrees_at_every_length_in_every_batch(B):
    for T in range(1, 41):
        assert_every_bit_agrees(T, B)


def test_native_arithmetic_is_seen_to_differ():
    """The sweep above can fail: with the input's gradient as one product, it does."""
    D, reference = 128, make_variant("per_head")
    weights = {name: torch.randn(shape) * 0.2 for name, shape in reference(D, 4).canonical_shapes().items()}
    query, memory = torch.randn(3, 9, D), torch.randn(3, 10, D)
    expected = bits(reference, weights, query, memory, 0.0)
    native = bits(make_variant("fused", "native"), weights, query, memory, 0.0)
    assert torch.equal(native["output"], expected["output"])
    assert not torch.equal(native["query"], expected["query"])


@pytest.mark.parametrize("shape", [(2, 3, 5), (4, 8), (1,), (3, 7, 1)])
def test_dropout_drawn_at_once_equals_dropout_drawn_head_by_head(shape):
    state = torch.get_rng_state()
    at_once = _keep(5, shape, 0.3, torch.device("cpu"))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    one_by_one = torch.cat([_keep(1, shape, 0.3, torch.device("cpu")) for _ in range(5)])
    assert torch.equal(at_once, one_by_one)
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_dropout_probability_and_scale(p):
    x = torch.ones(1000, 1000)
    dropped = dropout(x, p, training=True)
    kept = dropped != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p)) ** 0.5 / 1000)
    assert dropped[kept].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)
    # Neighbours are independent, also the four decisions of one random word.
    pairs = (kept[:, :-1] & kept[:, 1:]).double().mean().item()
    assert pairs == pytest.approx((1 - p) ** 2, abs=0.003)
