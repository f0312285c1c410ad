"""The lines of a text, of a file, plain or gzipped, or of a stream."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """All lines of a file (see :func:`decoded`).

    Raises:
        ValueError: the file cannot be read, or is not UTF-8; the message names the file, and the line.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"cannot read {path}: {reason}") from None
    return list(decoded(io.BytesIO(content), str(path)))


def decoded(lines: Iterable[bytes], place: str) -> Iterator[str]:
    """Lines as texts, without their ends. Only LF and CR-LF end a line; the last may lack its end.

    Every other character that some programs take for a line break (U+2028, U+0085, form feed, a lone carriage return)
    is an ordinary character of the text. A byte order mark at the start is not text.

    Args:
        lines: as a binary file gives them.
        place: where they come from, for messages.

    Raises:
        ValueError: a line is not UTF-8, by its number; those before it have been given.
    """
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            text = content.removesuffix(b"\r\n" if content.endswith(b"\r\n") else b"\n").decode()
        except UnicodeDecodeError as error:
            reason = f"{error.reason} at byte {error.start + 1}"
            raise ValueError(f"{place}, line {number}: not UTF-8 ({reason})") from None
        yield text
