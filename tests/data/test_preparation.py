"""What was prepared is found again where nothing changed, and nowhere else."""

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from datasets import Dataset, DatasetDict

from lockstep.data import preparation
from lockstep.data.lines import read_lines
from lockstep.data.preparation import prepare_subwords

LINE = "the tag </s> ends <pad> here <unk>"


def corpus(*sources, target="ziel"):
    split = Dataset.from_dict({"source": [*sources, LINE], "target": [target] * (len(sources) + 1)})
    return DatasetDict({"train": split, "validation": split, "test": split})


def prepared(texts=None, vocabulary_size=300, joint=True):
    return prepare_subwords(texts or corpus("source"), vocabulary_size=vocabulary_size, joint=joint)


def same(one, other):
    ids = [{name: [(s.tolist(), t.tolist()) for s, t in p] for name, p in each.pairs.items()} for each in (one, other)]
    return ids[0] == ids[1] and one.tokenizers.fingerprint() == other.tokenizers.fingerprint()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """An empty one."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def trainings(monkeypatch):
    """Counts how often tokenizers are trained."""
    calls = []
    real = preparation.subword_tokenizers
    monkeypatch.setattr(preparation, "subword_tokenizers", lambda *a, **o: calls.append(1) or real(*a, **o))
    return calls


@pytest.mark.parametrize("joint", [True, False])
def test_unchanged_texts_are_prepared_once_and_found_the_same(trainings, joint):
    first, again = prepared(joint=joint), prepared(joint=joint)
    assert len(trainings) == 1
    assert same(first, again)
    assert again.tokenizers.joint == joint
    # What is not in a saved tokenizer: special tokens in texts are text.
    assert again.tokenizers.source.encode(LINE).ids == again.pairs["train"][-1][0].tolist()
    assert again.pairs["train"][-1][0].dtype == first.pairs["train"][-1][0].dtype


def test_an_edited_file_of_the_same_name_size_and_time_is_read_anew(tmp_path):
    path = tmp_path / "train.txt"

    def prepare(text):
        path.write_text(text)
        os.utime(path, ns=(0, 0))
        result = prepared(corpus(*read_lines(path)))
        return result.tokenizers.source.decode(result.pairs["train"][0][0].tolist())

    assert [prepare("A"), prepare("B"), prepare("A")] == ["A", "B", "A"]


def test_every_setting_and_text_of_any_split_counts(trainings, monkeypatch):
    texts = corpus("source")
    prepared(texts)
    prepared(texts, vocabulary_size=301)
    prepared(texts, joint=False)
    prepared(corpus("source", target="anders"))
    for split in ("validation", "test"):
        prepared(DatasetDict({**texts, split: corpus("other")["train"]}))
    prepared(corpus("sour", "ce"))
    assert len(trainings) == 7
    monkeypatch.setattr(tokenizers, "__version__", "0.0.0")
    prepared(texts)
    assert len(trainings) == 8


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage"])
def test_a_damaged_file_is_made_again(cache_folder, trainings, caplog, damage):
    first = prepared()
    (path,) = cache_folder.iterdir()
    content = path.read_bytes()
    damaged = {
        "cut": content[:-100],
        "empty": b"",
        "garbage": b"garbage" * 99,
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    assert same(prepared(), first)
    assert "not used, and made again" in caplog.text
    assert same(prepared(), first)
    assert len(trainings) == 2


def test_a_flipped_bit_anywhere_changes_nothing(cache_folder):
    first = prepared()
    (path,) = cache_folder.iterdir()
    content = path.read_bytes()
    for place in range(0, len(content), 997):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert same(prepared(), first)


def forge(path, **changes):
    """Rewrite an entry, with a digest that fits, as anybody could who may write the file."""
    with np.load(path) as stored:
        arrays = {**dict(stored), **changes}
    del arrays["digest"]
    digest = np.frombuffer(preparation._digest(path.stem, arrays).encode(), np.uint8)
    np.savez(path, digest=digest, **arrays)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train.source.ids": [1, 2**30, 2], "train.source.lengths": [2, 1]}, "does not hold the ids of 2 texts"),
        ({"train.source.ids": [1, 2**30, 1, 2], "train.source.lengths": [2, 2]}, "ids that no token has"),
        ({"test.target.ids": [1, -1, 1, 2], "test.target.lengths": [2, 2]}, "ids that no token has"),
        ({"train.source.ids": [1, 2], "train.source.lengths": [2]}, "does not hold the ids of 2 texts"),
        ({"train.source.ids": [1, 2], "train.source.lengths": [2, 2]}, "does not hold the ids of 2 texts"),
        ({"source": np.frombuffer(b"{}", np.uint8)}, "not a tokenizer"),
        ({"source": np.array([print], dtype=object)}, "allow_pickle=False"),
    ],
)
def test_what_an_entry_says_must_be_possible(cache_folder, caplog, changes, reason):
    first = prepared()
    (path,) = cache_folder.iterdir()
    forge(path, **{k: v if isinstance(v, np.ndarray) else np.array(v, np.int32) for k, v in changes.items()})
    assert same(prepared(), first)
    assert reason in caplog.text


def test_an_entry_under_the_name_of_another_is_made_again(cache_folder, caplog):
    prepared(corpus("other"))
    (other,) = cache_folder.iterdir()
    first = prepared()
    (path,) = set(cache_folder.iterdir()) - {other}
    path.write_bytes(other.read_bytes())
    assert same(prepared(), first)
    assert "the content is not what was kept under this name" in caplog.text


@pytest.mark.parametrize("case", ["another user's", "writable by all", "link", "pipe"])
def test_what_another_could_have_written_is_not_read(cache_folder, monkeypatch, caplog, trainings, case):
    first = prepared()
    (path,) = cache_folder.iterdir()
    if case == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    elif case == "writable by all":
        path.chmod(0o666)
    else:
        path.rename(cache_folder / "elsewhere")
        path.symlink_to(cache_folder / "elsewhere") if case == "link" else os.mkfifo(path)
    assert same(prepared(), first)
    assert "is not used, and made again" in caplog.text
    assert len(trainings) == 2
    monkeypatch.undo()
    assert path.is_file()
    assert not path.is_symlink()


def test_a_preparation_broken_off_leaves_nothing_that_is_believed(cache_folder, trainings, monkeypatch):
    def broken_off(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", broken_off)
        with pytest.raises(KeyboardInterrupt):
            prepared()
    assert list(cache_folder.iterdir()) == []
    (cache_folder / "killed.0123.tmp").write_bytes(b"half of it")
    prepared()
    prepared()
    assert len(trainings) == 2


def test_several_at_once_leave_one_whole_file(cache_folder):
    results = []
    threads = [threading.Thread(target=lambda: results.append(prepared())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(list(cache_folder.iterdir())) == 1
    assert all(same(result, prepared()) for result in results)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "lockstep")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "file"))
    assert same(prepared(), prepared())
    assert "not kept for next time" in caplog.text


def test_the_folder_is_the_users_of_caches_unless_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    assert preparation.cache_folder() == tmp_path
    monkeypatch.delenv("LOCKSTEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert preparation.cache_folder() == Path("/x/lockstep")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert preparation.cache_folder() == Path("/h/.cache/lockstep")


def test_an_entry_that_unpacks_to_more_than_it_is_is_made_again(cache_folder, caplog):
    prepared()
    (path,) = cache_folder.glob("*.npz")
    with np.load(path) as stored:
        np.savez_compressed(path, zeros=np.zeros(10**7), **stored)
    prepared()
    assert "unpacks to more than it is" in caplog.text
