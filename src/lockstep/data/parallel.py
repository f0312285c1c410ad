"""Any parallel corpus: a user's own files, or a dataset of the Hub."""

import logging
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from datasets import Dataset, DatasetDict

from lockstep.data.corpus import Corpus
from lockstep.data.hub import hub_pairs
from lockstep.data.pairs import Columns, Files, read_pairs
from lockstep.data.tokenization import texts

logger = logging.getLogger("lockstep")


@dataclass(frozen=True, kw_only=True)
class ParallelTask(Corpus):
    """Pairs of texts from files, or from the splits train, validation and test of a dataset of the Hub.

    Args:
        train: two files whose lines correspond, one ``.tsv`` or one ``.jsonl`` file, each plain or ``.gz``.
        validation: likewise; None holds pairs out of the training pairs.
        test: likewise.
        columns: of source and target in a table, in JSON objects or in the dataset (see :func:`read_pairs`).
        dataset: name of a dataset of the Hub, instead of files.
        subset: its configuration, where it has several.
        held_out: most pairs that validation, and test, take from the training pairs where they are not given; never
            more than a tenth of these.

    Raises:
        ValueError: options that do not go together.
    """

    train: Files | None
    validation: Files | None
    test: Files | None
    columns: Columns | None
    dataset: str | None
    subset: str | None
    held_out: Annotated[int, Ge(0)]

    def __post_init__(self) -> None:
        files = {name: value for name in ("train", "validation", "test") if (value := getattr(self, name)) is not None}
        if self.dataset is None and self.train is None:
            raise ValueError(
                "no training pairs; give data.train=[SOURCE,TARGET], data.train=FILE.tsv, data.train=FILE.jsonl or "
                "data.dataset=NAME"
            )
        if self.dataset is not None and files:
            raise ValueError(f"data.dataset and data.{next(iter(files))} are both given; pairs come from one of them")
        if self.dataset is None and self.subset is not None:
            raise ValueError(f"data.subset={self.subset} is of a dataset of the Hub; give data.dataset=NAME")
        if self.dataset is not None and self.columns is None:
            raise ValueError("data.dataset needs data.columns=[SOURCE,TARGET], such as [de,en]")
        if self.columns is not None and files and all(isinstance(value, tuple) for value in files.values()):
            raise ValueError("data.columns is of a table or of JSON objects; aligned files have none")

    @property
    def target_language(self) -> str | None:
        """As the target's column is called, or as its file ends; it may be no language at all."""
        if self.columns is not None:
            return self.columns[1]
        return Path(self.train[1].removesuffix(".gz")).suffix[1:] if isinstance(self.train, tuple) else None

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test.

        Raises:
            InputError: a file is not as it should be.
            OSError: a file, or the Hub, cannot be read.
            ValueError: a file of another kind, or a dataset that there is not.
        """
        if self.dataset is not None:
            assert self.columns is not None
            instead = "give files by data.train=[SOURCE,TARGET]"
            given = hub_pairs(self.dataset, self.subset, self.columns, instead)
        else:
            files = {"train": self.train, "validation": self.validation, "test": self.test}
            given = DatasetDict({name: read_pairs(f, self.columns) for name, f in files.items() if f is not None})
        missing = [name for name in ("validation", "test") if name not in given]
        return DatasetDict({**given, **hold_out(given["train"], missing, self.held_out, seed)}) if missing else given


def hold_out(train: Dataset, names: list[str], most: int, seed: int) -> dict[str, Dataset]:
    """The rest of the training pairs, and splits drawn from those whose two texts occur in no other pair.

    Each split gets ``most`` pairs, a tenth of the training pairs, or its share of those that can be drawn, whichever
    is least; where that is less than two, it is the training pairs themselves.
    """
    count = len(train)
    once = [Counter(texts(train, side)) for side in ("source", "target")]
    pairs = zip(texts(train, "source"), texts(train, "target"), strict=True)
    alone = [i for i, (source, target) in enumerate(pairs) if once[0][source] == once[1][target] == 1]
    del once
    size = min(most, count // 10, len(alone) // len(names))
    if size < 2:
        logger.warning(
            "none of the %d training pairs is held out for %s: the training pairs themselves stand in, and scores on "
            "them say nothing about other texts",
            count,
            " and ".join(names),
        )
        return dict.fromkeys(names, train)
    drawn = random.Random(seed).sample(alone, size * len(names))
    logger.info("%d of %d training pairs held out for %s", len(drawn), count, " and ".join(names))
    rest = sorted(set(range(count)).difference(drawn))
    chosen = {"train": rest, **{name: sorted(drawn[k :: len(names)]) for k, name in enumerate(names)}}
    return {name: train.select(indices) for name, indices in chosen.items()}
