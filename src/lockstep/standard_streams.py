"""Translating line by line, from standard input to standard output."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from lockstep.configuration import ConfigurationError, TranslateOptions, parse
from lockstep.data.batching import Batch, collate
from lockstep.data.lines import decoded
from lockstep.data.tokenization import BOS
from lockstep.observe.attention_maps import attention_maps, draw_attention, token_labels
from lockstep.runs import shown
from lockstep.terminal import counted
from lockstep.trained import Trained, load_trained
from lockstep.trainer import quiet_libraries
from lockstep.translation import Translation, Translator

logger = logging.getLogger("lockstep")

CHUNK = 1000  # lines: enough to find some of like length for every batch


def translate(config: dict[str, Any]) -> None:
    """Translate standard input to standard output, a chunk of lines at a time.

    Raises:
        ConfigurationError: an option, or a line of the input, that cannot be used.
        CheckpointError: there is no trained model where the options say.
    """
    quiet_libraries()
    options = parse(TranslateOptions, config)
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigurationError(f"option picture={options.picture}: there is no folder {picture.parent}")
    if picture is not None and picture.is_dir():
        raise ConfigurationError(f"option picture={options.picture} is a folder; name a file")
    trained = load_trained(Path(options.checkpoint))
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    translator = Translator(trained.model, trained.tokenizers, options.search, options.batch_tokens, options.cached)
    logger.info("translating with step %d, %s", trained.step, shown(trained.path))
    started, done = time.perf_counter(), 0
    try:
        for lines in read_chunks(sys.stdin.buffer, 1 if sys.stdin.isatty() else CHUNK):
            translations = translator(lines, first_line=done + 1)
            sys.stdout.buffer.writelines(f"{line}\n".encode() for line in _output(translations, done, options))
            sys.stdout.buffer.flush()
            done += len(lines)
            if len(lines) == CHUNK:  # so there may be more
                logger.info("%d lines so far, in %.1f s", done, time.perf_counter() - started)
            real = next((line for line in lines if line.strip()), None)
            if picture is not None and real is not None:
                _draw(trained, translator, real, picture)
                picture = None
    except BrokenPipeError:  # whoever reads has read enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    logger.info("%s in %.1f s", counted(done, "line"), time.perf_counter() - started)


def read_chunks(stream: Iterable[bytes], size: int) -> Iterator[list[str]]:
    """Lines as text, ``size`` at a time (see :func:`decoded`).

    Raises:
        ConfigurationError: a line is not UTF-8; those before it have been given.
    """
    chunk: list[str] = []
    try:
        for text in decoded(stream, "standard input"):
            chunk.append(text)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except ValueError as error:
        yield chunk
        raise ConfigurationError(
            f"{error}; it and all that follow are not translated. To convert a file: iconv -f latin1 -t utf-8"
        ) from None
    yield chunk


def _output(translations: Sequence[list[Translation]], before: int, options: TranslateOptions) -> Iterator[str]:
    """The lines to print: of several translations each with the number of its input line, as Moses and Marian do."""
    for number, best in enumerate(translations, start=before):
        if options.search.n_best == 1:
            yield best[0].text
        else:
            yield from (f"{number} ||| {text} ||| {score:.6f}" for text, score in best)


def _draw(trained: Trained, translator: Translator, line: str, path: Path) -> None:
    """A picture of the attention of a line's best translation to the line."""
    tokenizers = trained.tokenizers
    source = tokenizers.source.encode(line).ids
    target = [BOS, *translator.hypotheses([source])[0][0].tokens]
    batch = collate([(torch.tensor(source), torch.tensor(target))])
    device = next(trained.model.parameters()).device
    weights = attention_maps(trained.model, Batch(batch.source.to(device), batch.target.to(device)))["cross"]
    queries, keys = token_labels(tokenizers.target, batch.prefix[0]), token_labels(tokenizers.source, batch.source[0])
    Image.fromarray(draw_attention(weights, queries, keys)).save(path, format="PNG")
    logger.info("%d queries down, %d keys across, 0 dark to 1 bright: %s", len(queries), len(keys), shown(path))
