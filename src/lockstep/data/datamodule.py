"""The data module: a task's texts, tokenised, in batches."""

import logging
from typing import Any, ClassVar, Protocol

import lightning as L
import torch
from datasets import DatasetDict
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from lockstep.base.terminal import counted
from lockstep.data.batching import Batch, EndlessBatches, LengthGroupedBatches, collate
from lockstep.data.preparation import Prepared

logger = logging.getLogger("lockstep")


class Task(Protocol):
    """Where texts come from, and how they become tokens."""

    natural_language: ClassVar[bool]  # whether a translation may differ from its reference and still be good

    @property
    def target_language(self) -> str | None:
        """Such as de or zh_TW, where the data says it."""
        ...

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test."""
        ...

    def prepare(self, texts: DatasetDict) -> Prepared:
        """Tokenizers, trained on the training split alone if at all, and the ids of what is trained on."""
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
        self.natural_language = task.natural_language
        self.target_language = task.target_language
        self.tokenizers, self._texts, self._pairs = task.prepare(task.splits(seed))
        for name, pairs in self._pairs.items():
            if len(pairs) < 2:
                raise ValueError(f"the {name} split has {counted(len(pairs), 'example')}; at least 2 are needed")
        self._batches_before = 0  # those of the sessions before this one
        self._stream = EndlessBatches(self.batches("train"))

    def setup(self, stage: str) -> None:
        """Say what an epoch of training is."""
        if stage == "fit":
            logger.info(self.batches("train").summary())

    def batches(self, split: str) -> LengthGroupedBatches:
        """The sampler of one split."""
        lengths = self._pairs[split].lengths()
        if split == "train":
            return LengthGroupedBatches(lengths, self._batch_tokens, seed=self._seed, jitter=self._jitter)
        # Without gradients a batch can be larger.
        return LengthGroupedBatches(lengths, 4 * self._batch_tokens, seed=None)

    def _loader(self, split: str, sampler: Sampler[list[int]]) -> DataLoader[Batch]:
        # A loader draws a seed for its workers whenever it is iterated; its own generator keeps torch's for training.
        return DataLoader(
            self._pairs[split],  # type: ignore[arg-type]
            batch_sampler=sampler,
            collate_fn=collate,
            generator=torch.Generator(),
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """An endless stream: Lightning sees one epoch, which ends with the last step."""
        return self._loader("train", self._stream)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("validation", self.batches("validation"))

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader("test", self.batches("test"))

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream, by the optimiser steps done: the loader itself has fetched ahead."""
        assert self.trainer is not None
        done = self.trainer.global_step * self.trainer.accumulate_grad_batches
        epoch, batch = self._stream.place(done - self._batches_before)
        return {"epoch": epoch, "batch": batch, "batches": done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._batches_before = state_dict["batches"]
        self._stream = EndlessBatches(self.batches("train"), state_dict["epoch"], state_dict["batch"])

    def sources(self, split: str) -> list[str]:
        """The source texts of a split, in its order."""
        return self._texts[split]["source"][:]

    def references(self, split: str) -> list[str]:
        """The target texts of a split as they were given, in its order: what translations are scored against."""
        return self._texts[split]["target"][:]

    def examples(self, split: str, count: int) -> list[tuple[Tensor, Tensor]]:
        """The first examples of a split, as (source, target) ids."""
        pairs = self._pairs[split]
        return [pairs[index] for index in range(min(count, len(pairs)))]
