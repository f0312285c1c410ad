"""The lines of a text file, plain or gzipped."""

import gzip
import zlib
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """All lines, without their ends. Only LF and CR-LF end a line; the last may lack its end.

    Every other character that some programs take for a line break (U+2028, U+0085, form feed, a lone carriage return)
    is an ordinary character of the text. A byte order mark at the start is not text.

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
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start + 1})") from None
    return texts
