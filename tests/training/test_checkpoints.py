"""Files: whole or not at all, plain data only, and each kind of wrong file told apart."""

import hashlib
import os
import pickle

import pytest
import torch

from lockstep.base.errors import CheckpointError
from lockstep.training.checkpoints import (
    FORMAT_VERSION,
    LAST,
    PREVIOUS,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def checkpoint(step, **record):
    group = {"params": [0], "param_names": ["w"]}
    return {
        "global_step": step,
        "state_dict": {"w": torch.arange(5000.0)},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [group]}],
        "lr_schedulers": [],
        "loops": {},
        "callbacks": {},
        "DataModule": {"epoch": 0, "batch": 0, "batches": 0},
        "lockstep": {
            "format_version": FORMAT_VERSION,
            "config": {},
            "tokenizers": "",
            "stopped_early": False,
            **record,
        },
    }


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(checkpoint(100), tmp_path / PREVIOUS)
    write_checkpoint(checkpoint(200), tmp_path / LAST)
    return tmp_path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_comes_back_equal(folder):
    read = read_checkpoint(folder / LAST)
    assert read["global_step"] == 200
    assert torch.equal(read["state_dict"]["w"], torch.arange(5000.0))
    assert newest_checkpoint(folder.parent if folder.name == "checkpoints" else _as_run(folder)).name == LAST


def _as_run(folder):
    run = folder / "run"
    run.mkdir()
    os.symlink(folder, run / "checkpoints")
    return run


class Harmful:
    ran = False

    def __reduce__(self):
        return setattr, (Harmful, "ran", True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "is incomplete"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is incomplete"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("model: small"), "is not a checkpoint"),
        (lambda path: path.write_bytes(pickle.dumps(Harmful())), "is not a checkpoint"),
        (lambda path: torch.save(Harmful(), path), "holds more than tensors and plain data, which is never loaded"),
        (lambda path: torch.save({"state_dict": {}}, path), "was not made by Lockstep"),
        (lambda path: torch.save(torch.ones(3), path), "was not made by Lockstep"),
        (
            lambda path: torch.save(checkpoint(7, format_version=1), path),
            "has format version 1, and this program reads",
        ),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_each_wrong_file_is_told_apart_and_the_good_one_named(folder, damage, message):
    before = digest(folder / PREVIOUS)
    damage(folder / LAST)
    with pytest.raises(CheckpointError) as refusal:
        read_checkpoint(folder / LAST)
    text = str(refusal.value)
    assert text.startswith(f"checkpoint {folder / LAST} {message}")
    assert text.endswith(f"; {folder / PREVIOUS} is whole, of step 100")
    assert "\n" not in text
    assert not Harmful.ran
    assert digest(folder / PREVIOUS) == before


def test_without_a_good_one_none_is_named(folder):
    for name in (LAST, PREVIOUS):
        (folder / name).write_bytes((folder / name).read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"is incomplete$"):
        read_checkpoint(folder / LAST)
    with pytest.raises(CheckpointError, match=r"no checkpoints/last\.ckpt"):
        newest_checkpoint(folder / "elsewhere")


def test_a_failed_write_leaves_what_was_there(folder, monkeypatch):
    before = digest(folder / LAST)

    def full(value, file):
        file.write(b"PK half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"could not be written .*No space left on device"):
        write_checkpoint(checkpoint(300), folder / LAST)
    assert digest(folder / LAST) == before
    assert {path.name for path in folder.iterdir()} == {LAST, PREVIOUS}
