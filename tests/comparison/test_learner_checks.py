"""Each choice of a learner is found, and none is found where there is none."""

from dataclasses import replace

import pytest
import torch
from comparing import conditions, participants

from lockstep.comparison.contrasts import ClippedByTensor, DecayByRank, XavierAsStored
from lockstep.comparison.learner_checks import draws_difference, initialisation_difference, update_differences
from lockstep.comparison.variant import Learner, Variant
from lockstep.transformer.canonical import canonical_weights

ELEMENTWISE = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "Adamax"]


def with_learner(variants: list[Variant], learner: Learner) -> list[Variant]:
    return [replace(variant, learner=learner) for variant in variants]


@pytest.fixture(scope="module")
def three():
    variants, data, _ = participants("per_head", "packed", "einsum", overrides=("model.attention_dropout=0.1",))
    return variants, data


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimisers_do_not_see_the_layout(three, name):
    (reference, *others), data = three
    at = conditions(reference, data, getattr(torch.optim, name))
    for variant in others:
        assert update_differences(variant, reference, at) == []


def test_an_optimiser_of_rows_and_columns_is_named(three):
    (reference, packed, _), data = three
    (line,) = update_differences(packed, reference, conditions(reference, data, torch.optim.Adafactor))
    assert line.startswith("the optimiser Adafactor (of ")


def test_clipping_by_tensor_is_named(three):
    variants, data = three
    reference, packed, _ = with_learner(variants, ClippedByTensor())
    (line,) = update_differences(packed, reference, conditions(reference, data))
    assert line.startswith("gradient clipping (of ")


def test_decay_by_rank_is_named(three):
    variants, data = three
    reference, packed, einsum = with_learner(variants, DecayByRank())
    at = conditions(reference, data, torch.optim.AdamW)
    assert update_differences(packed, reference, at) == []
    (line,) = update_differences(einsum, reference, at)
    assert line.startswith("weight decay (of ")


def test_another_start_is_named(three):
    variants, _ = three
    starts = []
    for variant in (*variants[:2], *with_learner(variants[:2], XavierAsStored())):
        model = variant.build()
        variant.learner.initialize(model, 0)
        starts.append(canonical_weights(model))
    assert initialisation_difference(starts[1], starts[0]) is None
    assert "initialisation (encoder.0.self_attention.query.weight" in initialisation_difference(starts[3], starts[2])


def test_xavier_bounds_are_those_of_the_stored_matrices(three):
    (per_head, packed, _), _ = three
    for variant, fan_out in ((per_head, 32), (packed, 192)):
        model = variant.build()
        XavierAsStored().initialize(model, 0)
        bound = (6 / (64 + fan_out)) ** 0.5
        query = canonical_weights(model)["encoder.0.self_attention.query.weight"]
        assert 0.95 * bound < float(query.abs().max()) <= bound


def test_other_draws_are_named(three):
    (reference, packed, _), data = three
    sdpa = participants("per_head", "sdpa", overrides=("model.attention_dropout=0.1",))[0][1]
    at = conditions(reference, data)
    assert draws_difference(packed, reference, at) is None
    assert draws_difference(sdpa, reference, at).startswith("random draws in training")
