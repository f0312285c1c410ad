"""Failures that people who write attention have met, each with the right numbers.

The contract holds every variant to the formula written out; what only the formula decides is asked of one.
"""

import math

import pytest
import torch
from conftest import make_variant

from lockstep.attention.heads import merge_heads, split_heads
from lockstep.attention.masks import masked_softmax


def identity(variant, D, H, dtype=torch.float64, **options):
    """A variant whose four projections are identities without bias."""
    module = variant(D, H, bias=False, **options).to(dtype)
    eye = torch.eye(D, dtype=dtype)
    canonical = {name: eye.view(shape).clone() for name, shape in module.canonical_shapes().items()}
    with torch.no_grad():
        for name, tensor in module.from_canonical(canonical).items():
            module.get_parameter(name).copy_(tensor)
    return module


def column(*values, dtype=torch.float64):
    """One sample, one channel: (1, T, 1)."""
    return torch.tensor(values, dtype=dtype).view(1, -1, 1)


@pytest.fixture
def one():
    return make_variant("fused")


def modes(module):
    """Train and eval, with gradients and without."""
    for training in (True, False):
        for grad in (True, False):
            module.train(training)
            with torch.set_grad_enabled(grad):
                yield


def test_a_query_that_sees_nothing_is_zero_with_finite_gradients(variant):
    module = identity(variant, 1, 1)
    mask = torch.tensor([[False, False], [True, True]])
    zeros = torch.zeros(1, 2, 1, dtype=torch.float64)
    for _ in modes(module):
        torch.testing.assert_close(module(zeros, zeros, column(2, 4), mask), column(0, 3))
    q, k, v = zeros.clone().requires_grad_(), zeros.clone().requires_grad_(), column(2, 4).requires_grad_()
    module.train()(q, k, v, mask).sum().backward()
    torch.testing.assert_close(v.grad, column(0.5, 0.5))
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_left_padding_under_a_causal_mask_gives_the_bias_alone(variant):
    module = variant(4, 2).double()
    x = torch.randn(1, 2, 4, dtype=torch.float64)
    out = module(x, x, x, torch.tensor([False, True])[None, None, None], True)
    bias = module.to_canonical(dict(module.named_parameters()))["output.bias"]
    torch.testing.assert_close(out[0, 0], bias, rtol=0, atol=1e-15)


def test_true_means_may_attend_and_ones_and_zeros_are_refused(variant):
    module = identity(variant, 1, 1)
    zeros, triangle = torch.zeros(1, 3, 1, dtype=torch.float64), torch.ones(3, 3, dtype=torch.bool).tril()
    torch.testing.assert_close(module(zeros, zeros, column(1, 2, 3), triangle), column(1, 1.5, 2))
    with pytest.raises(ValueError, match=r"must be boolean with True = may attend, got torch.float32"):
        module(zeros, zeros, column(1, 2, 3), triangle.float())


def test_masks_combine_and_additive_ones_are_refused_in_every_mode(variant):
    module = identity(variant, 1, 1)
    padding = torch.tensor([0.0, float("-inf")], dtype=torch.float64)
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    both = (padding == 0) & torch.ones(1, 2, dtype=torch.bool)
    for _ in modes(module):
        torch.testing.assert_close(module(zero, column(0, 0), column(7, 9), both), column(7))
        for additive in (padding, torch.tensor([0, math.log(3)])):
            with pytest.raises(ValueError, match="additive"):
                module(zero, column(0, 0), column(7, 9), additive)


def test_pictures_never_change_causality(variant):
    module = identity(variant, 1, 1)
    zeros = torch.zeros(1, 3, 1, dtype=torch.float64)
    padding = torch.tensor([True, True, False])[None, None, None]
    rows = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    for _ in modes(module):
        for _again in range(2):
            torch.testing.assert_close(module(zeros, zeros, column(1, 2, 3), None, True), column(1, 1.5, 2))
            torch.testing.assert_close(module.attention_weights(zeros, zeros, None, True)[0, 0], rows)
        torch.testing.assert_close(module(zeros, zeros, column(1, 2, 3), padding, True), column(1, 1.5, 1.5))


def test_half_precision_masks_hide_exactly(variant):
    scores = torch.ones(1, 2, dtype=torch.float16)
    hidden = masked_softmax(scores, torch.tensor([True, False]))
    assert torch.equal(hidden, torch.tensor([[1.0, 0.0]], dtype=torch.float16))
    module = identity(variant, 1, 1, torch.float16)
    zeros = torch.zeros(1, 2, 1, dtype=torch.float16)
    values = column(3, 5, dtype=torch.float16)
    # Query 0 is barred from key 1 by padding and by causality at once.
    out = module(zeros, zeros, values, torch.tensor([True, False])[None, None, None], True)
    assert torch.equal(out, column(3, 3, dtype=torch.float16))


def test_no_dropout_in_eval_nor_in_pictures(variant):
    module = identity(variant, 4, 2, dropout=0.5).eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.equal(module(x, x, x), module(x, x, x))
    torch.testing.assert_close(module(x, x, x), identity(variant, 4, 2)(x, x, x), rtol=0, atol=1e-15)
    lonely = module.train().attention_weights(x, x[:, :1])
    assert torch.equal(lonely, torch.ones_like(lonely))
    rows = module.attention_weights(x, x).sum(dim=-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_heads_take_channels_not_time():
    x = torch.arange(8.0).view(1, 2, 4)
    heads = split_heads(x, 2)
    assert heads[0].tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert torch.equal(merge_heads(heads), x)


def test_scores_are_divided_by_the_root_of_head_dim(one):
    module = identity(one, 16, 4)
    query, keys = torch.zeros(1, 1, 16, dtype=torch.float64), torch.zeros(1, 2, 16, dtype=torch.float64)
    query[..., 0] = 2
    keys[0, 0, 0] = 2
    values = torch.zeros(1, 2, 16, dtype=torch.float64)
    values[0, 0, 0] = 1
    expected = torch.tensor([0.880797, 0.119203], dtype=torch.float64)
    torch.testing.assert_close(module.attention_weights(query, keys)[0, 0, 0], expected, rtol=0, atol=1e-6)
    assert module(query, keys, values)[0, 0, 0].item() == pytest.approx(0.880797, abs=1e-6)


def test_softmax_runs_over_keys(one):
    module = identity(one, 1, 1)
    weights = module.attention_weights(column(1, 0), column(0, math.log(3)))[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64))
    out = module(column(1, 0), column(0, math.log(3)), column(4, 8))
    torch.testing.assert_close(out, column(7, 6))


def test_a_key_bias_changes_nothing(one):
    module = one(1, 1).double()
    canonical = {name: torch.zeros(shape).double() for name, shape in module.canonical_shapes().items()}
    canonical["query.bias"] += 1
    canonical["key.weight"] += 1
    for bias in (0.0, 10.0):
        canonical["key.bias"] = torch.full((1, 1), bias, dtype=torch.float64)
        with torch.no_grad():
            for name, tensor in module.from_canonical(canonical).items():
                module.get_parameter(name).copy_(tensor)
        weights = module.attention_weights(column(0), column(1, 2, 3))
        expected = torch.tensor([0.090031, 0.244728, 0.665241], dtype=torch.float64)
        torch.testing.assert_close(weights[0, 0, 0], expected, rtol=0, atol=1e-6)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    wide = one(8, 2).double()
    wide(x, x, x).square().sum().backward()
    gradients = wide.to_canonical({name: p.grad for name, p in wide.named_parameters()})
    assert gradients["key.bias"].abs().max() < 1e-13 < gradients["query.bias"].abs().max()


@pytest.mark.parametrize(("T_q", "T_k", "expected"), [(1, 4, [2.5]), (2, 5, [2.5, 3.0])])
def test_causality_is_aligned_at_the_lower_right(one, T_q, T_k, expected):
    module = identity(one, 1, 1)
    q, k = torch.zeros(1, T_q, 1, dtype=torch.float64), torch.zeros(1, T_k, 1, dtype=torch.float64)
    torch.testing.assert_close(module(q, k, column(*range(1, T_k + 1)), None, True), column(*expected))


def test_a_mask_of_three_axes_belongs_to_samples_also_where_there_are_as_many_heads(variant):
    module = identity(variant, 2, 2)
    zeros = torch.zeros(2, 2, 2, dtype=torch.float64)
    values = torch.tensor([[[10, 10], [20, 20]]] * 2, dtype=torch.float64)
    of_samples = torch.tensor([[[True, False]], [[False, True]]])  # (B, 1, T_k)
    expected = torch.tensor([[[10, 10]] * 2, [[20, 20]] * 2], dtype=torch.float64)
    for _ in modes(module):
        torch.testing.assert_close(module(zeros, zeros, values, of_samples.expand(2, 2, 2)), expected)
        torch.testing.assert_close(module(zeros, zeros, values, of_samples), expected)
        torch.testing.assert_close(module(zeros, zeros, values, of_samples[:, None]), expected)
    weights = module.attention_weights(zeros, zeros, of_samples)
    assert weights[:, :, 0].tolist() == [[[1, 0]] * 2, [[0, 1]] * 2]


def test_a_mask_of_other_axes_or_sizes_is_refused(variant):
    module, x = variant(2, 2), torch.zeros(2, 2, 2)
    for shape in [(), (2,), (2, 2, 2, 2, 2), (3, 1, 2), (2, 3)]:
        with pytest.raises(ValueError, match=r"three axes are \(B, T_q, T_k\)"):
            module(x, x, x, torch.ones(shape, dtype=torch.bool))
