"""When a run is saved, and what is saved so that it goes on as if it had never stopped.

A checkpoint is written between two optimiser steps, after everything of the step behind it was logged: before the next
batch, after a validation, or at the end.
"""

import logging
import math
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch

from lockstep.base.errors import Interrupted
from lockstep.base.terminal import counted
from lockstep.training.checkpoints import BEST, FORMAT_VERSION, LAST, PREVIOUS, Checkpoint
from lockstep.training.signals import Signals

logger = logging.getLogger("lockstep")


class Saving(L.Callback):
    """Keeps the last two checkpoints and the best on validation; must come last among the callbacks.

    Args:
        folder: for the checkpoints.
        every_n_steps: between checkpoints, besides those after each validation and at the end.
        config: the run's plain configuration.
        tokenizers: their hash.
        signals: after one of which the run is saved and left.
        criteria: metrics of validation by which one is better than those before, and whether more or less of each is
            better; each decides where all before it are equal.
        patience: validations in a row without a better one, after which the run ends; None to go on to its end.
    """

    def __init__(
        self,
        folder: Path,
        every_n_steps: int,
        config: dict[str, Any],
        tokenizers: str,
        signals: Signals,
        *,
        criteria: Sequence[tuple[str, Literal["min", "max"]]],
        patience: int | None,
    ) -> None:
        self._folder = folder
        self._every = every_n_steps
        self._record: dict[str, Any] = {"format_version": FORMAT_VERSION, "config": config, "tokenizers": tokenizers}
        self._signals = signals
        self._saved_at: int | None = None
        self._signs = {f"validation/{name}": 1 if mode == "max" else -1 for name, mode in criteria}
        self._patience = patience
        self._best = [-sign * math.inf for sign in self._signs.values()]
        self._waited = 0
        self._validating = False
        self._random: dict[str, Any] | None = None
        self._stopped_early = False
        self._begun_at = 0
        self.under_way = False  # whether a step was done with what a checkpoint held

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited, "random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (self._folder / BEST).exists():  # a checkpoint from elsewhere leaves its best behind
            best = state_dict["best"]
            # Older checkpoints tell the first criterion alone, and any value of the others is better.
            self._best = [*best] if isinstance(best, list) else [best, *self._best[1:]]
            self._waited = state_dict["waited"]
        self._random = state_dict["random"]

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: Checkpoint) -> None:
        self._saved_at = checkpoint["global_step"]
        record = checkpoint["lockstep"]
        if checkpoint["DataModule"]["batches"] != self._saved_at * trainer.accumulate_grad_batches:
            raise ValueError("its data is at another step")
        # Where a validation falls on this step, Lightning passes by it once more, and counts the step there. That is
        # known only now: a run that goes on to more steps may have another interval.
        passes_by = self._saved_at * trainer.accumulate_grad_batches % int(trainer.val_check_interval) == 0
        epoch_loop = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
        epoch_loop["_batches_that_stepped"] = self._saved_at - passes_by
        self._stopped_early = record["stopped_early"] and same_goal(record["config"], self._record["config"])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: Checkpoint) -> None:
        checkpoint["lockstep"] = {**self._record, "stopped_early": trainer.should_stop}
        place_loops(checkpoint, trainer, validation_due=self._validating)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._saved_at not in (None, trainer.global_step):
            raise ValueError("its loops are at another step")
        if self._random is not None:
            set_random_state(self._random)
        trainer.should_stop = self._stopped_early
        self._begun_at = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if batch_idx != step * trainer.accumulate_grad_batches:
            return  # in the middle of a step
        self.under_way = step > self._begun_at
        if step and step % self._every == 0:
            self._save_last(trainer)
        self._leave_if_asked(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validating = True

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step < trainer.max_steps:  # a run at its end would not come back to this validation
            self._leave_if_asked(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validating = False
        values = [float(trainer.callback_metrics[name]) for name in self._signs]
        better = self._rank(values) > self._rank(self._best)  # which no comparison with NaN is
        self._waited = 0 if better else self._waited + 1
        if self._patience is not None and self._waited >= self._patience:
            trainer.should_stop = True
            logger.info(
                "ends early: %s without a better %s than %.4f",
                counted(self._waited, "validation"),
                next(iter(self._signs)),
                self._best[0],
            )
        if better:
            self._best = values
            trainer.save_checkpoint(self._folder / BEST)
        self._saved_at = None
        self._save_last(trainer)
        self._leave_if_asked(trainer)

    def _rank(self, values: Sequence[float]) -> list[float]:
        return [sign * value for sign, value in zip(self._signs.values(), values, strict=True)]

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save_last(trainer)

    def _leave_if_asked(self, trainer: L.Trainer) -> None:
        if self._signals.received is not None:
            self._save_last(trainer)
            raise Interrupted(self._signals.received, f"saved step {trainer.global_step}")

    def _save_last(self, trainer: L.Trainer) -> None:
        if trainer.global_step == self._saved_at:
            return
        for logger in trainer.loggers:
            logger.experiment.flush()  # type: ignore[attr-defined]  # or a kill would lose points behind the checkpoint
        upcoming = self._folder / "next.ckpt"
        trainer.save_checkpoint(upcoming)
        if (self._folder / LAST).exists():
            os.replace(self._folder / LAST, self._folder / PREVIOUS)
        os.replace(upcoming, self._folder / LAST)
        self._saved_at = trainer.global_step


def same_goal(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a run that ended early under one configuration is at its end under the other, too."""
    return all(config.get(option) == other.get(option) for option in ("stop_at_exact_match", "patience"))


def place_loops(checkpoint: Checkpoint, trainer: L.Trainer, validation_due: bool) -> None:
    """Rewrite the counters of Lightning's loops in a checkpoint so that training goes on right after this step.

    Lightning takes up its loops at whatever point they were saved, by comparing counters; from some points it repeats
    a validation or leaves one out, or counts a step twice. Here there is one point, in the only epoch there is: all
    batches so far are done, and the validation after them is either done or due from its beginning.
    """
    loops = checkpoint["loops"]["fit_loop"]
    batches = trainer.global_step * trainer.accumulate_grad_batches
    in_epoch = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    done = dict.fromkeys(in_epoch, batches)
    due = in_epoch if validation_due else dict.fromkeys(in_epoch, 0)
    for progress, counters in (("epoch", in_epoch), ("epoch_loop.batch", done), ("epoch_loop.val_loop.batch", due)):
        entry = loops[f"{progress}_progress"]
        entry["total"], entry["current"] = dict(counters), dict(counters)
        if "is_last_batch" in entry:
            entry["is_last_batch"] = False


def random_state() -> dict[str, Any]:
    """The states of all random streams, as tensors and plain data."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # the stream that libraries draw from
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set all random streams to what :func:`random_state` gave.

    Raises:
        ValueError: it is no such state; other errors of the libraries likewise.
    """
    if not 0 <= state["numpy"][2] <= len(state["numpy"][1]):  # numpy would read on beyond its memory
        raise ValueError("its place in numpy's random stream is outside of it")
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
