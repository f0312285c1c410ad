"""What holds for any attention, also for a research idea that computes something else: masks, gradients, dropout,
pictures."""

import pytest
import torch


@pytest.fixture
def module(any_variant):
    """Float64, distinct random weights, in eval mode."""
    module = any_variant(12, 4, dropout=0.5).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module


def inputs(B=2, T_q=3, T_k=5):
    return [torch.randn(B, T, 12, dtype=torch.float64) for T in (T_q, T_k, T_k)]


def test_hidden_keys_change_nothing(module):
    q, k, v = inputs()
    mask = torch.rand(2, 4, 3, 5) > 0.4
    mask[..., 4] = False
    mask[1, :, 2] = False  # a query that sees nothing
    out, other = module(q, k, v, mask), [x.clone() for x in (k, v)]
    for x in other:
        x[:, 4] = 1e3
    assert out.isfinite().all()
    torch.testing.assert_close(module(q, *other, mask), out, rtol=0, atol=1e-12)


def test_the_future_changes_nothing(module):
    q, k, v = inputs(T_q=5)
    out = module(q, k, v, None, True)
    for i in range(4):
        later_k, later_v = k.clone(), v.clone()
        later_k[:, i + 1 :] += 1
        later_v[:, i + 1 :] -= 1
        torch.testing.assert_close(
            module(q, later_k, later_v, None, True)[:, : i + 1], out[:, : i + 1], rtol=0, atol=1e-12
        )
        assert not torch.equal(module(q, later_k, later_v, None, True)[:, i + 1 :], out[:, i + 1 :])


def test_gradients_are_those_of_the_function(module):
    mask = torch.rand(2, 1, 3, 5) > 0.4
    mask[0, 0, 1] = False
    leaves = [x.requires_grad_() for x in inputs()]
    assert torch.autograd.gradcheck(lambda *xs: module(*xs, mask), leaves, fast_mode=True)
    module(*leaves, mask).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_neighbours_in_the_batch_change_nothing(module):
    q, k, v = inputs(B=3)
    out = module(q, k, v)
    torch.testing.assert_close(module(q[1:2], k[1:2], v[1:2]), out[1:2], rtol=0, atol=1e-12)


def test_looking_is_true_to_the_mask_and_changes_nothing(module):
    q, k, v = inputs()
    mask = torch.rand(2, 1, 3, 5) > 0.4
    before, state = mask.clone(), torch.get_rng_state()
    out = module(q, k, v, mask)
    weights = module.attention_weights(q, k, mask)
    assert weights.shape == (2, 4, 3, 5)
    assert weights.masked_select(~mask.expand_as(weights)).abs().max() == 0
    rows = mask.any(dim=-1).expand(2, 4, 3)
    torch.testing.assert_close(weights.sum(dim=-1), rows.double())
    assert torch.equal(module(q, k, v, mask), out)
    assert torch.equal(mask, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_drops_in_training_alone_and_nothing_is_drawn_without_it(module, any_variant):
    xs = inputs()
    undisturbed = any_variant(12, 4, dropout=0.0).double().train()
    for silent in (module, undisturbed):
        state = torch.get_rng_state()
        assert torch.equal(silent(*xs), silent(*xs))
        assert torch.equal(torch.get_rng_state(), state)
    module.train()
    state = torch.get_rng_state()
    first, second = module(*xs), module(*xs)
    torch.set_rng_state(state)
    assert torch.equal(module(*xs), first)
    assert not torch.equal(first, second)


def test_dropout_drops_at_its_rate(any_variant):
    """One head, one key: where its only weight is dropped, the query is as one that may see nothing."""
    module = any_variant(12, 1, dropout=0.25).double().train()
    q, k, v = (x.expand(1000, 1, 12) for x in inputs(B=1, T_q=1, T_k=1))
    nothing = module(q, k, v, torch.zeros(1, 1, dtype=torch.bool))
    dropped = (module(q, k, v) - nothing).abs().amax(dim=(1, 2)) < 1e-12
    assert abs(dropped.double().mean() - 0.25) < 5 * (0.25 * 0.75 / 1000) ** 0.5
