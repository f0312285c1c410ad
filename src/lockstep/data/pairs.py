"""Pairs of texts in files: two line-aligned files, a table of tab-separated values, or JSON lines."""

import json
import logging
import reprlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path

from datasets import Dataset, concatenate_datasets

from lockstep.base.errors import InputError
from lockstep.base.terminal import counted
from lockstep.data.lines import read_lines

Files = str | tuple[str, str]
Columns = tuple[str, str]

CHUNK = 10_000  # pairs held as Python's texts, which take several times the room of the dataset's

SHORT = reprlib.Repr()  # what a file holds, for messages: printable, and not too much of it
SHORT.maxlist, SHORT.maxstring = 20, 40

logger = logging.getLogger("lockstep")


def read_pairs(files: Files, columns: Columns | None) -> Dataset:
    """Text columns ``source`` and ``target`` of the pairs in one or two files, each plain or gzipped.

    Args:
        files: two files whose lines correspond, one ``.tsv`` file, or one ``.jsonl`` file.
        columns: names of the source and the target. In a table they stand in its first line; without them there is no
            such line, and the first two columns are taken. A JSON object may hold them itself or under
            ``translation``; without them they are ``source`` and ``target``.

    Raises:
        InputError: anything that is not as it should be, by file and line.
        OSError: a file cannot be read.
        ValueError: a file of another kind.
    """
    if isinstance(files, tuple):
        return without_empty(_aligned(files), " and ".join(files))
    path = Path(files)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    readers = {".tsv": _tab_separated, ".jsonl": _json_lines}
    if kind not in readers:
        saved = "; save a table as .tsv: columns between tabs, no quotes" if kind in (".csv", ".xlsx", ".ods") else ""
        raise ValueError(
            f"{files}: one file is a .tsv or a .jsonl; two aligned files are written [SOURCE,TARGET]{saved}"
        )
    return without_empty(readers[kind](path, columns), files)


def without_empty(pairs: Iterable[tuple[str, str]], place: str) -> Dataset:
    """The pairs, as columns ``source`` and ``target``, less those of which a side is empty or white space.

    Raises:
        InputError: no pair is left.
    """
    given, chunks, remaining = 0, [], iter(pairs)
    while chunk := list(islice(remaining, CHUNK)):
        given += len(chunk)
        kept = [(s, t) for s, t in chunk if s.strip() and t.strip()]
        chunks.append(Dataset.from_dict({"source": [s for s, _ in kept], "target": [t for _, t in kept]}))
    count = sum(map(len, chunks))
    if not count:
        raise InputError(f"{place}: no pair with text on both sides")
    if dropped := given - count:
        logger.info("%s: %d dropped as pairs, of %d: a side is empty", place, dropped, given)
    return concatenate_datasets([chunk for chunk in chunks if len(chunk)])


def _aligned(files: tuple[str, str]) -> Iterator[tuple[str, str]]:
    counts = [0, 0]
    for source, target in zip_longest(*(read_lines(Path(file)) for file in files)):
        counts[0] += source is not None
        counts[1] += target is not None
        if source is not None and target is not None:  # else the rest is read for its number alone
            yield source, target
    if counts[0] != counts[1]:
        raise InputError(
            f"{files[0]} has {counted(counts[0], 'line')} and {files[1]} has {counts[1]:,}; each line of one must be "
            "the translation of the same line of the other"
        )


def one_line(text: str) -> str:
    """A text without the line ends that JSON and datasets can hold: translations and references are one line each."""
    return text.replace("\r\n", " ").replace("\n", " ")


def _tab_separated(path: Path, columns: Columns | None) -> Iterator[tuple[str, str]]:
    """No quoting: a tab always separates."""
    lines = read_lines(path)
    first_line = next(lines)
    header = first_line.split("\t")
    if columns and (missing := [name for name in columns if name not in header]):
        raise InputError(f"{path}, line 1: no column {missing[0]}; there are {SHORT.repr(header)}")
    if len(header) < 2:
        raise InputError(f"{path}, line 1: no tab; each line holds source, tab, target")
    first, second = (header.index(name) for name in columns) if columns else (0, 1)
    for number, line in enumerate(lines if columns else chain([first_line], lines), start=2 if columns else 1):
        fields = line.split("\t") if line.strip() else [""] * len(header)
        if len(fields) != len(header):
            raise InputError(f"{path}, line {number}: {len(fields)} columns, where line 1 has {len(header)}")
        yield fields[first], fields[second]


def _json_lines(path: Path, columns: Columns | None) -> Iterator[tuple[str, str]]:
    source, target = columns or ("source", "target")
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}, line {number}"
        try:
            record = json.loads(line) if line.strip() else {source: "", target: ""}
        except json.JSONDecodeError as error:
            raise InputError(f"{place}: not JSON: {error.msg} at character {error.colno}") from None
        except (ValueError, RecursionError):
            raise InputError(f"{place}: JSON nested too deep, or with a number of too many digits") from None
        if not isinstance(record, dict):
            raise InputError(f"{place}: not a JSON object with {source} and {target}")
        yield _field(record, source, place), _field(record, target, place)


def _field(record: dict[str, object], name: str, place: str) -> str:
    """One text of a record, as one line; null is an empty one."""
    inner = record.get("translation")
    holder = inner if name not in record and isinstance(inner, dict) else record
    if name not in holder:
        raise InputError(
            f"{place}: no column {name}; there are {SHORT.repr(list(holder))} (data.columns=[SOURCE,TARGET])"
        )
    text = holder[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{place}: {name} is {SHORT.repr(text)}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{place}: {name} holds half of a surrogate pair, which is no character") from None
    return one_line(text)
