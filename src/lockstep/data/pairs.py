"""Pairs of texts in files: two line-aligned files, a table of tab-separated values, or JSON lines."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import Dataset

from lockstep.data.lines import read_lines
from lockstep.terminal import counted

Files = str | tuple[str, str]
Columns = tuple[str, str]

logger = logging.getLogger("lockstep")


def read_pairs(files: Files, columns: Columns | None) -> Dataset:
    """Text columns ``source`` and ``target`` of the pairs in one or two files, each plain or gzipped.

    Args:
        files: two files whose lines correspond, one ``.tsv`` file, or one ``.jsonl`` file.
        columns: names of the source and the target. In a table they stand in its first line; without them there is no
            such line, and the first two columns are taken. A JSON object may hold them itself or under
            ``translation``; without them they are ``source`` and ``target``.

    Raises:
        ValueError: anything that is not as it should be, by file and line.
    """
    if isinstance(files, tuple):
        source, target = (read_lines(Path(file)) for file in files)
        if len(source) != len(target):
            raise ValueError(
                f"{files[0]} has {counted(len(source), 'line')} and {files[1]} has {len(target):,}; each line of one "
                "must be the translation of the same line of the other"
            )
        return without_empty(source, target, " and ".join(files))
    path = Path(files)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    readers = {".tsv": _tab_separated, ".jsonl": _json_lines}
    if kind not in readers:
        raise ValueError(f"{files}: one file is a .tsv or a .jsonl; two aligned files are written [SOURCE,TARGET]")
    pairs = list(readers[kind](path, columns))
    return without_empty([source for source, _ in pairs], [target for _, target in pairs], files)


def without_empty(source: Sequence[str], target: Sequence[str], place: str) -> Dataset:
    """The pairs, less those of which a side is empty or white space.

    Raises:
        ValueError: no pair is left.
    """
    kept = [(s, t) for s, t in zip(source, target, strict=True) if s.strip() and t.strip()]
    if not kept:
        raise ValueError(f"{place}: no pair with text on both sides")
    if dropped := len(source) - len(kept):
        logger.info("%s: %d dropped as pairs, of %d: a side is empty", place, dropped, len(source))
    return Dataset.from_dict({"source": [s for s, _ in kept], "target": [t for _, t in kept]})


def one_line(text: str) -> str:
    """A text without the line ends that JSON and datasets can hold: translations and references are one line each."""
    return text.replace("\r\n", " ").replace("\n", " ")


def _tab_separated(path: Path, columns: Columns | None) -> Iterator[tuple[str, str]]:
    """No quoting: a tab always separates."""
    lines = read_lines(path)
    header = lines[0].split("\t") if lines else []
    if columns and (missing := [name for name in columns if name not in header]):
        raise ValueError(f"{path}, line 1: no column {missing[0]}; there are {', '.join(header)}")
    if len(header) < 2:
        raise ValueError(f"{path}, line 1: no tab; each line holds source, tab, target")
    first, second = (header.index(name) for name in columns) if columns else (0, 1)
    for number, line in enumerate(lines[1:] if columns else lines, start=2 if columns else 1):
        fields = line.split("\t") if line.strip() else [""] * len(header)
        if len(fields) != len(header):
            raise ValueError(f"{path}, line {number}: {len(fields)} columns, where line 1 has {len(header)}")
        yield fields[first], fields[second]


def _json_lines(path: Path, columns: Columns | None) -> Iterator[tuple[str, str]]:
    source, target = columns or ("source", "target")
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}, line {number}"
        try:
            record = json.loads(line) if line.strip() else {source: "", target: ""}
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: not JSON: {error.msg} at character {error.colno}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{place}: not a JSON object with {source} and {target}")
        yield _field(record, source, place), _field(record, target, place)


def _field(record: dict[str, object], name: str, place: str) -> str:
    """One text of a record, as one line; null is an empty one."""
    inner = record.get("translation")
    holder = inner if name not in record and isinstance(inner, dict) else record
    if name not in holder:
        raise ValueError(f"{place}: no column {name}; there are {', '.join(holder)} (data.columns=[SOURCE,TARGET])")
    text = holder[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise ValueError(f"{place}: {name} is {json.dumps(text)}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: {name} holds half of a surrogate pair, which is no character") from None
    return one_line(text)
