"""The copy task."""

import pytest

from lockstep.data.copy import CopyTask
from lockstep.data.tokenization import BOS, EOS, SPECIAL_TOKENS

SMALL = {"symbols": 26, "min_length": 4, "max_length": 9, "train_size": 300, "validation_size": 50, "test_size": 70}


def test_no_sequence_occurs_twice_and_the_target_is_the_source():
    splits = CopyTask(**SMALL).splits(seed=0)
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "validation": 50, "test": 70}
    texts = [text for split in splits.values() for text in split["source"]]
    assert len(set(texts)) == len(texts)
    assert all(split["source"] == split["target"] for split in splits.values())
    assert {len(text.split()) for text in texts} == set(range(4, 10))


def test_a_function_of_the_seed():
    first, again, other = (CopyTask(**SMALL).splits(seed)["train"]["source"] for seed in (1, 1, 2))
    assert first == again != other


def test_symbols_never_collide_with_special_tokens():
    task = CopyTask(**SMALL)
    splits = task.splits(0)
    prepared = task.prepare(splits)
    tokenizers = prepared.tokenizers
    assert tokenizers.joint
    assert tokenizers.source.get_vocab_size() == 26 + len(SPECIAL_TOKENS)
    for text, (source, target) in zip(splits["test"]["source"], prepared.pairs["test"], strict=True):
        ids = source.tolist()
        assert ids == target.tolist()
        assert (ids[0], ids[-1]) == (BOS, EOS)
        assert all(i >= len(SPECIAL_TOKENS) for i in ids[1:-1])
        assert tokenizers.source.decode(ids) == text


def test_refuses_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="too few different sequences"):
        CopyTask(**{**SMALL, "symbols": 2, "min_length": 1})
    with pytest.raises(ValueError, match="min_length"):
        CopyTask(**{**SMALL, "min_length": 10})
    with pytest.raises(ValueError, match="too few different sequences"):
        CopyTask(**{**SMALL, "symbols": 1})
    with pytest.raises(ValueError, match=r"2,100,000,003,780 symbols in all are over 100,000,000"):
        CopyTask(**{**SMALL, "max_length": 10**10 + 14})
