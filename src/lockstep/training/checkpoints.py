"""Checkpoints: what Lightning saves, plus what Lockstep needs to read one by itself."""

from typing import Any

import lightning as L

FORMAT_VERSION = 1


class CheckpointRecord(L.Callback):
    """Adds the format version and the run's plain configuration to every checkpoint."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["lockstep"] = {"format_version": FORMAT_VERSION, "config": self._config}
