"""Files that appear whole or not at all, and only where they were meant to; needs the standard library alone."""

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

LARGEST_RECORD = 2**20  # bytes: thousands of sessions


@contextmanager
def whole_file(path: Path, *, follow: bool = False) -> Iterator[IO[bytes]]:
    """A file to write; it takes its name once the block has ended, and leaves nothing behind if the block raises.

    Until then it has a fresh name that nobody could have prepared. A link of the final name is replaced, and what it
    points to stays: a run folder may come from anywhere.

    Args:
        path: the final name.
        follow: the user named this very path: a link is written through, and a device or pipe is written to.
    """
    if follow:
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
    beside = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with beside.open("xb") as file:  # refuses whatever has the name, a link too
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes, *, follow: bool = False) -> None:
    """Write a file whole or not at all (see :func:`whole_file`)."""
    with whole_file(path, follow=follow) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def plain_file(path: Path) -> IO[bytes]:
    """A file to read that is a file: no link is followed, and no pipe or device is waited for.

    Raises:
        OSError: it is something else, or cannot be read.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))

    file = open(path, "rb", opener=opener)  # noqa: SIM115  # the caller's to close
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a file")
    return file


def read_record(path: Path) -> Any:
    """What a small JSON file of a run folder says, which may be anybody's; None where none can be read."""
    try:
        with plain_file(path) as file:
            return json.loads(file.read(LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return None


def to_append(path: Path) -> TextIO:
    """A text file to write at its end; a link of this name, or what else is no file, is replaced by a new file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8")


def remove_partial(folder: Path) -> None:
    """Remove what processes that were killed left of files that were not whole yet."""
    for path in folder.glob(".*.partial"):
        if re.fullmatch(r"\.[0-9a-f]{16}\.partial", path.name):
            path.unlink(missing_ok=True)
