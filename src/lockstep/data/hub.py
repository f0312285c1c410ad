"""Pairs of texts from a dataset of the Hugging Face Hub, or an answer within seconds."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict
from huggingface_hub import constants, get_session

from lockstep.base.errors import InputError
from lockstep.data.pairs import Columns, one_line, without_empty

PATIENCE = 8.0  # seconds; a name server that does not answer takes longer than any timeout of a connection


def hub_pairs(name: str, subset: str | None, columns: Columns, instead: str) -> DatasetDict:
    """Text columns ``source`` and ``target`` of those of the splits train, validation and test that there are.

    A dataset once loaded is in the Hub's cache, and needs no network then.

    Args:
        name: such as ``bentrevett/multi30k``.
        subset: the Hub's configuration of the dataset, where there are several.
        columns: of source and target, or the two languages of a ``translation`` column.
        instead: what to do where the Hub cannot be reached.

    Raises:
        ValueError: it is no name of the Hub's, there is no such dataset, or it lacks a column or the split train.
        OSError: the Hub cannot be reached, and its cache lacks the dataset.
        InputError: a column does not hold texts.
    """
    # Other names, and folders of such a name, are files of the working folder to the library.
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) or name.startswith(".") or Path(name).exists():
        raise ValueError(
            f"dataset {name}: a dataset of the Hub is named OWNER/NAME, and no folder here may be so called"
        )
    reachable = constants.HF_HUB_OFFLINE or _hub_answers()
    try:
        with _offline(constants.HF_HUB_OFFLINE or not reachable):
            loaded = datasets.load_dataset(name, subset)
    except Exception as error:  # the Hub's client raises what each of its libraries raises
        reason = str(error).strip().splitlines()[0]
        if reachable and not constants.HF_HUB_OFFLINE:
            raise ValueError(f"dataset {name}: {reason}") from error
        raise ConnectionError(
            f"{constants.ENDPOINT} cannot be reached, and its cache does not give dataset {name} ({reason}); connect, "
            f"or {instead}"
        ) from error
    if "train" not in loaded:
        raise ValueError(f"dataset {name} has the splits {', '.join(loaded)}, none named train; {instead}")
    wanted = [split for split in ("train", "validation", "test") if split in loaded]
    return DatasetDict({split: _pairs(loaded[split].flatten(), columns, f"{name}, {split}") for split in wanted})


def _pairs(split: Dataset, columns: Columns, place: str) -> Dataset:
    texts = []
    for column in columns:
        found = [name for name in (column, f"translation.{column}") if name in split.column_names]
        if not found:
            raise ValueError(f"{place}: no column {column}; there are {', '.join(split.column_names)}")
        texts.append([text or "" for text in split[found[0]][:]])
        if not all(isinstance(text, str) for text in texts[-1]):
            raise InputError(f"{place}: column {column} holds other things than texts")
    source, target = ([one_line(text) for text in side] for side in texts)
    return without_empty(zip(source, target, strict=True), place)


def _hub_answers() -> bool:
    """Whether the Hub can be reached at all, asked once and briefly: its client would ask for half a minute."""
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE / 2))
        except Exception:  # of whichever library the session is
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Both libraries' own offline mode, which looks in the cache alone."""
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = wanted
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
