"""Checkpoint files: written whole or not at all, read as tensors and plain data only, and told apart from others.

Besides what Lightning saves, a checkpoint holds under ``lockstep`` the format version, the run's plain configuration
and a hash of its tokenizers.
"""

import contextlib
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from lockstep.errors import CheckpointError
from lockstep.files import whole_file

FORMAT_VERSION = 3
# Newest first; each is whole at any time, also while the next is being written.
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"

Checkpoint = dict[str, Any]


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write beside, then rename: a kill or a full disk leaves the file that was there.

    Raises:
        CheckpointError: it could not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            torch.save(dict(checkpoint), file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
        raise CheckpointError(
            f"checkpoint {path} could not be written ({error}); the one before is untouched"
        ) from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of this project to the CPU; no code in the file is run.

    Raises:
        CheckpointError: missing, empty, incomplete, damaged, foreign, or of another format version.
    """
    try:
        return _read(path)
    except _Unusable as problem:
        raise CheckpointError(f"checkpoint {path} {problem}{_whole_one_beside(path)}") from None


class _Unusable(Exception):
    """What is wrong with a file, as the end of a sentence."""


def _read(path: Path) -> Checkpoint:
    _check_container(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise _Unusable("holds more than tensors and plain data, which is never loaded") from None
    except (RuntimeError, EOFError, OSError) as error:
        raise _Unusable(f"is damaged ({str(error).splitlines()[0]})") from None
    record = checkpoint.get("lockstep") if isinstance(checkpoint, dict) else None
    if not isinstance(record, dict):
        raise _Unusable("was not made by Lockstep")
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise _Unusable(f"has format version {version}, and this program reads {FORMAT_VERSION}")
    return checkpoint


def _check_container(path: Path) -> None:
    """What can be told without loading: torch writes zip archives, whose directory stands at the end."""
    if not path.is_file():
        raise _Unusable("does not exist")
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        raise _Unusable("is empty")
    if not zipfile.is_zipfile(path):
        raise _Unusable("is incomplete" if head.startswith(b"PK") else "is not a checkpoint")


def _whole_one_beside(path: Path) -> str:
    """A hint at the newest usable checkpoint in the same folder."""
    for name in (LAST, PREVIOUS, BEST):
        other = path.with_name(name)
        if name != path.name:
            with contextlib.suppress(_Unusable):
                return f"; {other} is whole, of step {_read(other)['global_step']}"
    return ""


def newest_checkpoint(run: Path) -> Path:
    """The checkpoint with which a run goes on.

    Raises:
        CheckpointError: the folder has none.
    """
    for name in (LAST, PREVIOUS):
        if (run / "checkpoints" / name).exists():
            return run / "checkpoints" / name
    raise CheckpointError(f"{run} has no checkpoints/{LAST}: not a run folder, or stopped before its first checkpoint")


class CheckpointFiles(CheckpointIO):
    """Lightning's reading and writing, by the functions above.

    Args:
        prepared: a checkpoint already read, and perhaps converted, which is given whatever path is asked for.
    """

    def __init__(self, prepared: Checkpoint | None = None) -> None:
        self._prepared = prepared

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Checkpoint:
        return read_checkpoint(Path(path)) if self._prepared is None else self._prepared

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)
