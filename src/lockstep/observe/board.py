"""TensorBoard, with steps counted as people count them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger


class Board(TensorBoardLogger):
    """Event files in a run's folder; the step of a point is the number of optimiser steps behind it.

    Args:
        folder: of the run.
        resumed_at: points after this step are of a session that was broken off, and hidden.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        purge_step = None if resumed_at is None else resumed_at + 1
        # Event files are read in the order of their names, which tell the second in which they were begun, and within
        # it order nothing: a session that followed at once could be read before the one that it goes on with.
        if any(f".{int(time.time()):010d}." in file.name for file in folder.glob("events.out.tfevents.*")):
            time.sleep(1 - time.time() % 1)
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=purge_step)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        points = {name: value for name, value in metrics.items() if name != "epoch"}  # to Lightning all is one epoch
        super().log_metrics(points, step + 1)  # Lightning counts from 0

    def save(self) -> None:
        """Nothing beside the event files: the configuration lies in ``config.yaml``."""
        self.experiment.flush()

    def log_results(self, config: dict[str, Any], results: dict[str, float], step: int) -> None:
        """The run's configuration and its final results, for the table of runs."""
        self.log_hyperparams(config, results, step=step - 1)

    def finalize(self, status: str) -> None:
        """Lightning says this after training, when the results are still to come."""
        self.experiment.flush()

    def close(self) -> None:
        """Nothing more will be written."""
        self.experiment.close()


class LoggedSteps(L.Callback):
    """Logs the first step, every ``n``-th and the last, so that a run of any length has a curve."""

    def __init__(self, n: int) -> None:
        self._n = n

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.log_every_n_steps = 1 if trainer.global_step in (0, trainer.max_steps - 1) else self._n  # type: ignore[attr-defined]
