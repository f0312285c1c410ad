"""Multi30k: image captions in English, with their translations."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from datasets import DatasetDict

from lockstep.base.errors import InputError
from lockstep.data.corpus import Corpus
from lockstep.data.hub import hub_pairs
from lockstep.data.pairs import read_pairs

HUB_NAME = "bentrevett/multi30k"
HUB_LANGUAGES = ("en", "de")
# Our names of the splits, and those of the files.
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


@dataclass(frozen=True, kw_only=True)
class Multi30kTask(Corpus):
    """29,000 captions to train on, 1,014 to validate on and the 1,000 of the 2016 test.

    Args:
        path: a folder with the raw files of the public repository multi30k/dataset (``train.en.gz``, ``val.en.gz``,
            ``test_2016_flickr.en.gz``, and so for each language); None for the Hub's copy, English and German only.
        source_language: as the files call it: en, de, fr or cs.
        target_language: likewise.

    Raises:
        ValueError: a language that the Hub's copy lacks.
    """

    path: str | None
    source_language: str
    target_language: str

    def __post_init__(self) -> None:
        for language in (self.source_language, self.target_language):
            if self.path is None and language not in HUB_LANGUAGES:
                raise ValueError(
                    f"the Hub's copy of Multi30k is {' and '.join(HUB_LANGUAGES)} only; for {language} give the raw "
                    "files of the public repository multi30k/dataset: data.path=FOLDER"
                )

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test.

        Raises:
            InputError: a file is not as it should be.
            OSError: a file, or the Hub, cannot be read.
        """
        languages = self.source_language, self.target_language
        if self.path is None:
            return hub_pairs(HUB_NAME, None, languages, "give a folder with its files by data.path=FOLDER")
        source, target = (f"{self.path}/{{}}.{language}.gz" for language in languages)
        splits = {name: (source.format(file), target.format(file)) for name, file in FILES.items()}
        for path in map(Path, chain.from_iterable(splits.values())):
            if path.exists() and not path.is_file():
                raise InputError(f"{path} is no file")
        return DatasetDict({name: read_pairs(files, None) for name, files in splits.items()})
