"""The same start in every variant, and the whole model's canonical layout."""

import math

import pytest
import torch
from conftest import VARIANTS, make_variant

from lockstep.transformer import Transformer
from lockstep.transformer.canonical import canonical_weights, fingerprint, from_canonical, load_canonical, to_canonical
from lockstep.transformer.initialization import initialize

EQUIVALENT = [name for name in VARIANTS if make_variant(name)(4, 2).canonical]


def make(variant, seed=0, tied="all", dtype=torch.float32, decoder_layers=1, gain=1.0) -> Transformer:
    factory = make_variant(variant)
    model = Transformer(
        lambda: factory(64, 8),
        9,
        9,
        d_model=64,
        encoder_layers=2,
        decoder_layers=decoder_layers,
        d_ff=32,
        dropout=0.0,
        activation="relu",
        norm="post",
        tied_embeddings=tied,
        residual_gain=gain,
    ).to(dtype)
    initialize(model, seed)
    return model


@pytest.mark.parametrize("name", EQUIVALENT)
def test_every_variant_starts_equal_to_the_bit(name):
    assert fingerprint(make(name)) == fingerprint(make("per_head"))
    assert fingerprint(make(name, seed=1)) != fingerprint(make(name))
    exact, rounded = canonical_weights(make(name, dtype=torch.float64)), canonical_weights(make(name))
    assert all(torch.equal(exact[key].float(), rounded[key]) for key in rounded)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_the_residual_gain_scales_what_writes_into_the_stream_and_nothing_else(name):
    plain, scaled = canonical_weights(make(name)), canonical_weights(make(name, gain=0.5))
    written = {k for k in plain if k.endswith(("value.weight", "attention.output.weight", "outer.weight"))}
    assert len(written) == 3 * 2 + 5  # of two encoder layers and one decoder layer
    assert all(torch.equal(scaled[key], plain[key] * (0.5 if key in written else 1)) for key in plain)


def test_first_loss_agrees_in_every_equivalent_variant():
    source, target = torch.randint(4, 9, (4, 6)), torch.randint(4, 9, (4, 7))
    mask = torch.ones(4, 6, dtype=torch.bool)
    losses = [
        torch.nn.functional.cross_entropy(
            make(name)(source, mask, target)[:, :-1].flatten(0, 1), target[:, 1:].flatten()
        )
        for name in EQUIVALENT
    ]
    assert max(losses) - min(losses) < 1e-6


@pytest.mark.parametrize("name", EQUIVALENT)
def test_bounds_are_those_of_the_whole_projection_whatever_is_stored(name):
    weights = canonical_weights(make(name))
    query = weights["encoder.0.self_attention.query.weight"]
    assert query.shape == (8, 8, 64)
    bound = math.sqrt(6 / (64 + 64))  # not 0.153093 as for packed, nor 0.288675 as for one head
    assert bound == pytest.approx(0.216506, abs=1e-6)
    assert 0.99 * bound < query.abs().max() <= bound
    assert query.std().item() == pytest.approx(0.125, rel=0.02)
    assert weights["encoder.0.self_attention.key.bias"].abs().max() == 0
    # Every tensor has a stream of its own: roles, layers and places differ.
    drawn = [
        t.flatten() for name, t in weights.items() if name.endswith(("query.weight", "key.weight", "value.weight"))
    ]
    assert len({tuple(t[:5].tolist()) for t in drawn}) == len(drawn) == 4 * 3


def test_embeddings_tied_or_not_have_unit_size_after_scaling():
    for tied in ("all", "none"):
        model = make("fused", tied=tied)
        assert model.source_embedding.weight.std().item() * math.sqrt(64) == pytest.approx(1, rel=0.1)
    assert (model.output.weight is model.target_embedding.weight) == (tied == "all")


@pytest.mark.parametrize("name", VARIANTS)
def test_whole_model_round_trip_is_exact(name):
    model = make(name)
    named = {key: torch.randn_like(p) for key, p in model.named_parameters()}
    back = from_canonical(model, to_canonical(model, named))
    assert back.keys() == named.keys()
    assert all(torch.equal(back[key], named[key]) for key in named)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_weights_move_between_variants(name):
    model, other = make("per_head", seed=3), make(name, seed=4)
    load_canonical(other, canonical_weights(model))
    assert fingerprint(other) == fingerprint(model)
    assert list(canonical_weights(other)) == list(canonical_weights(model))
