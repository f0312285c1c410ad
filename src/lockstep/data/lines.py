"""The lines of a text, of a file, plain or gzipped, or of a stream; one at a time, none larger than it may be."""

import codecs
import gzip
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from lockstep.base.errors import InputError

LONGEST = 2**20  # bytes of a line: what is longer is no sentence, and costs minutes to encode
RATIO, UNSUSPECTED = 100, 10 * LONGEST  # characters in a .gz to a byte of it; what never matters
SIGNATURES = {  # how a file begins that is no text, what it is, and what makes one of it
    codecs.BOM_UTF32_LE: ("UTF-32", "iconv -f utf-32 -t utf-8"),  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF16_LE: ("UTF-16", "iconv -f utf-16 -t utf-8"),
    codecs.BOM_UTF16_BE: ("UTF-16", "iconv -f utf-16 -t utf-8"),
    b"\x1f\x8b": ("gzip", "gzip -dc"),
    b"BZh91AY&SY": ("bzip2", "bzip2 -dc"),
    b"\xfd7zXZ": ("xz", "xz -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("a zip archive", "unzip -p"),
}


def read_lines(path: Path) -> Iterator[str]:
    """All lines of a file (see :func:`decoded`); gzipped by its name or its first bytes.

    Raises:
        OSError: the file cannot be read; the message names it.
        InputError: it is empty, or not the text it should be; the message names the file, and the line.
    """
    number, characters, text = 0, 0, ""
    try:
        pipe = path.exists() and not path.is_file()
        if not pipe and not path.stat().st_size:  # such as /proc/kmsg, which is a file, and waits
            raise InputError(f"{path} is empty")
        with path.open("rb") as file:
            packed = path.suffix == ".gz" or file.peek(2)[:2] == b"\x1f\x8b"
            size = math.inf if pipe else os.fstat(file.fileno()).st_size
            most = max(RATIO * size, UNSUSPECTED)
            stream: IO[bytes] = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            lines = iter(lambda: stream.readline(LONGEST + 1), b"")
            for number, text in enumerate(decoded(lines, str(path)), start=1):
                characters += len(text) + 1
                if packed and characters > most:
                    raise InputError(
                        f"{path}, line {number}: over {RATIO} times the file's size; no text shrinks so far"
                    )
                yield text
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}, after line {number}: damaged, or not gzip: {error}") from None
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror or error}") from None
    if number == 0:
        raise InputError(f"{path} is empty")
    if number == 1 and text.count("\r") > 1:
        raise InputError(
            f"{path}: lines end in carriage returns alone; only LF and CR-LF end a line: tr '\\r' '\\n' < {path}"
        )


def decoded(lines: Iterable[bytes], place: str) -> Iterator[str]:
    """Lines as texts, without their ends. Only LF and CR-LF end a line; the last may lack its end.

    Every other character that some programs take for a line break (U+2028, U+0085, form feed, a lone carriage return)
    is an ordinary character of the text. A byte order mark at the start is not text.

    Args:
        lines: as a binary file gives them.
        place: where it comes from, for messages.

    Raises:
        InputError: a line is not UTF-8 or over 1 MB, by its number; those before it have been given.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            for start, (kind, remedy) in SIGNATURES.items():
                if line.startswith(start):
                    raise InputError(f"{place} is {kind}, not UTF-8 text: {remedy}")
            line = line.removeprefix(codecs.BOM_UTF8)
        if number <= 2 and b"\0" in line:
            order = "be" if line.startswith(b"\0") and number == 1 else "le"
            raise InputError(
                f"{place}, line {number}: NUL characters, as in UTF-16 (iconv -f utf-16{order} -t utf-8) or a file "
                "that is no text"
            )
        if len(line) > LONGEST:
            raise InputError(f"{place}, line {number}: over {LONGEST:,} bytes long; lines are sentences, ended by LF")
        try:
            text = line.removesuffix(b"\r\n" if line.endswith(b"\r\n") else b"\n").decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place}, line {number}: not UTF-8 ({error.reason} at byte {error.start + 1}); if it is Latin-1: "
                "iconv -f latin1 -t utf-8"
            ) from None
        yield text
