"""Multi30k: image captions in English, with their translations."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from datasets import Dataset, DatasetDict, load_dataset

from lockstep.data.lines import read_lines
from lockstep.data.tokenization import Tokenizers, subword_tokenizers

HUB_NAME = "bentrevett/multi30k"
# Our names of the splits, and those of the files.
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


@dataclass(frozen=True)
class Multi30kTask:
    """29,000 captions to train on, 1,014 to validate and the 1,000 of the 2016 test.

    Args:
        path: a folder with the raw files of the public repository multi30k/dataset (``train.en.gz``, ``val.en.gz``,
            ``test_2016_flickr.en.gz``, and so for each language); None for the Hub's copy, English and German only.
        source_language: as the files call it: en, de, fr or cs.
        target_language: likewise.
        vocabulary_size: most tokens of a tokenizer.
        joint_vocabulary: one tokenizer for both sides.
    """

    path: str | None
    source_language: str
    target_language: str
    vocabulary_size: int
    joint_vocabulary: bool
    natural_language: ClassVar[bool] = True

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test.

        Raises:
            ValueError: a file cannot be read, or two files have different numbers of lines.
        """
        if self.path is None:
            hub = load_dataset(HUB_NAME)
            columns = {self.source_language: "source", self.target_language: "target"}
            return DatasetDict({name: hub[name].select_columns([*columns]).rename_columns(columns) for name in FILES})
        return DatasetDict({name: self._read(Path(self.path), file) for name, file in FILES.items()})

    def _read(self, folder: Path, file: str) -> Dataset:
        source, target = (folder / f"{file}.{code}.gz" for code in (self.source_language, self.target_language))
        texts = {"source": read_lines(source), "target": read_lines(target)}
        if len(texts["source"]) != len(texts["target"]):
            counts = f"{len(texts['source'])} and {len(texts['target'])}"
            raise ValueError(f"{source} and {target} have {counts} lines; each line is the translation of the other's")
        return Dataset.from_dict(texts)

    def tokenizers(self, train: Dataset) -> Tokenizers:
        """Byte-level subwords, trained on the training split."""
        return subword_tokenizers(train, vocabulary_size=self.vocabulary_size, joint=self.joint_vocabulary)
