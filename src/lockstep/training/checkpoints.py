"""Checkpoint files: written whole or not at all, read as tensors and plain data only, and told apart from others.

Besides what Lightning saves, a checkpoint holds under ``lockstep`` the format version, the run's plain configuration
and a hash of its tokenizers.
"""

import contextlib
import json
import pickle
import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from annotated_types import Ge, Le, Len
from lightning.pytorch.plugins.io import CheckpointIO
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import Tensor
from typing_extensions import TypeAliasType, TypedDict

from lockstep.base.errors import CheckpointError
from lockstep.base.files import whole_file
from lockstep.base.terminal import counted

FORMAT_VERSION = 3
# Newest first; each is whole at any time, also while the next is being written.
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"

Checkpoint = dict[str, Any]


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path, *, follow: bool = False) -> None:
    """Write beside, then rename: a kill or a full disk leaves the file that was there.

    Args:
        checkpoint: what it holds.
        path: of the file, whose folder is made.
        follow: see :func:`whole_file`.

    Raises:
        OSError: it could not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, follow=follow) as file:
            torch.save(dict(checkpoint), file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
        raise OSError(f"checkpoint {path} could not be written ({error}); the one before is untouched") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of this project to the CPU; no code in the file is run, and no more is taken than it holds.

    What it says is plain data of the right kinds, and may still be anybody's: see :mod:`lockstep.commands.trust`.

    Raises:
        CheckpointError: missing, empty, incomplete, damaged, foreign, or of another format version.
        OSError: it may not be read.
    """
    try:
        return _read(path)
    except _Unusable as problem:
        raise CheckpointError(f"checkpoint {path} {problem}{_whole_one_beside(path)}") from None


class _Unusable(Exception):
    """What is wrong with a file, as the end of a sentence."""


_FOREIGN = "holds more than tensors and plain data, which is never loaded"


def _read(path: Path) -> Checkpoint:
    if not path.is_file():
        raise _Unusable("is not a file" if path.exists() else "does not exist")
    with path.open("rb") as file:
        try:
            pickled = _check_container(file)
            file.seek(0)
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
            _check_plain(checkpoint, len(pickled), path.stat().st_size)
        except _Unusable:
            raise
        except pickle.UnpicklingError:
            raise _Unusable(_FOREIGN) from None
        except Exception as error:  # whatever zipfile and torch make of damaged bytes
            raise _Unusable(f"is damaged ({' '.join(str(error).split())[:200] or type(error).__name__})") from None
    record = checkpoint.get("lockstep") if isinstance(checkpoint, dict) else None
    if not isinstance(record, dict):
        raise _Unusable("was not made by Lockstep")
    version = record.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise _Unusable(f"has format version {version!r}, and this program reads {FORMAT_VERSION}")
    try:
        _CONTENT.validate_python(checkpoint, strict=True)
        json.dumps(record)
    except TypeError:
        raise _Unusable("has a configuration that is more than words and numbers") from None
    except ValidationError as error:
        # Where several kinds would do, pydantic names them as if they were entries, this one first.
        named = takewhile(lambda part: part != "bool", error.errors()[0]["loc"])
        place = ".".join(map(str, named))
        raise _Unusable(f"has no usable {place!r}"[:200]) from None
    # Without torch's notes on versions, which a dictionary cannot carry.
    return {**checkpoint, "state_dict": dict(checkpoint["state_dict"])}


def _check_container(file: IO[bytes]) -> bytes:
    """The pickle, once all was looked at that can be told without loading.

    torch writes zip archives with a directory at the end, of entries that are stored as they are, and does not check
    their sums itself. More could be in a file than this project writes: entries that unpack to any size, or calls that
    torch takes for harmless and that allocate whatever they are told.
    """
    head = file.read(4)
    if not head:
        raise _Unusable("is empty")
    if not zipfile.is_zipfile(file):
        raise _Unusable("is incomplete" if head.startswith(b"PK") else "is not a checkpoint")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = {entry.filename.lower() for entry in entries}  # torch tells no case apart
        folders = {name.partition("/")[0] for name in names}
        size = file.seek(0, 2)
        if head != b"PK\x03\x04" or len(names) < len(entries) or len(folders) != 1:
            raise _Unusable("is not a checkpoint")
        if _start_of_directory(file) != archive.start_dir:
            raise _Unusable("is not a checkpoint")
        if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or sum(e.file_size for e in entries) > size:
            raise _Unusable("is compressed, which no checkpoint of this program is")
        if broken := archive.testzip():
            raise _Unusable(f"is damaged (in {broken!r})")
        pickled = archive.read(f"{entries[0].filename.partition('/')[0]}/data.pkl")
    _check_pickle(pickled)
    return pickled


def _start_of_directory(file: IO[bytes]) -> int:
    """Where torch looks for an archive's directory; zipfile goes by its length, which may lead to another one."""
    size = file.seek(0, 2)
    file.seek(-98, 2)
    end = file.read()
    if end[56:60] != b"PK\x06\x07":  # no place of more than four bytes
        return int.from_bytes(end[-6:-2], "little")
    large, start = (int.from_bytes(end[at : at + 8], "little") for at in (64, 48))
    return start if large == size - 98 else -1


_PICKLED = re.compile(r"collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch \w+Storage")
_MOST_OPERATIONS = 2**21  # of a pickle: those of 50,000 tensors; torch takes as long for each as for one that matters
_HEAVIEST = 10_000  # values in a tuple


def _check_pickle(pickled: bytes) -> None:
    """Refuse calls, operations without number, and tuples without end.

    A tuple that is a key is hashed with all it holds, each part as often as it occurs: a few that hold each other take
    for ever, and many in a row end the process. So the loader's stack is followed here, by the weight of its tuples.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[Any, int] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
        if number > _MOST_OPERATIONS:
            raise _Unusable("is nested without end")
        if "GLOBAL" in opcode.name and not _PICKLED.fullmatch(str(argument)):
            raise _Unusable(_FOREIGN)
        if opcode.name == "MARK":
            marks.append(len(stack))
        elif "PUT" in opcode.name:
            memo[argument] = stack[-1]
        elif "GET" in opcode.name:
            stack.append(memo[argument])
        else:
            takes = len(opcode.stack_before)
            start = marks.pop() - (takes - 2) if pickletools.stackslice in opcode.stack_before else len(stack) - takes
            held = sum(stack[start:]) if opcode.name.startswith("TUPLE") else 0
            if held > _HEAVIEST:
                raise _Unusable("is nested without end")
            stack[start:] = [1 + held for _ in opcode.stack_after]


def _check_plain(content: Any, pickled: int, size: int) -> None:
    """Refuse what is small in the file and large, endless or odd in use.

    Args:
        content: as loaded.
        pickled: bytes of the pickle: no tree of so many values, but one whose parts are used again and again.
        size: bytes of the file.
    """
    values, room = 0, 3 * size  # a tied embedding is listed under three names
    waiting: list[tuple[Any, int]] = [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if values > pickled or depth > 50:
            raise _Unusable("is nested without end")
        if type(value) is dict or (type(value) is OrderedDict and not vars(value).keys() - {"_metadata"}):
            waiting += ((each, depth + 1) for pair in value.items() for each in pair)
        elif type(value) in (list, tuple):
            waiting += ((each, depth + 1) for each in value)
        elif type(value) is Tensor:
            room -= value.nbytes
            if value.nbytes > value.untyped_storage().nbytes() or room < 0:
                raise _Unusable("has larger tensors than it holds numbers")
        elif type(value) is str:
            value.encode()  # half of a surrogate pair is no text
        elif not (value is None or type(value) in (bool, float) or (type(value) is int and value.bit_length() < 64)):
            raise _Unusable(_FOREIGN)


class _Group(TypedDict):
    params: list[int]
    param_names: list[str]


class _OptimizerState(TypedDict):
    state: dict[int, dict[str, Any]]
    param_groups: Annotated[list[_Group], Len(1, 1)]


class _Place(TypedDict):
    epoch: Annotated[int, Ge(0), Le(10**7)]  # a number is drawn for each
    batch: Annotated[int, Ge(0)]
    batches: Annotated[int, Ge(0)]


# Of Lightning's loops: it takes whatever entries there are for its own attributes.
_Counters = TypeAliasType("_Counters", "dict[str, bool | int | _Counters]")


class _Config(TypedDict, total=False):
    optimizer: dict[str, Any]


class _Record(TypedDict):
    config: _Config
    tokenizers: str
    stopped_early: bool


@with_config(ConfigDict(arbitrary_types_allowed=True))
class _Content(TypedDict):
    """What a checkpoint must hold, by which all is read."""

    global_step: Annotated[int, Ge(0)]
    state_dict: dict[str, Tensor]
    optimizer_states: Annotated[list[_OptimizerState], Len(1, 1)]
    lr_schedulers: list[Any]
    loops: _Counters
    callbacks: dict[str, dict[str, Any]]
    DataModule: _Place
    lockstep: _Record


_CONTENT = TypeAdapter(_Content)


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
    if runs := sorted(path.parents[1].name for path in run.glob(f"*/checkpoints/{LAST}")):
        raise CheckpointError(f"{run} holds {counted(len(runs), 'run')}; name one, such as {run / runs[0]}")
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
