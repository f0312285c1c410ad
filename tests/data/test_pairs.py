"""Pairs from files: every line counted once, pairs kept together, whatever is wrong named by file and line."""

import bz2
import contextlib
import gzip
import json
import logging
import lzma
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.base.errors import InputError
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
    assert list(read_lines(Path(write(name, content)))) == ["a", "b"]


def test_other_spaces_and_marks_inside_are_text(write):
    assert list(read_lines(Path(write("a", "a\u00a0b c\n\n \ufeffd \n")))) == ["a\u00a0b c", "", " \ufeffd "]


def test_unequal_numbers_of_lines_are_refused_naming_both(write):
    files = write("a.en", "1\n2\n3\n"), write("a.de", "1\n2\n")
    with pytest.raises(InputError, match=r"a\.en has 3 lines and a\.de has 2"):
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
        ("a.tsv", "en\tde\na\tb\n", ("en", "fr"), r"a.tsv, line 1: no column fr; there are \['en', 'de'\]"),
        ("a.tsv", "", None, "a.tsv is empty"),
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
            r"a.jsonl, line 1: no column source; there are \['en', 'de'\] \(data.columns",
        ),
        ("a.jsonl", '{"source": "a", "target": 3}', None, "a.jsonl, line 1: target is 3, not a text"),
        ("a.jsonl", '{"source": "a", "target": "\\ud83d"}', None, "a.jsonl, line 1: target holds half of a surrogate"),
        ("a.jsonl", "\n", None, "a.jsonl: no pair with text on both sides"),
        ("a.tsv", b"a\tb\nc\t\xff\xfe\n", None, "a.tsv, line 2: not UTF-8 .* at byte 3"),
        ("a.jsonl", "[" * 100_000, None, "a.jsonl, line 1: JSON nested too deep"),
        ("a.jsonl", '{"source": ' + "9" * 5000 + "}", None, "a.jsonl, line 1: JSON nested too deep, or with a number"),
        ("a.jsonl", '{"source": "' + "a" * 2**20 + '"}', None, "a.jsonl, line 1: over 1,048,576 bytes long"),
        ("a.tsv", "\x1b[2Ja\tb\n", ("a", "b"), r"no column a; there are \['\\x1b\[2Ja', 'b'\]"),
        ("a.tsv", "a\tb\rc\td\r", None, r"a.tsv: lines end in carriage returns alone; .* tr '\\r' '\\n' < a.tsv"),
        ("a.tsv", "a\tb\n".encode("utf-16"), None, "a.tsv is UTF-16, not UTF-8 text: iconv -f utf-16 -t utf-8"),
        ("a.tsv", "a\tb\n".encode("utf-32"), None, "a.tsv is UTF-32"),
        ("a.tsv", "a\tb\n".encode("utf-16le"), None, "a.tsv, line 1: NUL characters, as in UTF-16 .*-f utf-16le"),
        ("a.tsv", "a\tb\n".encode("utf-16be"), None, "a.tsv, line 1: NUL characters, as in UTF-16 .*-f utf-16be"),
        ("a.tsv", bz2.compress(b"a\tb\n"), None, "a.tsv is bzip2, not UTF-8 text: bzip2 -dc"),
        ("a.tsv", lzma.compress(b"a\tb\n"), None, "a.tsv is xz, not UTF-8 text: xz -dc"),
        ("a.tsv", b"PK\x03\x04rest", None, "a.tsv is a zip archive"),
        ("a.tsv.gz", "", None, "a.tsv.gz is empty"),
        ("a.tsv.gz", ("a" * 2000 + "\tb\n") * 6000, None, "a.tsv.gz, line [0-9]*: over 100 times the file's size"),
    ],
)
def test_refused_by_file_and_line(write, name, content, columns, message):
    with pytest.raises(InputError, match=message) as refusal:
        read_pairs(write(name, content), columns)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a", "a.json.gz"])
def test_a_file_of_another_kind_is_refused_before_it_is_looked_for(name):
    with pytest.raises(
        ValueError, match=rf"{name}: one file is a .tsv or a .jsonl; two .* \[SOURCE,TARGET\]"
    ) as refusal:
        read_pairs(name, None)
    assert ("; save a table as .tsv" in str(refusal.value)) == (name == "a.csv")


def test_gzip_is_known_without_its_name(write):
    write("a.gz", "x\ty\n")
    Path("a.gz").rename("a.tsv")
    assert rows(read_pairs("a.tsv", None)) == [("x", "y")]


ODD = st.one_of(
    st.text(st.sampled_from('ab \t\r\n\v\x85\u2028\ufeff\0{}[]":,'), max_size=60).map(str.encode),
    st.lists(st.sampled_from(["x\ty", "\t", "", '{"source": "a", "target": "b"}', "{}", "x\ty\tz"])).map(
        lambda lines: "\n".join(lines).encode()
    ),
    st.binary(max_size=60),
)


@given(ODD, ODD)
def test_any_bytes_give_pairs_of_corresponding_lines_or_are_refused(tmp_path_factory, one, other):
    folder = tmp_path_factory.mktemp("odd")
    files = str(folder / "a.tsv"), str(folder / "b.jsonl")
    for name, content in zip(files, (one, other), strict=True):
        Path(name).write_bytes(content)
    with contextlib.suppress(InputError):
        found = rows(read_pairs(files, None))
        first, second = (re.split(r"\r?\n", content.decode("utf-8-sig")) for content in (one, other))
        assert found == [pair for pair in zip(first, second, strict=False) if pair[0].strip() and pair[1].strip()]
    for name in files:
        with contextlib.suppress(InputError):
            assert all(s.strip() and t.strip() and "\n" not in s + t for s, t in rows(read_pairs(name, None)))


def test_files_that_cannot_be_read_are_named(write):
    for name, message in [("nowhere", "cannot read nowhere: No such file"), (".", "cannot read .: Is a directory")]:
        with pytest.raises(OSError, match=message):
            read_pairs((write("a", "a\n"), name), None)
    Path("broken.gz").write_bytes(gzip.compress(b"a\n" * 99)[:-9])
    Path("plain.gz").write_bytes(b"a\n")
    for name, line in (("broken.gz", 99), ("plain.gz", 0)):
        with pytest.raises(InputError, match=f"{name}, after line {line}: damaged, or not gzip: "):
            list(read_lines(Path(name)))
    with pytest.raises(InputError, match="a and b: no pair with text on both sides"):
        read_pairs((write("a", "\n"), write("b", "\n")), None)


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(b"a\nb\n"),)).start()
    assert list(read_lines(tmp_path / "pipe")) == ["a", "b"]


def test_a_file_of_no_size_is_empty_and_not_waited_for(tmp_path, monkeypatch):
    """As /proc/kmsg, which says that it is a file."""
    (tmp_path / "empty").touch()
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(InputError, match="empty is empty"):
        list(read_lines(tmp_path / "empty"))
