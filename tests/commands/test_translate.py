"""``scripts/translate.py``: lines in, as many out, and nothing else."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import compose
from PIL import Image
from training.runs import config, run

from lockstep.base.errors import CheckpointError, InputError
from lockstep.commands import translate as translate_command
from lockstep.commands import translator
from lockstep.commands.options import ConfigurationError
from lockstep.commands.trained_model import load_trained
from lockstep.commands.translate import read_chunks, translate
from lockstep.commands.translator import LONGEST, MOST_CHARACTERS, Translator
from lockstep.observe.attention_maps import MOST_PIXELS, MOST_TOKENS, draw_attention
from lockstep.training.checkpoints import read_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(config(tmp_path_factory.mktemp("runs"), "trainer.max_steps=6", "trainer.val_check_interval=3"))


@pytest.fixture
def lines(trained, monkeypatch, capfdbinary):
    """Translate bytes as the script would; what it wrote."""

    def call(data, *overrides, checkpoint=trained):
        composed = compose("checkpoint=x", "search.max_length=6", *overrides, script="translate")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out := io.BytesIO()))
        translate({**composed, "checkpoint": str(checkpoint)})
        assert capfdbinary.readouterr().out == b""
        return out.getvalue().decode()

    return call


def test_one_line_for_each_line_which_end_at_lf_or_cr_lf_alone(lines):
    found = lines("1 2\r\n\n 1\u20282\x0b\x0c\x853 \n   \n4\r5\n\r\n2".encode()).split("\n")
    assert len(found) == 8
    assert [bool(line) for line in found] == [True, False, True, False, True, False, True, False]
    assert lines(b"") == ""
    assert lines(b"\n") == "\n"
    assert lines(b"1\n2\n") == lines(b"1\n2")
    assert next(read_chunks(io.BytesIO(b"\xef\xbb\xbf1\n\xef\xbb\xbf2\n"), 2)) == ["1", "\ufeff2"]  # as in training


def test_lines_are_decoded_one_by_one_and_a_bad_one_is_named_after_those_before_it():
    chunks = read_chunks(io.BytesIO(b"a\nb\n\xc3\xa9\r\nd\xff\ne\n"), 2)
    assert next(chunks) == ["a", "b"]
    assert next(chunks) == ["é"]
    with pytest.raises(InputError, match=r"standard input, line 4: not UTF-8 \(invalid start byte at byte 2\)"):
        next(chunks)


def test_chunks_and_batches_change_nothing(lines, monkeypatch, caplog):
    data = "".join(f"{i} {'7 9 ' * (i % 3)}\n" for i in range(20)).encode()
    expected = lines(data)
    assert expected.count("\n") == 20
    assert len(set(expected.split("\n"))) > 3
    monkeypatch.setattr("lockstep.commands.translate.CHUNK", 3)
    assert lines(data) == expected
    assert [record.args[0] for record in caplog.records if "so far" in record.message] == [3, 6, 9, 12, 15, 18]
    assert lines(data, "batch_tokens=1") == expected
    assert lines(data, "cached=false") == expected


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, "\\x1b[31m\n"), (io.TextIOWrapper, "\x1b[31m\n")])
def test_what_a_model_says_does_not_steer_a_terminal(lines, monkeypatch, stream, shown):
    monkeypatch.setattr(translator, "to_line", lambda tokenizer, ids: "\x1b[31m")
    monkeypatch.setattr(io, "TextIOWrapper", stream)
    assert lines(b"3 4\n") == shown


def test_several_translations_are_numbered_as_in_moses(lines):
    best, several = lines(b"1 2\n\n3\n"), lines(b"1 2\n\n3\n", "search.n_best=2")
    rows = [line.split(" ||| ") for line in several.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    assert [rows[i][1] for i in (0, 2, 3)] == best.splitlines()
    assert float(rows[0][2]) >= float(rows[1][2])


def test_a_picture_of_the_first_translation(lines, tmp_path):
    lines(b"\n\n1 2 3\n4\n", f"picture='{tmp_path}/attention'")
    with Image.open(tmp_path / "attention") as image:
        assert image.format == "PNG"
    lines(b"1\n", f"picture='{tmp_path}/attention.jpg'")
    with Image.open(tmp_path / "attention.jpg") as image:
        assert image.format == "JPEG"
    for suffix in ("text", "xbm"):  # of a format that has no colours
        with pytest.raises(ConfigurationError, match=rf"\.{suffix} is no picture that can be .*; there are .*\.png"):
            lines(b"1\n", f"picture='{tmp_path}/attention.{suffix}'")
    with pytest.raises(ConfigurationError, match="there is no folder"):
        lines(b"1\n", f"picture='{tmp_path}/none/picture.png'")
    with pytest.raises(ConfigurationError, match="is a folder"):
        lines(b"1\n", f"picture='{tmp_path}'")


def test_a_picture_shows_the_tokens_that_were_translated_as_many_as_it_holds(lines, tmp_path, monkeypatch, caplog):
    drawn = []

    def draw(weights, queries, keys):
        drawn.append((tuple(weights.shape), queries, keys))
        return draw_attention(weights, queries, keys)

    monkeypatch.setattr(translate_command, "draw_attention", draw)
    monkeypatch.setattr(Translator, "hypotheses", once(Translator.hypotheses))
    long = " ".join(str(i % 10) for i in range(3000))
    translated = lines(f"{long}\n".encode(), f"picture='{tmp_path}/long.png'").split()
    ((shape, queries, keys),) = drawn
    assert shape[2:] == (len(queries), MOST_TOKENS)
    assert queries == ["<s>", *translated][: len(queries)]
    assert len(queries) in (len(translated), len(translated) + 1)  # cut, or ended
    assert len(keys) == LONGEST
    assert keys[1:] == [*long.split()[: LONGEST - 2], "</s>"]
    with Image.open(tmp_path / "long.png") as image:
        assert image.width * image.height < 2 * MOST_PIXELS
    assert f"{MOST_TOKENS} of {LONGEST} keys across" in caplog.text


def once(method):
    calls = []

    def counted(self, sources):
        calls.append(sources)
        assert len(calls) == 1
        return method(self, sources)

    return counted


def test_a_picture_goes_through_links_and_to_devices_which_stay_what_they_are(lines, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.png"
    link.symlink_to(tmp_path / "elsewhere" / "picture.png")
    lines(b"1 2\n", f"picture='{link}'")
    assert link.is_symlink()
    with Image.open(tmp_path / "elsewhere" / "picture.png") as image:
        assert image.format == "PNG"
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["picture.png"]
    lines(b"1 2\n", "picture=/dev/null")
    assert Path("/dev/null").is_char_device()
    lines(b"\n", f"picture='{tmp_path}/none.png'")
    assert "no picture: there was no line to translate" in caplog.text


def test_a_line_without_end_is_read_a_piece_at_a_time(monkeypatch):
    class Endless(io.RawIOBase):
        """Lines of "é"; the second is far longer than what is kept of it."""

        left = [b"ab\n", *["\u00e9".encode() * 1000] * 20_000, b"\ncd\n"]  # noqa: RUF012
        most = 0

        def readline(self, size):
            assert 0 < size <= 1_000_000
            line = b""
            while self.left and len(line) < size and not line.endswith(b"\n"):
                piece = self.left.pop(0)
                end = min(size - len(line), piece.find(b"\n") + 1 or len(piece))
                line += piece[:end]
                if piece[end:]:
                    self.left.insert(0, piece[end:])
            return line

    first, second, third = [text for chunk in read_chunks(Endless(), 10) for text in chunk]
    assert (first, third) == ("ab", "cd")
    assert MOST_CHARACTERS < len(second) <= 4 * MOST_CHARACTERS
    assert set(second) == {"\u00e9"}
    monkeypatch.setattr(translate_command, "LONGEST_LINE", 7)
    for character in ("a", "\u00e9", "\u732b", "\U0001f408"):
        chunks = list(read_chunks(io.BytesIO(f"{character * 9}\n{character}\n{character * 30}".encode()), 1))
        kept = character * (6 // len(character.encode()))
        assert [text for chunk in chunks for text in chunk] == [kept, character, kept]


def test_a_chunk_ends_by_its_characters_too(monkeypatch):
    monkeypatch.setattr(translate_command, "CHUNK_CHARACTERS", 5)
    assert list(read_chunks(io.BytesIO(b"abc\nde\nf\n"), 10)) == [["abc", "de"], ["f"]]


def test_translations_that_are_cut_are_counted_once(lines, caplog):
    lines(b"1 2\n\n3\n4 5 6\n", "search.max_length=1", "search.beam_size=1")
    (said,) = [message for message in caplog.messages if "are cut" in message]
    assert re.fullmatch(r"[123] of 3 translations are cut: they .* without an end; see search\.max_length", said)
    caplog.clear()
    lines(b"\n")
    assert "are cut" not in caplog.text


def test_lines_in_another_language_than_the_models_are_counted(lines, caplog):
    lines(b"1 2\na man is here\n1 man\n")
    (said,) = [record.message for record in caplog.records if "no word" in record.message]
    assert said.startswith("1 of 3 lines hold no word that this model knows: it has 26 words such as 0, 1, 10, 11, 12")


def test_the_best_checkpoint_of_a_run_or_the_one_that_is_named(trained, tmp_path):
    found = load_trained(trained)
    assert found.path == trained / "checkpoints" / "best.ckpt"
    assert found.step == read_checkpoint(found.path)["global_step"]
    (tmp_path / "checkpoints").mkdir()
    for name in ("checkpoints/last.ckpt", "source_tokenizer.json", "target_tokenizer.json"):
        shutil.copy(trained / name, tmp_path / name)
    assert load_trained(tmp_path).path.name == "last.ckpt"
    weights = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    model = load_trained(trained / "checkpoints" / "last.ckpt").model
    assert all(torch.equal(weights[f"model.{name}"], tensor) for name, tensor in model.state_dict().items())


def test_a_checkpoint_needs_its_own_tokenizers(trained, tmp_path):
    alone = tmp_path / "alone.ckpt"
    shutil.copy(trained / "checkpoints" / "last.ckpt", alone)
    with pytest.raises(CheckpointError, match=r"has no tokenizers: put source_tokenizer\.json and target_tokenizer"):
        load_trained(alone)
    for side in ("source", "target"):
        text = (trained / f"{side}_tokenizer.json").read_text()
        (tmp_path / f"{side}_tokenizer.json").write_text(text.replace('"0": 4', '"0": 5').replace('"1": 5', '"1": 4'))
    with pytest.raises(CheckpointError, match=r"are not those that .* was trained with"):
        load_trained(alone)
    for side in ("source", "target"):
        shutil.copy(trained / f"{side}_tokenizer.json", tmp_path)
    assert load_trained(alone).step == 6
    (tmp_path / "target_tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_trained(alone)
    with pytest.raises(CheckpointError, match="not a run folder"):
        load_trained(tmp_path)


def test_options_that_contradict_are_refused_by_name(lines):
    with pytest.raises(ConfigurationError, match=r"option search\.n_best=6 is more than the beam_size=5"):
        lines(b"1\n", "search.n_best=6")
    with pytest.raises(ConfigurationError, match=r"option batch_tokens=0"):
        lines(b"1\n", "batch_tokens=0")


def process(*arguments):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "translate.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_standard_output_holds_translations_alone(trained):
    output, errors = process(f"checkpoint={trained}").communicate(b"1 2\n\n3\n")
    assert len(output.decode().splitlines()) == 3
    said, cut, done = errors.decode().splitlines()  # six steps have not taught it to end its lines
    assert said.startswith("translating ")
    assert cut.startswith("2 of 2 translations are cut")
    assert done.startswith("3 ")
    started = process("checkpoint=nowhere")
    output, errors = started.communicate(b"a\n")
    assert (started.returncode, output, errors) == (65, b"", b"error: checkpoint nowhere does not exist\n")


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_quietly(trained):
    with process(f"checkpoint={trained}") as started:
        started.stdin.write(b"1 2 3\n" * 3000)
        started.stdin.flush()
        assert started.stdout.readline().endswith(b"\n")
        started.stdout.close()
        started.stdin.write(b"1 2 3\n" * 3000)
        started.stdin.close()
        said, *so_far = started.stderr.read().splitlines()
        assert said.startswith(b"translating ")
        assert all(b"lines so far" in line for line in so_far)
    assert started.returncode == 0
