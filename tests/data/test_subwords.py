"""Subword tokenizers: nothing is lost, nothing in a text is special, the same in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lockstep.data.tokenization import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    load_tokenizer,
    subword_tokenizer,
    subword_tokenizers,
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
    program = (
        "from lockstep.data.tokenization import subword_tokenizer;"
        "print(subword_tokenizer(['b a c a', 'ca ba ab ac bc cb'] * 3, 280).to_str())"
    )
    saved = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert saved[0] == saved[1]
    path = tmp_path / "tokenizer.json"
    path.write_text(saved[0], encoding="utf-8")
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


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vocabulary_size=259 .* 260"):
        subword_tokenizer(CORPUS, 259)
