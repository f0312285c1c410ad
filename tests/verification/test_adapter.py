"""Certified user classes as variants: the contract, other sizes, other biases, and what they refuse."""

import json
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from certificates import FOREIGN, certificate_of
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

import lockstep
from lockstep.attention import reference
from lockstep.attention.fused import FusedAttention
from lockstep.verification.adapter import ForeignAttention

GENERAL = ["question.py:MultiHeadAttention", "fused01.py:MultiHeadAttention", "time_first.py:MultiheadAttention"]
X_ONLY = "interleaved.py:InterleavedAttention"
CAUSAL = "gpt.py:CausalSelfAttention"
WITHOUT_BIAS = "einsum3d.py:Attention"


@cache
def saved(target: str) -> str:
    """What ``save=`` writes."""
    return certificate_of(target).yaml()


def adapted(target: str, d_model: int = 24, num_heads: int = 3, **options: Any) -> ForeignAttention:
    """Through the configuration file, as the trainer does it."""
    return built(saved(target), d_model=d_model, num_heads=num_heads, **options)


def built(configuration: str, **options: Any) -> ForeignAttention:
    torch.manual_seed(0)
    try:
        module = instantiate(OmegaConf.create(configuration), **options)
    except InstantiationException as error:
        raise (error.__cause__ or error) from None
    assert isinstance(module, ForeignAttention)
    return module.double().eval()


def inputs(*lengths: int, D: int = 24) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, T, D, dtype=torch.float64, requires_grad=True) for T in lengths]


def expected(module: ForeignAttention, *call: Any, **options: Any) -> Tensor:
    return reference.attention(module.to_canonical(dict(module.named_parameters())), *call, **options)


@pytest.mark.parametrize(
    ("target", "bias"),
    [
        *((target, True) for target in [*GENERAL, X_ONLY, CAUSAL]),
        *((t, False) for t in (GENERAL[1], X_ONLY, WITHOUT_BIAS)),
    ],
)
def test_conversion_is_exact_there_and_back(target: str, bias: bool) -> None:
    module = adapted(target, 64, 4, bias=bias)
    own = dict(module.named_parameters())
    canonical = module.to_canonical(own)
    assert {name: tensor.shape for name, tensor in canonical.items()} == module.canonical_shapes()
    back = module.from_canonical(canonical)
    assert set(back) == set(own)
    assert all(torch.equal(back[name], own[name]) for name in own)


@pytest.mark.parametrize("target", GENERAL)
def test_outputs_and_gradients_are_the_references(target: str) -> None:
    """Some rows see nothing: they get the output bias alone, and their gradients are zero."""
    module = adapted(target)
    call = inputs(5, 7, 7)
    wanted = [*call, *module.parameters()]
    for mask_shape, is_causal in product([None, (2, 1, 5, 7), (2, 1, 1, 7), (5, 7)], [False, True]):
        mask = None if mask_shape is None else torch.rand(mask_shape) < 0.6
        if mask is not None:
            mask[..., 0, :] = False
        given = None if mask is None else mask.clone()
        out, right = module(*call, mask, is_causal), expected(module, *call, given, is_causal)
        assert torch.allclose(out, right, rtol=0, atol=1e-12), (mask_shape, is_causal)
        direction = torch.randn_like(out)
        for a, b in zip(
            torch.autograd.grad(out, wanted, direction), torch.autograd.grad(right, wanted, direction), strict=True
        ):
            assert torch.allclose(a, b, rtol=0, atol=1e-11), (mask_shape, is_causal)
        assert mask is None or torch.equal(mask, given)


def test_a_row_may_be_empty_in_one_head_only() -> None:
    module = adapted("fused01.py:MultiHeadAttention")
    call = inputs(5, 7, 7)
    mask = torch.rand(2, 3, 5, 7) < 0.5
    mask[0, 1, 2] = False
    mask[1, :, 3] = False
    out = module(*call, mask)
    assert torch.allclose(out, expected(module, *call, mask), rtol=0, atol=1e-12)
    assert torch.equal(out[1, 3], module.to_canonical(dict(module.named_parameters()))["output.bias"])


def test_left_padding_under_causality() -> None:
    """[PAD, token] with V = [2, 4], one head of one channel: the first query sees nothing, the second itself."""
    module = adapted("fused01.py:MultiHeadAttention", 1, 1, bias=False)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1)
    value = torch.tensor([[[2.0], [4.0]]], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros_like(value)
    out = module(zero, zero, value, torch.tensor([False, True])[None, None, None], is_causal=True)
    assert out.flatten().tolist() == [0, 4]
    out.sum().backward()
    assert value.grad is not None
    assert value.grad.flatten().tolist() == [0, 1]


def test_a_causal_class_of_x_alone() -> None:
    module = adapted(CAUSAL)
    (x,) = inputs(6)
    views = x.view_as(x), x.view_as(x), x.view_as(x)
    assert torch.allclose(module(*views, is_causal=True), expected(module, x, x, x, is_causal=True), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="always causal"):
        module(*views)
    with pytest.raises(ValueError, match="takes no mask"):
        module(*views, torch.ones(6, 6, dtype=torch.bool).tril(1), is_causal=True)


def test_what_a_class_cannot_do_is_refused() -> None:
    query, key, value = inputs(5, 7, 7)
    with pytest.raises(ValueError, match="takes x alone"):
        adapted(X_ONLY)(query, key, value)
    with pytest.raises(ValueError, match="key and value must be one tensor"):
        adapted(WITHOUT_BIAS, bias=False)(query, key, value)
    with pytest.raises(ValueError, match="biases for no role, bias=True asks for"):
        adapted(WITHOUT_BIAS, bias=True)
    with pytest.raises(ValueError, match="no attention dropout"):
        adapted("question.py:MultiHeadAttention", dropout=0.1)
    with pytest.raises(ValueError, match="differs along the heads"):
        adapted("question.py:MultiHeadAttention")(query, key, value, torch.rand(2, 3, 5, 7) < 0.5)


@pytest.mark.usefixtures("few_mutants")
def test_a_class_that_is_another_at_another_size(tmp_path: Path) -> None:
    source = (FOREIGN / "fused01.py").read_text().replace("self.d_k**0.5", "4")
    (tmp_path / "fixed.py").write_text(source)
    certificate = lockstep.verify(f"{tmp_path}/fixed.py:MultiHeadAttention", thorough=False)
    assert certificate.verdict == "equivalent", "at a head_dim of 16 it is"
    with pytest.raises(ValueError, match="is not multi-head attention at d_model=24, num_heads=3"):
        built(certificate.yaml(), d_model=24, num_heads=3)


def test_dropout_is_passed_on() -> None:
    module = adapted("fused01.py:MultiHeadAttention", dropout=0.5)
    (x,) = inputs(5)
    assert torch.allclose(module(x, x, x), expected(module, x, x, x), rtol=0, atol=1e-12)
    module.train()
    assert not torch.allclose(module(x, x, x), expected(module, x, x, x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("target", GENERAL)
def test_it_learns_as_the_fused_variant_does(target: str) -> None:
    """Twenty Adam steps from one start: the same weights, but for the key bias, whose gradient is rounding."""
    mine, fused = adapted(target), FusedAttention(24, 3).double()
    canonical = {name: t.detach().clone() for name, t in mine.to_canonical(dict(mine.named_parameters())).items()}
    fused.load_state_dict(fused.from_canonical(canonical))
    (x, goal) = (t.detach() for t in inputs(6, 6))
    for module in (mine, fused):
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(20):
            optimiser.zero_grad()
            (module(x, x, x, is_causal=True) - goal).square().mean().backward()
            optimiser.step()
    ours, theirs = (m.to_canonical({n: p.detach() for n, p in m.named_parameters()}) for m in (mine, fused))
    for name in ours:
        if name != "key.bias":
            assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9), name
    assert not torch.allclose(ours["value.weight"], canonical["value.weight"], atol=1e-3)


def test_the_global_generator_sees_the_class_alone() -> None:
    """Comparing with the reference draws nothing."""
    module = adapted("fused01.py:MultiHeadAttention")
    after = torch.get_rng_state()
    torch.manual_seed(0)
    for _ in range(4):
        torch.nn.Linear(24, 24)
    assert torch.equal(torch.get_rng_state(), after)
    assert module.target.endswith("fused01.py:MultiHeadAttention")


def test_plain_data_survives_json() -> None:
    certificate = certificate_of(X_ONLY)
    plain = json.loads(json.dumps([asdict(layout) for layout in certificate.mapping]))
    assert plain[0] == {
        "parameter": "query_key_value.weight", "axes": "(h r k) d", "roles": ["query", "key", "value"], "heads": []
    }  # fmt: skip


def test_layers_made_by_the_first_call_and_arguments_given_none() -> None:
    """In a class that passes its arguments on to the one that it inherits."""
    module = adapted("hidden.py:Passes")
    query, memory = inputs(5, 7)
    found = module(query, memory, memory)
    assert torch.allclose(found, expected(module, query, memory, memory), rtol=0, atol=1e-12)
