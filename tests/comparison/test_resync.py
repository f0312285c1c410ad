"""Nulls, controls, noise, and differences that are there by chance."""

from dataclasses import replace

import pytest
import torch
from comparing import conditions, participants

from lockstep.attention.fused import FusedAttention
from lockstep.comparison import resync
from lockstep.comparison.resync import measure, noise_floor, resynchronised_step, summary
from lockstep.comparison.step import (
    Step,
    bits_equal,
    moved_by_one_ulp,
    random_and_distinct,
    take_step,
    with_scaled_scores,
)
from lockstep.transformer.canonical import canonical_weights, load_canonical


@pytest.fixture(scope="module")
def two():
    return participants("per_head", "fused")


def test_bits_are_compared_not_values():
    zero, nan = torch.tensor([0.0]), torch.tensor([float("nan")])
    assert not bits_equal(zero, -zero)
    assert bits_equal(nan, nan.clone())
    assert not bits_equal(zero, zero.double())
    assert not bits_equal(zero, torch.zeros(2))
    assert bits_equal(torch.tensor(0.1), torch.tensor(0.1))


def test_a_null_moves_every_weight_to_a_neighbour_in_both_directions():
    weights = {"a": torch.randn(1000), "b": torch.zeros(100, dtype=torch.float64)}
    moved = moved_by_one_ulp(weights, 0, "null 0")
    for name, tensor in weights.items():
        up = torch.nextafter(tensor, torch.full_like(tensor, torch.inf))
        down = torch.nextafter(tensor, torch.full_like(tensor, -torch.inf))
        assert ((moved[name] == up) | (moved[name] == down)).all()
        assert 0.3 < (moved[name] == up).double().mean() < 0.7
    assert all(torch.equal(moved[n], moved_by_one_ulp(weights, 0, "null 0")[n]) for n in weights)
    assert not torch.equal(moved["a"], moved_by_one_ulp(weights, 0, "null 1")["a"])


def test_a_control_scales_the_scores_and_nothing_else():
    attention = FusedAttention(64, 2).double()
    names = {
        f"attention.{n}": t.detach().clone()
        for n, t in attention.to_canonical(dict(attention.named_parameters())).items()
    }
    scaled = {n.removeprefix("attention."): t for n, t in with_scaled_scores(names, 1.25).items()}
    x = torch.randn(2, 5, 64, dtype=torch.float64)
    weights = attention.attention_weights(x, x)
    attention.load_state_dict(attention.from_canonical(scaled))
    powers = weights**1.25
    torch.testing.assert_close(attention.attention_weights(x, x), powers / powers.sum(-1, keepdim=True))
    changed = [name for name in names if not torch.equal(names[name], scaled[name.removeprefix("attention.")])]
    assert changed == ["attention.query.weight", "attention.query.bias"]


def test_the_check_starts_from_weights_that_are_all_random_and_distinct(two):
    (variant, _), _, _ = two
    weights = random_and_distinct(canonical_weights(variant.build()), 0)
    for name, tensor in weights.items():
        assert tensor.flatten().unique().numel() == tensor.numel(), name
    firsts = torch.stack([tensor.flatten()[0] for tensor in weights.values()])
    assert firsts.unique().numel() == len(weights)


def test_laid_weights_are_read_back_to_the_bit(two):
    variants, _, _ = two
    weights = random_and_distinct(canonical_weights(variants[0].build()), 0)
    for variant in variants:
        model = variant.build().double()
        load_canonical(model, weights)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in canonical_weights(model).items())


def test_noise_is_the_lower_quartile_of_the_nulls_and_no_less_than_rounding():
    def step(loss, gradient):
        return Step(torch.tensor(loss), {"w": torch.tensor([gradient, 0.0])}, {})

    truth = step(2.0, 1.0)
    nulls = [step(2.0, 1.0 + distance) for distance in (0.5, 0.1, 0.4, 0.2, 0.3)]
    noise = noise_floor(truth, nulls, {})
    assert noise["gradient", "w"] == pytest.approx(0.2)
    assert noise["loss", "loss"] == pytest.approx(2.0 * torch.finfo(torch.float32).eps)


def test_key_biases_are_apart_and_what_is_not_a_number_is_large():
    bias, weight = "encoder.0.self_attention.key.bias", "encoder.0.self_attention.key.weight"
    truth = Step(torch.tensor(1.0), {bias: torch.ones(2), weight: torch.ones(2)}, {})
    noise = dict.fromkeys([("loss", "loss"), ("gradient", bias), ("gradient", weight)], 1e-3)
    off = Step(torch.tensor(1.0), {bias: torch.zeros(2), weight: torch.ones(2)}, {})
    found = summary(measure(off, truth, noise), identical=False)
    assert found.noise == 0
    assert found.key_bias.noise > 1000
    off = Step(torch.tensor(1.0), {bias: torch.ones(2), weight: torch.tensor([1.0, torch.nan])}, {})
    assert summary(measure(off, truth, noise), identical=False).noise == float("inf")


def test_no_other_bias_is_apart():
    name = "encoder.0.self_attention.query.bias"
    truth, off = (Step(torch.tensor(1.0), {name: torch.full((2,), value)}, {}) for value in (1.0, 2.0))
    noise = dict.fromkeys([("loss", "loss"), ("gradient", name)], 1e-3)
    assert summary(measure(off, truth, noise), identical=False).gradient.noise > 100


@pytest.mark.parametrize("by_chance", [True, False])
def test_a_difference_counts_if_it_is_there_every_time(two, monkeypatch, by_chance):
    (reference, variant), data, _ = two
    asked = 0

    def disturbed(who, weights, at):
        nonlocal asked
        step = take_step(who, weights, at)
        if who is variant:
            asked += 1
            if asked == 1 or not by_chance:
                name = next(iter(step.gradients))
                return replace(step, gradients={**step.gradients, name: step.gradients[name] * 1.1})
        return step

    monkeypatch.setattr(resync, "take_step", disturbed)
    found = resynchronised_step(0, reference, [variant], conditions(reference, data))
    assert (found.variants[variant.name].noise < 10) == by_chance
    assert asked == (2 if by_chance else 6)


def test_measuring_leaves_the_random_state_of_training(two):
    (reference, variant), data, _ = two
    at = replace(conditions(reference, data), training=True)
    before = torch.get_rng_state()
    resynchronised_step(0, reference, [variant], at)
    assert torch.equal(torch.get_rng_state(), before)


def test_all_participants_meet_the_same_dropout(two):
    (reference, variant), data, _ = two
    at = replace(conditions(reference, data), training=True)
    first, again, other = (take_step(who, at.weights, at) for who in (reference, reference, variant))
    assert bits_equal(first.loss, again.loss)
    assert float(other.loss) == pytest.approx(float(first.loss), abs=1e-12)
    assert not bits_equal(first.loss, take_step(reference, at.weights, replace(at, seed=1)).loss)
