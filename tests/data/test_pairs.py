"""Pairs from files: every line counted once, pairs kept together, whatever is wrong named by file and line."""

import gzip
import json
import logging
from pathlib import Path

import pytest

from lockstep.data.lines import read_lines
from lockstep.data.pairs import read_pairs


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file in the working directory and gives its name."""
    monkeypatch.chdir(tmp_path)

    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return name

    return write


def rows(dataset):
    return list(zip(dataset["source"], dataset["target"], strict=True))


NOT_LINE_ENDS = ["\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("character", NOT_LINE_ENDS, ids=lambda c: f"U+{ord(c):04X}")
def test_only_line_feeds_end_a_line(write, character):
    files = write("a", f"a{character}b\nc\n"), write("b", "x\ny\n")
    assert rows(read_pairs(files, None)) == [(f"a{character}b", "x"), ("c", "y")]
    table = write("t.tsv", f"a{character}b\tx\nc\ty\n")
    assert rows(read_pairs(table, None)) == [(f"a{character}b", "x"), ("c", "y")]
    objects = "".join(
        json.dumps(row, ensure_ascii=False) + "\n" for row in [{"source": f"a{character}b", "target": "x"}]
    )
    assert rows(read_pairs(write("t.jsonl", objects), None)) == [(f"a{character}b", "x")]


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
@pytest.mark.parametrize("content", ["a\nb", "a\nb\n", "a\r\nb\r\n", "\ufeffa\nb\n", "a\r\nb"])
def test_line_ends_the_last_one_and_a_byte_order_mark_are_not_text(write, name, content):
    assert read_lines(Path(write(name, content))) == ["a", "b"]


def test_other_spaces_and_marks_inside_are_text(write):
    assert read_lines(Path(write("a", "a\u00a0b c\n\n \ufeffd \n"))) == ["a\u00a0b c", "", " \ufeffd "]
    assert read_lines(Path(write("empty", ""))) == []


def test_unequal_numbers_of_lines_are_refused_naming_both(write):
    files = write("a.en", "1\n2\n3\n"), write("a.de", "1\n2\n")
    with pytest.raises(ValueError, match=r"a\.en has 3 lines and a\.de has 2"):
        read_pairs(files, None)
    assert len(read_pairs((write("b.en", "a\nb"), write("b.de", "a\nb\n")), None)) == 2


def test_a_pair_with_an_empty_side_goes_as_a_pair_and_is_counted(write, caplog):
    caplog.set_level(logging.INFO, "lockstep")
    files = write("a.en", "x\n\nw\nu\n \t\n"), write("a.de", "y\nz\n\nv\nt\n")
    assert rows(read_pairs(files, None)) == [("x", "y"), ("u", "v")]
    assert caplog.messages == ["a.en and a.de: 3 dropped as pairs, of 5: a side is empty"]
    caplog.clear()
    assert rows(read_pairs(write("a.tsv", "x\ty\n\tz\n\nw\t\n"), None)) == [("x", "y")]
    assert rows(read_pairs(write("a.jsonl", '{"source": "x", "target": "y"}\n\n{"source": null, "target": "z"}'), None))
    assert [message.split(":")[1] for message in caplog.messages] == [
        " 3 dropped as pairs, of 4",
        " 2 dropped as pairs, of 3",
    ]
    caplog.clear()
    read_pairs((write("b.en", "a\n"), write("b.de", "b\n")), None)
    assert caplog.messages == []


def test_line_ends_inside_the_texts_of_json_are_spaces(write):
    """A reference of two lines would shift all that follow in the file that anyone scores again by."""
    record = json.dumps({"source": "a\nb", "target": "c\r\nd\re\u2028"})
    assert rows(read_pairs(write("a.jsonl", record), None)) == [("a b", "c d\re\u2028")]


def test_named_columns(write):
    table = write("a.tsv", "id\tde\ten\n1\tja\tyes\n2\tnein\tno\n")
    assert rows(read_pairs(table, ("en", "de"))) == [("yes", "ja"), ("no", "nein")]
    flat = write("a.jsonl.gz", '{"en": "yes", "de": "ja"}\n')
    assert rows(read_pairs(flat, ("en", "de"))) == [("yes", "ja")]
    nested = write("b.jsonl", '{"id": 1, "translation": {"en": "yes", "de": "ja"}}\n')
    assert rows(read_pairs(nested, ("en", "de"))) == [("yes", "ja")]


def test_quotes_and_spaces_in_a_table_are_text(write):
    assert rows(read_pairs(write("a.tsv", ' "a\t b" \n'), None)) == [(' "a', ' b" ')]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.tsv", "a\tb\nc\n", None, "a.tsv, line 2: 1 columns, where line 1 has 2"),
        ("a.tsv", "a\tb\n\nc\td\te\n", None, "a.tsv, line 3: 3 columns, where line 1 has 2"),
        ("a.tsv", "a b\n", None, "a.tsv, line 1: no tab"),
        ("a.tsv", "en\tde\na\tb\n", ("en", "fr"), "a.tsv, line 1: no column fr; there are en, de"),
        ("a.tsv", "", None, "a.tsv, line 1: no tab"),
        ("a.tsv", "en\tde\n", ("en", "de"), "a.tsv: no pair with text on both sides"),
        (
            "a.jsonl",
            '{"source": "a", "target": "b"}\n{"source": \n',
            None,
            "a.jsonl, line 2: not JSON: Expecting value",
        ),
        ("a.jsonl", '["a", "b"]\n', None, "a.jsonl, line 1: not a JSON object"),
        (
            "a.jsonl",
            '{"en": "a", "de": "b"}',
            None,
            r"a.jsonl, line 1: no column source; there are en, de \(data.columns",
        ),
        ("a.jsonl", '{"source": "a", "target": 3}', None, "a.jsonl, line 1: target is 3, not a text"),
        ("a.jsonl", '{"source": "a", "target": "\\ud83d"}', None, "a.jsonl, line 1: target holds half of a surrogate"),
        ("a.jsonl", "\n", None, "a.jsonl: no pair with text on both sides"),
        ("a.tsv", b"a\tb\nc\t\xff\xfe\n", None, "a.tsv, line 2: not UTF-8 .* at byte 3"),
        ("a.txt", "a\tb\n", None, r"a.txt: one file is a .tsv or a .jsonl; two aligned files are written \[SOURCE"),
    ],
)
def test_refused_by_file_and_line(write, name, content, columns, message):
    with pytest.raises(ValueError, match=message) as refusal:
        read_pairs(write(name, content), columns)
    assert "\n" not in str(refusal.value)


def test_files_that_cannot_be_read_are_named(write, tmp_path):
    for name, message in [("nowhere", "cannot read nowhere: No such file"), (".", "cannot read .: Is a directory")]:
        with pytest.raises(ValueError, match=message):
            read_pairs((write("a", "a\n"), name), None)
    Path("broken.gz").write_bytes(gzip.compress(b"a\n" * 99)[:-9])
    Path("plain.gz").write_bytes(b"a\n")
    for name in ("broken.gz", "plain.gz"):
        with pytest.raises(ValueError, match=f"cannot read {name}: "):
            read_lines(Path(name))
    with pytest.raises(ValueError, match="a and b: no pair with text on both sides"):
        read_pairs((write("a", ""), write("b", "")), None)
