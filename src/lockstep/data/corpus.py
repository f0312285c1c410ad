"""What corpora have in common: natural language, subwords, a cache of what is prepared, a limit of length."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from datasets import DatasetDict
from torch import Tensor

from lockstep.data.preparation import Prepared, prepare_subwords

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

    vocabulary_size: int
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
            fits = [i for i, pair in enumerate(whole) if max(map(len, pair)) <= self.max_tokens]
            drop = name == "train" and self.over_long == "drop"
            if over := len(whole) - len(fits):
                done = "dropped" if drop else "cut"
                logger.info("%s: %d of %d pairs over %d tokens %s", name, over, len(whole), self.max_tokens, done)
            texts[name] = prepared.texts[name].select(fits) if drop and over else prepared.texts[name]
            pairs[name] = [whole[i] for i in fits] if drop else [(self._cut(s), self._cut(t)) for s, t in whole]
        return Prepared(prepared.tokenizers, texts, pairs)

    def _cut(self, ids: Tensor) -> Tensor:
        return ids if len(ids) <= self.max_tokens else torch.cat([ids[: self.max_tokens - 1], ids[-1:]])
