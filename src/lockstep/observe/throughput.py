"""How fast training goes: target tokens per second, without validation and pictures."""

import time
from typing import Any

import lightning as L

from lockstep.data.batching import Batch
from lockstep.data.tokenization import PAD


class Throughput(L.Callback):
    """Times training steps and counts their real target tokens; must come first among the callbacks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.target_tokens = 0
        self._started = 0.0

    @property
    def target_tokens_per_second(self) -> float:
        return self.target_tokens / self.seconds if self.seconds else 0.0

    def totals(self) -> dict[str, float]:
        """The figures of the whole run, sessions before this one included."""
        return {"train/seconds": self.seconds, "train/target_tokens_per_second": self.target_tokens_per_second}

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "target_tokens": self.target_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds, self.target_tokens = state_dict["seconds"], state_dict["target_tokens"]

    def on_train_batch_start(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        self.seconds += time.perf_counter() - self._started
        self.target_tokens += int((batch.labels != PAD).sum())
        pl_module.log("train/target_tokens_per_second", self.target_tokens_per_second)
