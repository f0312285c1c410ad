"""A corpus of one's own: options, pairs held out, lengths, no network."""

import logging
import socket
from pathlib import Path

import pytest
from conftest import compose

from lockstep.base.errors import InputError
from lockstep.commands.building import build_data
from lockstep.commands.options import ConfigurationError, TrainOptions, parse
from lockstep.commands.train import train
from lockstep.data.batching import collate
from lockstep.data.datamodule import DataModule
from lockstep.data.parallel import ParallelTask
from lockstep.data.tokenization import BOS, EOS, PAD, UNK

OPTIONS = {
    "train": ("train.a", "train.b"),
    "validation": None,
    "test": None,
    "columns": None,
    "dataset": None,
    "subset": None,
    "held_out": 1000,
    "vocabulary_size": 300,
    "joint_vocabulary": True,
    "max_tokens": 256,
    "over_long": "drop",
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Writes two aligned files, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(pairs, name="train"):
        for side, texts in zip("ab", zip(*pairs, strict=True), strict=True):
            Path(f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")

    return write


def data(**options):
    return DataModule(ParallelTask(**{**OPTIONS, **options}), batch_tokens=64, length_jitter=0, seed=0)


def texts(module, split):
    return list(zip(module.sources(split), module.references(split), strict=True))


THREE = [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("two cats", "zwei Katzen")]


def test_three_lines_train_and_translate_and_it_is_said_what_they_are_scored_on(corpus, caplog):
    caplog.set_level(logging.INFO, "lockstep")
    corpus(THREE)
    small = ["model.d_model=32", "model.num_heads=1", "model.encoder_layers=1", "model.decoder_layers=1"]
    options = [
        "data=parallel",
        "name=three",
        "data.train=[train.a,train.b]",
        "trainer.max_steps=2",
        "trainer.accelerator=cpu",
        *small,
    ]
    train(compose(*options, "attention_maps_every=0", "output=out"))
    assert "none of the 3 training pairs is held out for validation and test" in caplog.text
    assert "3 training pairs, 17 target tokens, 1 batch an epoch, padding" in caplog.text
    assert texts(data(), "train") == texts(data(), "test") == THREE


def test_local_files_make_no_connection(corpus, monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("a connection was attempted")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    corpus(THREE)
    assert len(data().examples("train", 9)) == 3


def test_held_out_pairs_share_no_text_with_any_other_pair(corpus, caplog):
    caplog.set_level(logging.INFO, "lockstep")
    repeated = [("yes", f"ja {i}") for i in range(30)] + [(f"no {i}", "nein") for i in range(30)]
    corpus([*repeated, *((f"s {i}", f"t {i}") for i in range(60))])
    module = data(held_out=7)
    assert caplog.messages[0] == "14 of 120 training pairs held out for validation and test"
    splits = {name: texts(module, name) for name in ("train", "validation", "test")}
    assert {name: len(split) for name, split in splits.items()} == {"train": 106, "validation": 7, "test": 7}
    for side in (0, 1):
        sides = [{pair[side] for pair in split} for split in splits.values()]
        assert sum(map(len, sides)) == len(set.union(*sides))
    assert len(data(held_out=1000).sources("test")) == 12  # a tenth
    assert texts(data(held_out=7), "test") == splits["test"]
    other = DataModule(ParallelTask(**{**OPTIONS, "held_out": 7}), batch_tokens=64, length_jitter=0, seed=1)
    assert texts(other, "test") != splits["test"]


def test_given_splits_are_taken_whole_and_only_the_missing_one_is_held_out(corpus):
    pairs = [(f"s {i}", f"t {i}") for i in range(40)]
    corpus(pairs)
    corpus([("v", "w"), ("x", "y")], "val")
    module = data(validation=("val.a", "val.b"))
    assert texts(module, "validation") == [("v", "w"), ("x", "y")]
    assert len(module.sources("test")) == 4
    assert sorted(texts(module, "train") + texts(module, "test")) == sorted(pairs)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_unequal_files_are_refused_in_every_split(corpus, split):
    corpus(THREE)
    Path("longer").write_text("1\n2\n3\n4\n")
    options = {"train": ("train.a", "train.b"), split: ("train.a", "longer")}
    with pytest.raises(InputError, match=r"train\.a has 3 lines and longer has 4"):
        data(**options)


def test_special_tokens_in_the_data_are_text(corpus):
    line = "the tag </s> ends <pad> here <unk>"
    corpus([(line, line)] * 3)
    module = data()
    for source, target in module.examples("train", 3):
        for ids in (source, target):
            assert ids.tolist().count(EOS) == 1
            assert (ids[0], ids[-1]) == (BOS, EOS)
            assert not {PAD, UNK} & set(ids.tolist())
        assert module.tokenizers.target.decode(target.tolist()) == line
        assert collate([(source, target)]).source_mask.all()


def test_the_tokenizer_sees_the_training_pairs_alone(corpus):
    corpus(THREE)
    corpus([("elsewhere", "anderswo")] * 9, "test")
    vocabulary = data(test=("test.a", "test.b")).tokenizers.source.get_vocab()
    assert not {"elsewhere", "anderswo", "wh"} & set(vocabulary)


def test_over_long_training_pairs_are_dropped_or_cut_and_counted_the_others_only_cut(corpus, caplog):
    caplog.set_level(logging.INFO, "lockstep")
    pairs = [("abc", "xyz"), ("abcdefghi", "xyz"), ("abc", "rstuvwxyz"), ("ab", "yz")]
    corpus(pairs)
    corpus(pairs, "test")
    given = {"validation": ("test.a", "test.b"), "test": ("test.a", "test.b"), "max_tokens": 6, "vocabulary_size": 260}
    module = data(**given)
    assert texts(module, "train") == [pairs[0], pairs[3]]
    assert texts(module, "test") == pairs  # whole references
    decode = module.tokenizers.source.decode
    assert [decode(s.tolist()) for s, _ in module.examples("test", 4)] == ["abc", "abcd", "abc", "ab"]
    assert all(len(ids) <= 6 and ids[-1] == EOS for pair in module.examples("test", 4) for ids in pair)
    assert caplog.messages[1:] == [
        "train: 2 of 4 pairs over 6 tokens dropped",
        "validation: 2 of 4 pairs over 6 tokens cut",
        "test: 2 of 4 pairs over 6 tokens cut",
    ]
    cut = data(**given, over_long="cut").examples("train", 4)
    assert [(decode(s.tolist()), decode(t.tolist())) for s, t in cut] == [
        ("abc", "xyz"),
        ("abcd", "xyz"),
        ("abc", "rstu"),
        ("ab", "yz"),
    ]
    assert cut[2][1][-1] == EOS


def test_what_the_limit_leaves_must_be_enough(corpus):
    corpus(THREE)
    with pytest.raises(ValueError, match="the train split has 0 examples"):
        data(max_tokens=3, vocabulary_size=260)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": None}, r"no training pairs; give data.train=\[SOURCE,TARGET\]"),
        ({"dataset": "wmt14"}, "data.dataset and data.train are both given"),
        ({"train": None, "test": "a.tsv", "dataset": "wmt14"}, "data.dataset and data.test are both given"),
        ({"train": None, "dataset": "wmt14"}, r"data.dataset needs data.columns=\[SOURCE,TARGET\]"),
        ({"subset": "de-en"}, "data.subset=de-en is of a dataset of the Hub"),
        ({"columns": ("a", "b")}, "data.columns is of a table"),
    ],
)
def test_options_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ParallelTask(**{**OPTIONS, **change})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train=[a,b,c]", r"option data\.train=\[a,b,c\]: has too many entries"),
        ("data.over_long=keep", "option data.over_long=keep: must be .drop. or .cut."),
        ("data.max_tokens=2", "option data.max_tokens=2: must be greater than or equal to 3"),
        ("data.held_out=-1", "option data.held_out=-1: must be greater than or equal to 0"),
        ("data.train=pairs.csv", "data: pairs.csv: one file is a .tsv or a .jsonl"),
        ("data=copy data.train_size=1", "option data.train_size=1: .* 2"),
        ("data=dates data.test_size=10000000000", "option data.test_size=10000000000: .* 10000000"),
        ("data=copy data.symbols=0", "option data.symbols=0: .* 1"),
        ("data=copy data.symbols=1000000000", "option data.symbols=1000000000: .* 131068"),
        ("data.vocabulary_size=259", "option data.vocabulary_size=259: .* 260"),
        ("data.vocabulary_size=1000000000000", "option data.vocabulary_size=1000000000000: .* 131072"),
    ],
)
def test_refused_as_options_in_one_line(corpus, override, message):
    corpus(THREE)
    overrides = override.split() if " " in override else ["data=parallel", "data.train=[train.a,train.b]", override]
    with pytest.raises(ConfigurationError, match=message) as refusal:
        build_data(parse(TrainOptions, compose("name=refused", *overrides)))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_no_option_and_one_that_is_no_text_neither(corpus):
    corpus(THREE)
    Path("utf16").write_text("a\nb\n", encoding="utf-16")
    for name, error in (("nowhere", FileNotFoundError), ("utf16", InputError)):
        with pytest.raises(error, match=name):
            build_data(parse(TrainOptions, compose("data=parallel", "name=refused", f"data.train=[train.a,{name}]")))
