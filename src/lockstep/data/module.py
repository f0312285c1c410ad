"""The data module: a task's texts, tokenised, in batches."""

from typing import Protocol

import lightning as L
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from torch.utils.data import DataLoader

from lockstep.data.batching import Batch, LengthGroupedBatches, collate
from lockstep.data.tokenization import Tokenizers, encode

Pairs = list[tuple[Tensor, Tensor]]


class Task(Protocol):
    """Where texts come from, and how they become tokens."""

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test."""
        ...

    def tokenizers(self, train: Dataset) -> Tokenizers:
        """The tokenizers of both sides; where they are trained, on the training split alone."""
        ...


class DataModule(L.LightningDataModule):
    """Batches of a task for Lightning.

    Args:
        task: the texts and their tokenizers.
        batch_tokens: most target tokens in a batch, padding included.
        length_jitter: mix lengths up to this many tokens apart (see :class:`LengthGroupedBatches`).
        seed: of the task's random choices and of the order of batches.

    Raises:
        ValueError: a split has fewer than two examples.
    """

    def __init__(self, task: Task, *, batch_tokens: int, length_jitter: int, seed: int) -> None:
        super().__init__()
        self._batch_tokens = batch_tokens
        self._jitter = length_jitter
        self._seed = seed
        texts = task.splits(seed)
        for name, split in texts.items():
            if len(split) < 2:
                raise ValueError(f"the {name} split has {len(split)} examples; at least 2 are needed")
        self.tokenizers = task.tokenizers(texts["train"])
        self.splits = encode(texts, self.tokenizers)
        self._pairs = {name: _pairs(split) for name, split in self.splits.items()}

    def batches(self, split: str) -> LengthGroupedBatches:
        """The sampler of one split."""
        lengths = [(len(source), len(target)) for source, target in self._pairs[split]]
        if split == "train":
            return LengthGroupedBatches(lengths, self._batch_tokens, seed=self._seed, jitter=self._jitter)
        # Without gradients a batch can be larger.
        return LengthGroupedBatches(lengths, 4 * self._batch_tokens, seed=None)

    def _loader(self, split: str) -> DataLoader[Batch]:
        return DataLoader(self._pairs[split], batch_sampler=self.batches(split), collate_fn=collate)  # type: ignore[arg-type]

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("validation")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader("test")

    def examples(self, split: str, count: int) -> Pairs:
        """The first examples of a split, as (source, target) ids."""
        return self._pairs[split][:count]


def _pairs(split: Dataset) -> Pairs:
    columns = zip(split["source_ids"], split["target_ids"], strict=True)
    return [(torch.tensor(source), torch.tensor(target)) for source, target in columns]
