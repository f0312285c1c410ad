"""Subword tokenizers: nothing is lost, nothing in a text is special, the same in every process."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lockstep.base.errors import InputError
from lockstep.data.tokenization import (
    BOS,
    EOS,
    LONGEST_TOKEN,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    encode,
    load_tokenizer,
    subword_tokenizer,
    subword_tokenizers,
    tokenizer_from,
    word_tokenizer,
)

CORPUS = ["hug"] * 10 + ["pug"] * 5 + ["pun"] * 12 + ["bun"] * 4 + ["hugs"] * 5
TOKENIZER = subword_tokenizer(CORPUS, 270)


def _payload(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text).ids
    assert (ids[0], ids[-1]) == (BOS, EOS)
    return ids[1:-1]


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    payload = _payload(TOKENIZER, text)
    assert TOKENIZER.decode([BOS, *payload, EOS]) == text
    assert bool(payload) == bool(text)
    assert not {PAD, BOS, EOS, UNK} & set(payload)


@pytest.mark.parametrize("text", ["mug", "mug 😀", "hello !", "12 ab ~_! ./", " two  spaces "])
def test_unseen_characters_and_spaces_are_kept(text: str) -> None:
    assert TOKENIZER.decode(_payload(TOKENIZER, text)) == text


def test_special_tokens_in_texts_are_text_even_if_trained_on(tmp_path: Path) -> None:
    line = "the tag </s> ends <pad> here <unk>"
    trained = subword_tokenizer([line, " ".join(SPECIAL_TOKENS), "".join(SPECIAL_TOKENS)] * 50, 400)
    trained.save(str(tmp_path / "tokenizer.json"))
    for tokenizer in (trained, load_tokenizer(tmp_path / "tokenizer.json"), TOKENIZER):
        ids = tokenizer.encode(line).ids
        assert ids.count(EOS) == 1
        assert ids[-1] == EOS
        assert not {PAD, UNK} & set(ids)
        assert tokenizer.decode(ids) == line


def test_digits_stand_alone() -> None:
    tokens = subword_tokenizer(["in 2026"] * 9, 400).encode("in 2026").tokens
    assert tokens[1:-1] == ["in", "Ġ", "2", "0", "2", "6"]


def test_vocabulary_is_the_same_in_every_process_and_does_not_grow_on_reload(tmp_path: Path) -> None:
    make = "subword_tokenizer(['b a c a', 'ca ba ab ac bc cb'] * 3, 280).to_str()"
    program = f"from lockstep.data.tokenization import subword_tokenizer; print({make})"
    hashing = {**os.environ, "PYTHONHASHSEED": "1"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], env=hashing, capture_output=True, text=True, check=True
    ).stdout
    here = subword_tokenizer(["b a c a", "ca ba ab ac bc cb"] * 3, 280).to_str()
    assert elsewhere == f"{here}\n"
    path = tmp_path / "tokenizer.json"
    path.write_text(elsewhere, encoding="utf-8")
    once = load_tokenizer(path)
    assert [once.id_to_token(index) for index in range(4)] == list(SPECIAL_TOKENS)
    once.save(str(path))
    assert load_tokenizer(path).get_vocab_size() == once.get_vocab_size() == 260 + 9  # the 9 pairs that occur


def test_joint_or_separate() -> None:
    train = Dataset.from_dict({"source": ["left"] * 5, "target": ["right"] * 5})
    joint = subword_tokenizers(train, vocabulary_size=300, joint=True)
    assert joint.joint
    assert {"left", "right"} <= set(joint.source.get_vocab())
    separate = subword_tokenizers(train, vocabulary_size=300, joint=False)
    assert not separate.joint
    assert "left" not in separate.target.get_vocab()


def test_what_was_saved_is_loaded_the_same() -> None:
    for made in (TOKENIZER, word_tokenizer(["b", "a"])):
        loaded = tokenizer_from(made.to_str(pretty=True))
        assert loaded.to_str() == made.to_str()
        assert loaded.encode("b hug </s>").ids == made.encode("b hug </s>").ids


def _saved(**changes: object) -> str:
    saved = json.loads(TOKENIZER.to_str())
    model = changes.pop("model", {})
    return json.dumps({**saved, **changes, "model": {**saved["model"], **model}})


def _vocabulary(**changes: int) -> dict[str, dict[str, int]]:
    return {"vocab": {**json.loads(TOKENIZER.to_str())["model"]["vocab"], **changes}}


PADDING = {"strategy": {"Fixed": 2 * 10**8}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}


@pytest.mark.parametrize(
    "saved",
    [
        _saved(padding={**PADDING, "pad_to_multiple_of": None}),
        _saved(truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}),
        _saved(normalizer={"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "a" * 10**6}),
        _saved(pre_tokenizer=None),
        _saved(decoder=None),
        _saved(post_processor=None),
        _saved(added_tokens=[]),
        _saved(added_tokens=[{"id": 4, "content": "<pad>"}]),
        _saved(extra=1),
        _saved(model={"dropout": 0.5}),
        _saved(model={"type": "Unigram"}),
        _saved(model={"vocab": {}}),
        _saved(model={"merges": [["h", "nothing"]]}),
        _saved(model={"merges": [["h"]]}),
        _saved(model={"merges": 7}),
        _saved(model=_vocabulary(h=7)),
        _saved(model=_vocabulary(new=2**40)),
        _saved(model=_vocabulary(**{"<pad>": 1, "<s>": 0})),
        _saved(model={"vocab": {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}, "merges": []}),
        "[" * 10**5,
        "[]," * 10**6,
        "1" * 5000,
        '{"model": null}',
        "{",
        "",
        "null",
        " " * 2**26,
    ],
)
def test_a_tokenizer_that_is_none_of_ours_is_refused_before_the_library_sees_it(saved: str) -> None:
    with pytest.raises(InputError) as refusal:
        tokenizer_from(saved)
    assert len(str(refusal.value)) < 250
    assert str(refusal.value).isprintable()


def test_a_token_is_no_longer_than_training_makes_one() -> None:
    longest = "z" * LONGEST_TOKEN
    assert tokenizer_from(word_tokenizer([longest]).to_str()).token_to_id(longest) == len(SPECIAL_TOKENS)
    with pytest.raises(InputError, match="a token has over 40,000 characters"):
        tokenizer_from(word_tokenizer([longest + "z"]).to_str())


def test_a_saved_tokenizer_is_read_no_further_than_it_may_be_large(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="larger than a vocabulary"):
        load_tokenizer(Path("/dev/zero"))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        load_tokenizer(tmp_path / "latin")


def test_a_word_of_any_length_is_trained_on_in_a_moment() -> None:
    letters = random.Random(0)
    word = "".join(letters.choice("abcde") for _ in range(2**20))
    began = time.monotonic()
    assert encode([word], subword_tokenizer([word, "hug"], 1000)).lengths.sum() > 1000
    assert time.monotonic() - began < 30
