"""Texts to texts: one translation a text, whatever the text and its neighbours are."""

import logging
import random

import numpy as np
import pytest
import torch
from conftest import VARIANTS, make_variant

from lockstep.commands.translator import LONGEST, MOST_CHARACTERS, Translation, Translator
from lockstep.data.tokenization import EOS, Tokenizers, subword_tokenizer, word_tokenizer
from lockstep.transformer import Transformer
from lockstep.transformer.initialization import initialize
from lockstep.transformer.search import GREEDY, SearchOptions

WORDS = word_tokenizer("abcdefgh")
BYTES = subword_tokenizer(["a b\n", "c\r\n"], 300)


def make(tokenizer, variant="fused") -> Transformer:
    factory, size = make_variant(variant), tokenizer.get_vocab_size()
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 32, "dropout": 0.5}
    model = Transformer(
        lambda: factory(32, 2), size, size, **sizes, activation="relu", norm="post", tied_embeddings="none"
    )
    initialize(model, 3)
    return model


def translator(model, tokenizer, beam_size=3, n_best=1, batch_tokens=500, cached=True):
    search = SearchOptions(beam_size, 1.0, 2, None, n_best, early_stopping=False)
    return Translator(model, Tokenizers(tokenizer, tokenizer), search, batch_tokens, cached)


@pytest.mark.parametrize("n_best", [1, 3])
@pytest.mark.parametrize("sentences", [1, 2, 32])
def test_blank_texts_have_blank_translations_and_all_keep_their_places(sentences, n_best):
    model = make(WORDS)
    texts = ["a", "", "b", "   ", "c d e f g h", "\u2028\t", "b"]
    found = translator(model, WORDS, n_best=n_best, batch_tokens=3 * 3 * sentences)(texts)
    assert len(found) == len(texts)
    assert [best for text, best in zip(texts, found, strict=True) if not text.strip()] == [[Translation("", 0.0)]] * 3
    for text, best in zip(texts, found, strict=True):
        if text.strip():
            (alone,) = translator(model, WORDS, n_best=n_best)([text])
            assert [t.text for t in best] == [t.text for t in alone]
            assert [t.score for t in best] == pytest.approx([t.score for t in alone], abs=1e-5)
            assert len(best) == n_best
            assert best[0].text
    assert found[2] != found[0]


def test_the_limit_is_each_texts_own():
    model = make(WORDS)
    with torch.no_grad():  # nothing ever ends
        model.decoder[-1].feed_forward_residual.norm.bias.fill_(1)
        model.output.weight[EOS] -= 3
    found = translator(model, WORDS)(["a", "a b c d", "a b"])
    assert [len(best.text.split()) for (best,) in found] == [2 * (n + 2) + 10 for n in (1, 4, 2)]


def test_blank_texts_alone_run_no_model():
    assert translator(None, WORDS)(["", " "]) == [[Translation("", 0.0)]] * 2
    assert translator(None, WORDS)([]) == []


def test_a_batch_holds_so_many_tokens_and_progress_is_told():
    model = make(WORDS)
    shapes, done = [], []
    encode = model.encode
    model.encode = lambda source, mask: shapes.append(tuple(source.shape)) or encode(source, mask)
    texts = ["a b c d", "", "a", "a b", "b", *["c"] * 7]
    translator(model, WORDS, beam_size=2, batch_tokens=24)(texts, done.append)
    assert shapes == [(2, 6), (4, 3), (4, 3), (1, 3)]
    assert done == [3, 7, 11, 12]
    shapes.clear()
    translator(model, WORDS, batch_tokens=1)(texts)
    assert {rows for rows, _ in shapes} == {1}


def test_mode_and_random_state_are_left_as_they_were_and_training_goes_on():
    model = make(WORDS).train()

    def state():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = state()
    first = translator(model, WORDS)(["a b", "c"])
    assert state() == before
    assert model.training
    assert model.decoder[0].feed_forward_residual.dropout.training
    assert first == translator(model.eval(), WORDS)(["a b", "c"])
    assert not model.training
    source = torch.tensor([[1, 4, 2]])
    model(source, source > 0, source).square().sum().backward()
    assert model.output.weight.grad.abs().sum() > 0


def test_a_text_that_is_too_long_is_cut_and_the_log_names_its_line(caplog):
    model = make(WORDS)
    long = " ".join("abcdefgh"[i % 8] for i in range(LONGEST))
    with caplog.at_level(logging.WARNING):
        found = translator(model, WORDS, beam_size=1)(["a", long], first_line=11)
    assert caplog.messages == [f"line 12 is cut: {LONGEST + 2} tokens are over {LONGEST}"]
    assert len(found) == 2
    with caplog.at_level(logging.WARNING):
        (expected,) = translator(model, WORDS, beam_size=1)([" ".join(long.split()[: LONGEST - 2])])
    assert found[1][0].text == expected[0].text
    assert len(caplog.messages) == 1


def test_a_text_of_too_many_characters_is_cut_before_it_is_encoded(caplog, monkeypatch):
    seen = []

    class Counting:
        def encode_batch(self, texts):
            seen.extend(len(text) for text in texts)
            return WORDS.encode_batch(texts)

    found = Translator(make(WORDS), Tokenizers(Counting(), WORDS), GREEDY, 500)(["a", "a b " * 1_000_000], first_line=4)
    assert seen == [1, MOST_CHARACTERS]
    assert caplog.messages == [f"line 5 is cut: it has over {MOST_CHARACTERS} characters"]
    assert len(found[1][0].source) == LONGEST


def test_any_bytes_that_are_generated_make_one_line_of_text():
    model = make(BYTES)
    line_feed, byte = BYTES.token_to_id("Ċ"), BYTES.token_to_id("č")
    with torch.no_grad():
        model.output.weight[[line_feed, byte]] *= 3
        model.output.weight[BYTES.token_to_id("Ã")] *= 3  # begins a character of two bytes
    found = translator(model, BYTES, beam_size=5, n_best=5)([f"a{i}" for i in range(30)])
    texts = [t.text for best in found for t in best]
    assert any("\ufffd" in text for text in texts)
    assert any(" " in text for text in texts)
    assert not any("\n" in text or "\r" in text for text in texts)
    assert [text.encode().decode() for text in texts] == texts


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_translates_the_same_by_its_own_forward(name):
    model, texts = make(WORDS, name), ["a b c", "d", "e f g h a b"]
    cached, recomputed = (translator(model, WORDS, n_best=3, cached=cached)(texts) for cached in (True, False))
    for a, b in zip(cached, recomputed, strict=True):
        assert [t.text for t in a] == [t.text for t in b]
        assert [t.score for t in a] == pytest.approx([t.score for t in b], abs=1e-5)
