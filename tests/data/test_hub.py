"""Datasets of the Hub: from its cache without a network, else an answer within seconds."""

import logging
import socket
import time

import datasets
import pytest
from datasets import Dataset, DatasetDict
from datasets.arrow_writer import ArrowWriter
from datasets.splits import SplitDict, SplitInfo
from huggingface_hub import constants

from lockstep.base.errors import InputError
from lockstep.data import hub
from lockstep.data.hub import hub_pairs
from lockstep.data.multi30k import HUB_NAME, Multi30kTask

MULTI30K = Multi30kTask(
    path=None,
    source_language="en",
    target_language="de",
    vocabulary_size=300,
    joint_vocabulary=True,
    max_tokens=256,
    over_long="drop",
)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the Hub's datasets, and a Hub that refuses connections."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


def keep(folder, rows):
    """Leave a dataset in the Hub's cache as loading it once would."""
    place = folder / "bentrevett___multi30k" / "default" / "0.0.0" / "0123456789abcdef"
    place.mkdir(parents=True)
    splits = SplitDict()
    for split in ("train", "validation", "test"):
        with ArrowWriter(path=str(place / f"multi30k-{split}.arrow")) as writer:
            for row in rows:
                writer.write(row)
            writer.finalize()
        splits.add(SplitInfo(split, num_examples=len(rows), dataset_name="multi30k"))
    datasets.DatasetInfo(
        dataset_name="multi30k",
        config_name="default",
        version="0.0.0",
        splits=splits,
        features=datasets.Features(dict.fromkeys(rows[0], datasets.Value("string"))),
    ).write_to_directory(str(place))


def test_unreachable_says_within_seconds_what_to_do(hub_cache):
    began = time.monotonic()
    with pytest.raises(OSError, match=f"cannot be reached, and its cache does not give dataset {HUB_NAME} ") as refusal:
        MULTI30K.splits(0)
    assert time.monotonic() - began < 10
    assert str(refusal.value).endswith("connect, or give a folder with its files by data.path=FOLDER")
    assert not constants.HF_HUB_OFFLINE  # only while asked


def test_a_server_that_never_answers_is_given_up(hub_cache, monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub, "PATIENCE", 0.5)
        began = time.monotonic()
        with pytest.raises(OSError, match="cannot be reached"):
            MULTI30K.splits(0)
        assert time.monotonic() - began < 5


def test_a_name_server_that_never_answers_is_given_up(hub_cache, monkeypatch):
    class Session:
        def head(self, url, timeout):
            time.sleep(5)  # no timeout of a connection covers this

    monkeypatch.setattr(hub, "get_session", Session)
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    began = time.monotonic()
    with pytest.raises(OSError, match="cannot be reached"):
        MULTI30K.splits(0)
    assert time.monotonic() - began < 3


def test_a_dataset_once_loaded_needs_no_network(hub_cache):
    keep(hub_cache, [{"en": "a dog", "de": "ein Hund"}, {"en": "", "de": "leer"}])
    splits = MULTI30K.splits(0)
    assert list(splits) == ["train", "validation", "test"]
    assert all(split[:] == {"source": ["a dog"], "target": ["ein Hund"]} for split in splits.values())


@pytest.fixture
def reachable(monkeypatch):
    """A Hub that holds what it is given."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_hub_answers", lambda: True)

    def hold(splits):
        def load(name, subset):
            if isinstance(splits, Exception):
                raise splits
            assert (name, subset) == ("wmt/wmt14", "de-en")
            return DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})

        monkeypatch.setattr(datasets, "load_dataset", load)

    return hold


def load(columns=("de", "en")):
    return hub_pairs("wmt/wmt14", "de-en", columns, "give files")


def test_columns_or_languages_of_a_translation(reachable, caplog):
    caplog.set_level(logging.INFO, "lockstep")
    reachable(
        {
            "train": [{"translation": {"de": "ja", "en": "yes"}}, {"translation": {"de": None, "en": "no"}}],
            "test": [{"id": "7", "de": "nein\nnein", "en": "no"}],
            "challenge": [{"other": "x"}],
        }
    )
    splits = load()
    assert {name: split[:] for name, split in splits.items()} == {
        "train": {"source": ["ja"], "target": ["yes"]},
        "test": {"source": ["nein nein"], "target": ["no"]},
    }
    assert caplog.messages == ["wmt/wmt14, train: 1 dropped as pairs, of 2: a side is empty"]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (
            {"train": [{"translation": {"de": "ja", "en": "yes"}}]},
            "wmt/wmt14, train: no column fr; there are .*tion.de",
        ),
        ({"train": [{"de": "ja", "fr": 3}]}, "wmt/wmt14, train: column fr holds other things than texts"),
        ({"test": [{"de": "ja", "fr": "oui"}]}, "wmt/wmt14 has the splits test, none named train; give files"),
        (RuntimeError("no such dataset\nat all"), "dataset wmt/wmt14: no such dataset$"),
    ],
)
def test_refused_by_the_name_of_the_dataset(reachable, splits, message):
    reachable(splits)
    with pytest.raises((ValueError, InputError), match=message):
        load(("de", "fr"))


@pytest.mark.parametrize(
    "name", ["json", "pandas", "owner/name", "./owner/name", "/", "..", "owner/name/more", "", "a:b/c"]
)
def test_no_file_of_the_working_folder_is_taken_for_the_hubs(tmp_path, monkeypatch, name):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "owner" / "name"):
        (folder / "train.jsonl").write_text('{"de": "ja", "en": "yes"}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is named OWNER/NAME"):
        hub_pairs(name, None, ("de", "en"), "give files")
