"""Moments follow names through every layout."""

import pytest
import torch
from conftest import make_variant
from torch import nn

from lockstep.training.optimizer_state import canonical_state, load_canonical_state
from lockstep.transformer.canonical import canonical_weights, load_canonical, to_canonical

LAYOUTS = ["per_head", "fused", "packed", "einsum", "torch_mha"]


def build(name):
    return nn.ModuleDict({"attention": make_variant(name)(64, 2), "after": nn.Linear(64, 3)})


def trained(model, optimizer, steps=3):
    for step in range(steps):
        x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(step)).to(model["after"].weight.dtype)
        optimizer.zero_grad()
        model["after"](model["attention"](x, x, x)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adagrad])
def test_there_and_back_is_exact(layout, make):
    first = build("per_head")
    optimizer = make(first.parameters(), lr=1e-2)
    trained(first, optimizer)
    state = canonical_state(first, optimizer)

    other = build(layout)
    load_canonical(other, canonical_weights(first))
    continued = make(other.parameters(), lr=1e-2)
    load_canonical_state(other, continued, state)
    back = canonical_state(other, continued)
    for kind in ("moments", "numbers"):
        assert getattr(back, kind).keys() == getattr(state, kind).keys()
        for key, tensors in getattr(state, kind).items():
            assert all(torch.equal(getattr(back, kind)[key][name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_next_step_is_the_one_that_would_have_been_taken(layout):
    first, other = build("per_head").double(), build(layout).double()
    optimizer = torch.optim.Adam(first.parameters(), lr=1e-2)
    trained(first, optimizer, steps=10)
    load_canonical(other, canonical_weights(first))
    continued = torch.optim.Adam(other.parameters(), lr=1e-2)
    load_canonical_state(other, continued, canonical_state(first, optimizer))
    for model, o in ((first, optimizer), (other, continued)):
        gradients = {n: torch.ones_like(p) for n, p in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        o.step()
    expected = canonical_weights(first)
    for name, tensor in canonical_weights(other).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-15)
    assert to_canonical(other, dict(other.named_parameters())).keys() == expected.keys()


def test_merged_parameters_must_have_taken_the_same_steps():
    first, other = build("per_head"), build("fused")
    optimizer = torch.optim.Adam(first.parameters())
    trained(first, optimizer)
    optimizer.state[first["attention"].heads[1].query.weight]["step"] += 1
    with pytest.raises(ValueError, match=r"step differs among the parameters that make up attention\.query\.weight"):
        load_canonical_state(other, torch.optim.Adam(other.parameters()), canonical_state(first, optimizer))


def test_state_of_rows_and_columns_has_no_other_layout():
    model = build("fused")
    optimizer = torch.optim.Adafactor(model.parameters())
    trained(model, optimizer)
    with pytest.raises(ValueError, match="in a shape of its own"):
        canonical_state(model, optimizer)
