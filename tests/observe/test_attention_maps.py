"""Pictures of attention: bright cells where they belong, and looking changes nothing."""

import logging

import numpy as np
import pytest
import torch
from conftest import VARIANTS
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from oracle import oracle
from test_start import make
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from lockstep.attention.fused import FusedAttention
from lockstep.data.batching import Batch
from lockstep.data.tokenization import subword_tokenizer
from lockstep.observe import attention_maps as module
from lockstep.observe.attention_maps import CELL, COLOURS, MOST_TOKENS, attention_maps, draw_attention, token_labels


def cell(image, weights, layer, head, row, column):
    """The colour in the middle of one weight's cell; panels are found from the picture's own size."""
    layers, heads, T_q, T_k = weights.shape
    height, width, _ = image.shape
    bottom = (height // layers) * (layer + 1) - 10
    left = width - (heads - head) * (T_k * CELL + 10)
    return image[bottom - (T_q - row) * CELL + CELL // 2, left + column * CELL + CELL // 2]


def test_rows_are_queries_columns_are_keys_and_the_scale_is_fixed():
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


def test_every_layer_and_head_has_a_panel_of_its_own():
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


def test_a_label_is_one_line_whatever_its_token_is(tmp_path):
    tokenizer = Tokenizer(WordLevel({text: i for i, text in enumerate(("\r\n", "\u2029", "\x85", "a"))}, "a"))
    labels = token_labels(tokenizer, torch.arange(4))
    assert labels == [r"\r\n", r"\u2029", r"\x85", "a"]
    draw_attention(torch.ones(1, 1, 4, 4), labels, labels)


def test_a_part_of_a_character_is_labelled_with_its_bytes():
    """Pairs of bytes that make no character by themselves, and a space's letter in byte-level BPE."""
    tokenizer = subword_tokenizer(["你好 ü"] * 3, 261)
    ids = torch.tensor(tokenizer.encode("你 ü好").ids)
    labels = token_labels(tokenizer, ids)
    said = "".join(f" {label[1:-1]}" if label[0] == "<" and label[1] not in "s/" else "" for label in labels)
    others = [label for label in labels if label[0] != "<"]
    assert "\ufffd" not in "".join(labels)
    assert bytes.fromhex(said).decode() in "你ü好"
    assert set("".join(others)) <= set("你好ü ")


def test_a_variant_may_name_its_inputs_otherwise(monkeypatch):
    def forward(self, q, k, v, *rest, **options):
        return right(self, q, k, v, *rest, **options)

    right = FusedAttention.forward
    batch = Batch(torch.tensor([[1, 5, 6, 2]]), torch.tensor([[1, 7, 2]]))
    expected = attention_maps(make("fused"), batch)
    monkeypatch.setattr(FusedAttention, "forward", forward)
    found = attention_maps(make("fused"), batch)
    assert all(torch.equal(found[kind], expected[kind]) for kind in expected)


def test_no_hook_stays_behind():
    model = make("fused")
    attention_maps(model, Batch(torch.tensor([[1, 5, 2]]), torch.tensor([[1, 5, 2]])))
    assert all(not m._forward_pre_hooks for m in model.modules())


def test_a_map_holds_no_more_tokens_than_can_be_drawn(monkeypatch):
    model = make("fused", dtype=torch.float64).eval()
    ids = torch.arange(4, 9).repeat(30)[None]
    maps = attention_maps(model, Batch(ids, ids))
    assert maps["decoder"].shape == maps["cross"].shape == (1, 8, MOST_TOKENS, MOST_TOKENS)
    assert maps["encoder"].shape == (2, 8, 89, 89)  # 16 panels in as many pixels
    assert maps["encoder"].sum(-1).max() < 1  # of all keys, of which some are not shown
    monkeypatch.setattr(module, "MOST_PIXELS", 2 * 8 * (20 * CELL) ** 2)
    maps = attention_maps(model, Batch(ids, ids))
    assert maps["encoder"].shape == (2, 8, 20, 20)
    assert maps["cross"].shape == (1, 8, 28, 28)
    image = draw_attention(maps["cross"], ["q" * 5000] * 200, ["k"] * 200)
    assert image.shape[0] * image.shape[1] < 3 * module.MOST_PIXELS


@pytest.mark.parametrize("T_k", [1, 2, 3, 5, 20])
def test_every_title_tells_its_layer_and_head(T_k):
    titles = [module._title(layer, head, T_k * CELL) for layer in (1, 2) for head in (1, 2, 16)]
    assert len(set(titles)) == 6
    assert all(module._font().getlength(title) < T_k * CELL + module.GAP for title in titles if T_k > 1)
    assert titles[-1] == {1: "2.16", 2: "2.16", 3: "2.16", 5: "l. 2, h. 16", 20: "layer 2, head 16"}[T_k]


@pytest.fixture
def fonts(monkeypatch):
    """The fonts of the machine, as a test sets them."""
    found = []
    monkeypatch.setattr(module, "findSystemFonts", lambda: found)
    for cached in (module._font_of, module._letters, module._say_missing):
        cached.cache_clear()
    yield found
    for cached in (module._font_of, module._letters, module._say_missing):
        cached.cache_clear()


def font_with(character, path):
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(point)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "glyph"])
    builder.setupCharacterMap({ord(character): "glyph"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "glyph": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "glyph": (800, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def test_labels_are_drawn_in_a_font_that_has_their_letters(fonts, tmp_path, caplog):
    fonts += [font_with("犬", tmp_path / "dog.ttf"), font_with("猫", tmp_path / "cat.ttf"), str(tmp_path / "none.ttf")]
    assert module._font_of("猫").path == tmp_path / "cat.ttf"
    assert module._font_of("犬").path == tmp_path / "dog.ttf"
    assert module._font_of("Fußball").path == module.DEJAVU
    draw_attention(torch.rand(1, 1, 1, 2), ["猫"], ["犬", "dog"])
    assert caplog.messages == []


def test_where_no_font_has_them_the_log_says_so_once(fonts, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            draw_attention(torch.rand(1, 1, 1, 2), ["猫"], ["犬", "dog"])
    (said,) = caplog.messages
    assert "no font of this machine has the letters of all tokens" in said
