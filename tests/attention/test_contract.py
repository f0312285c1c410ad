"""Every variant in conf/attention faces the whole contract."""

from functools import cache

import pytest
import torch
from conftest import VARIANTS, make_variant
from oracle import oracle

from lockstep.attention.fused import FusedAttention

EQUIVALENT = [name for name in VARIANTS if make_variant(name)(4, 2).canonical]


def randomize(module, dtype=torch.float64):
    """Distinct random weights, biases included, large enough for attention far from uniform."""
    module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.6)
    return module


def canonical(module):
    return module.to_canonical(dict(module.named_parameters()))


def inputs(B, T_q, T_k, D, dtype=torch.float64):
    return [torch.randn(B, T, D, dtype=dtype, requires_grad=True) for T in (T_q, T_k, T_k)]


def masks(B, H, T_q, T_k):
    """Of each kind: none, over keys, over queries and keys, for each head, with rows that are empty."""
    padding = torch.ones(B, 1, 1, T_k, dtype=torch.bool)
    padding[1, ..., T_k // 2 :] = T_k == 1
    per_head = torch.rand(B, H, T_q, T_k) > 0.5
    per_head[0, 0, 0] = False
    samples = torch.rand(B, T_q, T_k) > 0.4
    samples[1, 0] = False
    return {
        "none": None,
        "padding": padding,
        "pairs": torch.rand(T_q, T_k) > 0.3,
        "samples": samples,
        "per_head": per_head,
    }


@cache
def right_answers(own: str, D, H, T_q, T_k, bias):
    """A module, its canonical weights, and for each mask with and without causality: the inputs, a cotangent, and the
    oracle's output and gradients.

    ``own`` is a variant with weights that no other has; all others are given the same ones, so one oracle serves them.
    """
    made = randomize(make_variant(own or "per_head")(D, H, bias=bias))
    weights = canonical(made)
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in weights.items()}
    answers = []
    for kind, mask in masks(2, H, T_q, T_k).items():
        for is_causal in (False, True):
            xs = inputs(2, T_q, T_k, D)
            expected, _ = oracle(leaves, *xs, mask, is_causal)
            cotangent = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, [*xs, *leaves.values()], cotangent, materialize_grads=True)
            answers.append((kind, (*xs, mask, is_causal), cotangent, expected.detach(), wanted))
    return made, leaves, answers


# Every pair of lengths, every size with longer queries or longer keys.
@pytest.mark.parametrize(
    ("D", "H", "T_q", "T_k", "bias"),
    [
        *[(12, 4, 3, 5, True), (12, 4, 1, 4, False), (12, 4, 5, 1, True)],
        *[(5, 1, 3, 3, True), (5, 1, 3, 5, False), (3, 3, 4, 3, False)],
    ],
)
@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_and_all_gradients_equal_the_formula_written_out(name, D, H, T_q, T_k, bias):
    module = make_variant(name)(D, H, bias=bias).double()
    made, weights, answers = right_answers("" if module.canonical else name, D, H, T_q, T_k, bias)
    module.load_state_dict(module.from_canonical(weights) if module.canonical else made.state_dict())
    for kind, call, cotangent, expected, wanted in answers:
        for training in (True, False):
            out = module.train(training)(*call)
            assert (out - expected).abs().max() < 1e-12, kind
            got = torch.autograd.grad(out, [*call[:3], *module.parameters()], cotangent)
            with torch.no_grad():
                torch.testing.assert_close(module(*call), expected, rtol=0, atol=1e-12)
            if module.canonical:
                names = [name for name, _ in module.named_parameters()]
                gradients = module.to_canonical(dict(zip(names, got[3:], strict=True)))
                got = [*got[:3], *(gradients[name] for name in weights)]
            # Without a canonical layout only the gradients of the inputs have a counterpart.
            for a, b in zip(got if module.canonical else got[:3], wanted, strict=module.canonical):
                assert (a - b).abs().max() < 1e-11, kind


def test_self_attention_on_one_tensor_in_every_mode(variant):
    """The very same object three times, as in a hurry: fast paths for it must not change masks or gradients."""
    module = randomize(variant(12, 4))
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    mask = masks(2, 4, 5, 5)["per_head"]
    expected, _ = oracle(canonical(module), x, x, x, mask)
    (wanted,) = torch.autograd.grad(expected.sin().sum(), x)
    for training in (True, False):
        out = module.train(training)(x, x, x, mask)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), x)[0], wanted, rtol=0, atol=1e-11)
        with torch.no_grad():
            torch.testing.assert_close(module(x, x, x, mask), expected, rtol=0, atol=1e-12)


def test_tensors_that_share_memory_keep_gradients_of_their_own(variant):
    module = randomize(variant(12, 4))
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    expected, got = (
        torch.autograd.grad(function(*leaves).sin().sum(), leaves)
        for function, leaves in (
            (module, [x.detach().requires_grad_() for _ in range(3)]),
            (lambda *xs: oracle(canonical(module), *xs)[0], [x.clone().requires_grad_() for _ in range(3)]),
        )
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_float32_error_is_of_float32_size(variant):
    module = randomize(variant(32, 4)).float()
    weights = {name: tensor.detach().double() for name, tensor in canonical(module).items()}
    xs = inputs(3, 5, 7, 32, torch.float32)
    expected, _ = oracle(weights, *(x.double() for x in xs))
    error = (module(*xs) - expected).abs().max() / expected.abs().max()
    assert error < 1e-6


def test_pictures_are_the_true_weights_each_head_apart(variant):
    module = randomize(variant(12, 4))
    q, k, v = inputs(2, 3, 5, 12)
    for mask in masks(2, 4, 3, 5).values():
        before = None if mask is None else mask.clone()
        for training in (True, False):
            weights = module.train(training).attention_weights(q, k, mask, is_causal=True)
            _, expected = oracle(canonical(module), q, k, v, mask, is_causal=True)
            torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
        assert mask is None or torch.equal(mask, before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", EQUIVALENT)
def test_conversion_is_a_bijection_of_bits(name, bias):
    module = randomize(make_variant(name)(12, 4, bias=bias), torch.float32)
    weights = canonical(module)
    assert {n: t.shape for n, t in weights.items()} == module.canonical_shapes()
    assert sum(t.numel() for t in weights.values()) == sum(p.numel() for p in module.parameters())
    back = module.from_canonical(weights)
    assert back.keys() == dict(module.named_parameters()).keys()
    for parameter_name, parameter in module.named_parameters():
        assert torch.equal(back[parameter_name], parameter)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_every_variant_has_as_many_parameters_as_the_paper_says(name):
    module = make_variant(name)(512, 8)
    assert sum(p.numel() for p in module.parameters()) == 4 * 512 * 512 + 4 * 512 == 1_050_624


def test_shared_heads_is_a_contrast():
    module = make_variant("shared_heads")(512, 8)
    assert not module.canonical
    assert sum(p.numel() for p in module.parameters()) == 3 * (512 + 1) * 64 + 513 * 512
    weights = module.attention_weights(torch.randn(2, 3, 512), torch.randn(2, 4, 512))
    assert torch.equal(weights[:, :1].expand_as(weights), weights)


def test_dropout_drops_in_training_only_and_keeps_the_mean(variant):
    module = randomize(variant(8, 2, dropout=0.25, bias=False))
    q, k, v = inputs(2, 3, 5, 8)
    expected, _ = oracle(canonical(module), q, k, v)
    with torch.no_grad():
        samples = module(*(x.repeat(4000, 1, 1) for x in (q, k, v))).unflatten(0, (4000, 2))
        assert samples.std(dim=0).min() > 0.01
        deviation = (samples.mean(dim=0) - expected).abs() / (samples.std(dim=0) / 4000**0.5)
        assert deviation.max() < 5
        torch.testing.assert_close(module.eval()(q, k, v), expected, rtol=0, atol=1e-12)


def test_in_eval_nothing_is_drawn(variant):
    module = variant(8, 2, dropout=0.5).eval()
    xs = inputs(2, 3, 3, 8, torch.float32)
    before = torch.get_rng_state()
    module(*xs)
    module.attention_weights(*xs[:2])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(variant, dtype):
    module = randomize(variant(16, 2))
    xs = inputs(2, 4, 6, 16)
    mask = masks(2, 2, 4, 6)["per_head"]
    expected, _ = oracle(canonical(module), *xs, mask, is_causal=True)
    half = module.to(dtype)(*(x.to(dtype) for x in xs), mask, True)
    assert half.dtype == dtype
    assert (half.double() - expected).abs().max() < 0.05 * expected.abs().max()


def test_refuses_sizes_that_do_not_fit(variant):
    with pytest.raises(ValueError, match="num_heads=3, d_model=8"):
        variant(8, 3)
    with pytest.raises(ValueError, match="dropout"):
        variant(8, 2, dropout=1.0)
    with pytest.raises(ValueError, match=r"does not broadcast to \(B, H, T_q, T_k\) = \(2, 2, 3, 5\)"):
        variant(8, 2)(*inputs(2, 3, 5, 8, torch.float32), torch.ones(2, 5, dtype=torch.bool))


def test_a_canonical_variant_without_a_layout_is_told_what_is_missing():
    class Bare(FusedAttention):
        layout = ()

    with pytest.raises(ValueError, match=r"Bare.layout does not say where key.bias, .*value.weight lie"):
        canonical(Bare(4, 2))
