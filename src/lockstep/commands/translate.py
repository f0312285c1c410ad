"""Translating line by line, from standard input to standard output."""

import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from PIL import Image

from lockstep.base.errors import InputError
from lockstep.base.files import write_whole
from lockstep.base.terminal import counted, printable
from lockstep.commands.options import ConfigurationError, TranslateOptions, parse
from lockstep.commands.run_folder import shown
from lockstep.commands.trained_model import Trained, load_trained
from lockstep.commands.trainer import quiet_libraries
from lockstep.commands.translator import MOST_CHARACTERS, Translation, Translator
from lockstep.data.batching import Batch, collate
from lockstep.data.lines import decoded
from lockstep.data.tokenization import BOS
from lockstep.observe.attention_maps import attention_maps, draw_attention, token_labels

logger = logging.getLogger("lockstep")

CHUNK = 1000  # lines: enough to find some of like length for every batch
CHUNK_CHARACTERS = 2**20  # at which a chunk ends with fewer lines
LONGEST_LINE = 4 * (MOST_CHARACTERS + 2)  # bytes, which hold more characters than are translated


def translate(config: dict[str, Any]) -> None:
    """Translate standard input to standard output, a chunk of lines at a time.

    Raises:
        ConfigurationError: an option that cannot be used.
        InputError: a line that cannot; those before it are translated.
        CheckpointError: there is no trained model where the options say.
    """
    quiet_libraries()
    options = parse(TranslateOptions, config)
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None:
        _check_output(picture)
    trained = load_trained(Path(options.checkpoint), options.trust)
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    translator = Translator(trained.model, trained.tokenizers, options.search, options.batch_tokens, options.cached)
    logger.info("translating with step %d, %s", trained.step, shown(trained.path))
    started, done = time.perf_counter(), 0
    try:
        for lines in read_chunks(sys.stdin.buffer, 1 if sys.stdin.isatty() else CHUNK):
            translations = translator(lines, first_line=done + 1)
            plain = printable if sys.stdout.isatty() else str  # a model may have learned to steer a terminal
            sys.stdout.buffer.writelines(f"{plain(line)}\n".encode() for line in _output(translations, done, options))
            sys.stdout.buffer.flush()
            done += len(lines)
            if len(lines) == CHUNK:  # so there may be more
                logger.info("%d lines so far, in %.1f s", done, time.perf_counter() - started)
            first = next((best[0] for best in translations if best[0].source), None)
            if picture is not None and first is not None:
                _draw(trained, first, picture)
                picture = None
    except BrokenPipeError:  # whoever reads has read enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    translator.say_doubts()
    if picture is not None:
        logger.warning("no picture: there was no line to translate")
    logger.info("%s in %.1f s", counted(done, "line"), time.perf_counter() - started)


def _check_output(picture: Path) -> None:
    """Refuse what no picture can be written to."""
    folder = Path(os.path.realpath(picture)).parent
    if not _can_be_drawn(_format(picture)):
        suffixes = " ".join(suffix for suffix, name in Image.registered_extensions().items() if _can_be_drawn(name))
        raise ConfigurationError(
            f"option picture={picture}: {picture.suffix} is no picture that can be written; there are {suffixes}"
        )
    if picture.is_dir():
        raise ConfigurationError(f"option picture={picture} is a folder; name a file")
    if not folder.is_dir():
        raise ConfigurationError(f"option picture={picture}: there is no folder {folder}")
    if not os.access(picture if picture.exists() and not picture.is_file() else folder, os.W_OK):
        raise ConfigurationError(f"option picture={picture}: it cannot be written in {folder}")


def _format(picture: Path) -> str:
    """As its name says; what has no suffix, such as a pipe, is PNG."""
    return Image.registered_extensions().get(picture.suffix.lower(), "") if picture.suffix else "PNG"


def _can_be_drawn(name: str) -> bool:
    """Whether a format of Pillow's holds colours, can be written, and is to stay."""
    with warnings.catch_warnings(), suppress(KeyError, OSError, ValueError, DeprecationWarning):
        warnings.simplefilter("error", DeprecationWarning)
        Image.new("RGB", (1, 1)).save(io.BytesIO(), format=name)
        return True
    return False


def read_chunks(stream: BinaryIO, size: int) -> Iterator[list[str]]:
    """Lines as text (see :func:`decoded`), ``size`` or 2**20 characters at a time.

    Raises:
        InputError: a line is no text; those before it have been given.
    """
    chunk: list[str] = []
    characters = 0
    try:
        for text in decoded(_bounded_lines(stream), "standard input"):
            chunk.append(text)
            characters += len(text)
            if len(chunk) == size or characters >= CHUNK_CHARACTERS:
                yield chunk
                chunk, characters = [], 0
    except InputError as error:
        yield chunk
        raise InputError(f"{error}; it and all that follow are not translated") from None
    yield chunk


def _bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without what goes beyond ``LONGEST_LINE`` bytes, which is read and forgotten a piece at a time."""
    while line := stream.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        if rest is not line:
            # The cut may be within a character; of a whole one the start is found 1 to 4 bytes before the end.
            start = next((i for i in range(1, 5) if line[-i] & 0xC0 != 0x80), 0)
            line = line[: len(line) - start]
        yield line


def _output(translations: Sequence[list[Translation]], before: int, options: TranslateOptions) -> Iterator[str]:
    """The lines to print: of several translations each with the number of its input line, as Moses and Marian do."""
    for number, best in enumerate(translations, start=before):
        if options.search.n_best == 1:
            yield best[0].text
        else:
            yield from (f"{number} ||| {each.text} ||| {each.score:.6f}" for each in best)


def _draw(trained: Trained, translation: Translation, path: Path) -> None:
    """A picture of what a translation attends to in its source, of the tokens that were translated."""
    batch = collate([(torch.tensor(translation.source), torch.tensor([BOS, *translation.target]))])
    device = next(trained.model.parameters()).device
    weights = attention_maps(trained.model, Batch(batch.source.to(device), batch.target.to(device)))["cross"]
    queries = token_labels(trained.tokenizers.target, batch.prefix[0])
    keys = token_labels(trained.tokenizers.source, batch.source[0])
    content = io.BytesIO()
    Image.fromarray(draw_attention(weights, queries, keys)).save(content, format=_format(path))
    write_whole(path, content.getvalue(), follow=True)
    shape = "%d of %d queries down, %d of %d keys across, 0 dark to 1 bright: %s"
    logger.info(shape, weights.size(2), len(queries), weights.size(3), len(keys), shown(path))
