"""Pictures of attention: bright cells where they belong, and looking changes nothing."""

import numpy as np
import torch
from conftest import VARIANTS
from oracle import oracle
from test_start import make

from lockstep.data.batching import Batch
from lockstep.observe.attention_maps import CELL, COLOURS, attention_maps, draw_attention


def cell(image, weights, layer, head, row, column):
    """The colour in the middle of one weight's cell; panels are found from the picture's own size."""
    layers, heads, T_q, T_k = weights.shape
    height, width, _ = image.shape
    bottom = (height // layers) * (layer + 1) - 10
    left = width - (heads - head) * (T_k * CELL + 10)
    return image[bottom - (T_q - row) * CELL + CELL // 2, left + column * CELL + CELL // 2]


def test_c41_rows_are_queries_columns_are_keys_and_the_scale_is_fixed():
    weights = torch.tensor([[1.0, 0, 0], [0, 0, 1]])[None, None]
    image = draw_attention(weights, ["two", "words"], ["three", "source", "words"])
    bright, dark = COLOURS[-1], COLOURS[0]
    for row in range(2):
        for column in range(3):
            expected = bright if (row, column) in {(0, 0), (1, 2)} else dark
            assert np.array_equal(cell(image, weights, 0, 0, row, column), expected)
    uniform = torch.full((1, 1, 2, 3), 1 / 3)
    third = cell(draw_attention(uniform, "ab", "cde"), uniform, 0, 0, 0, 0)
    assert dark.sum() + 100 < int(third.sum()) < bright.sum() - 200


def test_c08_every_layer_and_head_has_a_panel_of_its_own():
    weights = torch.zeros(2, 2, 1, 2)
    for layer, head, key in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]:
        weights[layer, head, 0, key] = 1
    image = draw_attention(weights, ["q"], ["k", "l"])
    for layer, head, key in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]:
        assert np.array_equal(cell(image, weights, layer, head, 0, key), COLOURS[-1])
        assert np.array_equal(cell(image, weights, layer, head, 0, 1 - key), COLOURS[0])


def test_maps_are_what_each_layer_attends_to():
    batch = Batch(torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[1, 5, 6, 2]]))
    for name in VARIANTS:
        model = make(name, dtype=torch.float64).train()
        state = torch.get_rng_state()
        maps = attention_maps(model, batch)
        assert torch.equal(state, torch.get_rng_state())
        assert model.training
        assert {kind: tuple(w.shape) for kind, w in maps.items()} == {
            "encoder": (2, 8, 5, 5),
            "decoder": (1, 8, 3, 3),
            "cross": (1, 8, 3, 5),
        }
        assert maps["decoder"].triu(1).abs().max() == 0
        first = model.encoder[0].self_attention
        x = model.embed(model.source_embedding, batch.source)
        _, expected = oracle(first.to_canonical(dict(first.named_parameters())), x, x, x)
        torch.testing.assert_close(maps["encoder"][0], expected[0], rtol=0, atol=1e-12)


def test_no_hook_stays_behind():
    model = make("fused")
    attention_maps(model, Batch(torch.tensor([[1, 5, 2]]), torch.tensor([[1, 5, 2]])))
    assert all(not m._forward_pre_hooks for m in model.modules())
