"""What corpora have in common: natural language, subwords, a cache of what is prepared, a limit of length."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from datasets import DatasetDict

from lockstep.data.encoded import Pairs
from lockstep.data.preparation import Prepared, prepare_subwords
from lockstep.data.tokenization import VocabularySize

logger = logging.getLogger("lockstep")


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """Texts in natural languages.

    Args:
        vocabulary_size: most tokens of a tokenizer.
        joint_vocabulary: one tokenizer for both sides.
        max_tokens: most tokens of a side, its two ends included.
        over_long: what happens to a training pair with a longer side: drop the pair, or cut the side, which keeps its
            end. In the other splits sides are cut and no pair is dropped, so that every score is of the same pairs;
            translations are scored against whole references.
    """

    vocabulary_size: VocabularySize
    joint_vocabulary: bool
    max_tokens: Annotated[int, Ge(3)]
    over_long: Literal["drop", "cut"]
    natural_language: ClassVar[bool] = True

    @abstractmethod
    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test."""

    def prepare(self, texts: DatasetDict) -> Prepared:
        """Byte-level subwords, trained on the training split; pairs no longer than they may be."""
        prepared = prepare_subwords(texts, vocabulary_size=self.vocabulary_size, joint=self.joint_vocabulary)
        texts, pairs = DatasetDict(), {}
        for name, whole in prepared.pairs.items():
            sides = whole.source, whole.target
            fits = np.maximum(*(side.lengths for side in sides)) <= self.max_tokens
            texts[name], pairs[name] = prepared.texts[name], whole
            if fits.all():
                continue
            drop = name == "train" and self.over_long == "drop"
            done = "dropped" if drop else "cut"
            logger.info("%s: %d of %d pairs over %d tokens %s", name, (~fits).sum(), len(fits), self.max_tokens, done)
            if drop:
                texts[name] = texts[name].select(np.flatnonzero(fits))
            pairs[name] = Pairs(*(side.where(fits) if drop else side.cut(self.max_tokens) for side in sides))
        return Prepared(prepared.tokenizers, texts, pairs)
