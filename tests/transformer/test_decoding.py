"""Cached decoding against recomputing everything."""

import pytest
import torch
from conftest import VARIANTS, make_variant
from test_start import make

from lockstep.attention.cached import CachedAttention
from lockstep.transformer.decoding import CachedDecoder, RecomputedDecoder, next_token

EQUIVALENT = [name for name in VARIANTS if make_variant(name)(4, 2).canonical]


def sources():
    source = torch.randint(4, 9, (5, 6))
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[1, 4:] = mask[3, 2:] = False
    return source, mask


def both_decoders(name, dtype, source, mask):
    model = make(name, dtype=dtype, decoder_layers=2).eval()
    return [decoder(model, source, mask) for decoder in (CachedDecoder, RecomputedDecoder)]


@torch.no_grad()
@pytest.mark.parametrize("name", EQUIVALENT)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_cached_logits_equal_recomputed_ones(name, dtype, limit):
    cached, recomputed = both_decoders(name, dtype, *sources())
    prefix = torch.randint(4, 9, (5, 9))
    for length in (6, 7, 8, 9):  # a prefix of 6 at once, then single steps
        difference = cached(prefix[:, :length]) - recomputed(prefix[:, :length])
        assert difference.abs().max() < limit


def test_a_contrast_without_canonical_weights_decodes_by_its_own_forward():
    source, mask = sources()
    assert isinstance(next_token(make("shared_heads"), source, mask), RecomputedDecoder)
    assert isinstance(next_token(make("fused"), source, mask), CachedDecoder)


@torch.no_grad()
@pytest.mark.parametrize("name", EQUIVALENT)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_prefixes_that_change_places_keep_their_keys_and_values(name, dtype, limit):
    """Two, then three prefixes of each source, in another order; then one source less."""
    source, mask = sources()
    cached, recomputed = both_decoders(name, dtype, source, mask)
    prefix = torch.randint(4, 9, (5, 1))
    for kept, chosen in ((range(5), [0, 0]), (range(5), [1, 0, 0]), ((0, 1, 3, 4), [2, 0, 1]), ((2,), [1, 1, 1])):
        assert (cached(prefix) - recomputed(prefix)).abs().max() < limit
        k = len(prefix) // len(mask)
        rows = torch.tensor([sentence * k + place for sentence in kept for place in chosen])
        for decoder in (cached, recomputed):
            decoder.select(torch.tensor(kept), rows)
        mask = mask[torch.tensor(kept)]
        prefix = torch.cat([prefix[rows], torch.randint(4, 9, (len(rows), 1))], dim=1)
        assert (cached(prefix) - recomputed(prefix)).abs().max() < limit
        prefix = torch.cat([prefix, torch.randint(4, 9, (len(rows), 1))], dim=1)


@torch.no_grad()
def test_positions_follow_the_prefix():
    model = make("fused").eval()
    source, mask = sources()
    cached = CachedDecoder(model, source, mask)
    starts = []
    embed = model.embed
    model.embed = lambda embedding, tokens, start=0: starts.append(start) or embed(embedding, tokens, start)
    for length in (6, 7, 8, 9):
        cached(torch.randint(4, 9, (5, length)))
    assert starts == [0, 6, 7, 8]


@pytest.mark.parametrize(("T_q", "T_k", "expected"), [(1, 4, [2.5]), (2, 5, [2.5, 3.0])])
def test_new_queries_see_all_remembered_keys(T_q, T_k, expected):
    attention = CachedAttention(make_variant("fused")(1, 1))
    attention._input["query"] = (torch.zeros(1, 1), None)  # equal scores
    attention._output = (torch.ones(1, 1), None)
    values = torch.arange(1.0, T_k + 1)[None, None, :, None]
    found = attention.attend(torch.ones(1, T_q, 1), torch.ones(1, 1, T_k, 1), values, mask=None, is_causal=True)
    torch.testing.assert_close(found.flatten(), torch.tensor(expected))
