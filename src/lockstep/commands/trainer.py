"""Lightning's Trainer, as training and comparison use it, and what is not passed on of what libraries say."""

import logging
import warnings
from dataclasses import asdict
from typing import Any

import datasets
import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from lockstep.commands.options import TrainerOptions
from lockstep.observe.board import Board, LoggedSteps
from lockstep.observe.progress import ProgressBar

# Lightning's remarks on what is meant here, by their beginnings; any other warning is shown.
MEANT = (
    r".*isinstance\(treespec, LeafSpec\)",  # its own call of torch, on every fit
    r"The '\w+_dataloader' does not have many workers",  # batches are put together in microseconds
    r"(GPU|MPS) available but not used",  # trainer.accelerator=cpu
    r"You passed in a `val_dataloader` but have no `validation_step`",  # comparisons do not validate
    r"Be aware that when using `ckpt_path`, callbacks",  # a run may be watched otherwise when it goes on
)


def quiet_libraries() -> None:
    """Lightning and datasets talk about themselves; a run's log is about the run. What they warn of is shown."""
    logging.getLogger("lockstep").setLevel(logging.INFO)
    datasets.disable_progress_bars()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in MEANT:
        warnings.filterwarnings("ignore", message)


def build_trainer(options: TrainerOptions, board: Board, callbacks: list[L.Callback], *plugins: Any) -> L.Trainer:
    """A Trainer whose one epoch is the endless stream of batches; a run shorter than the interval validates once.

    Args:
        options: Lightning's own, under its names; the interval in steps.
        board: for what is logged.
        callbacks: in their order.
        plugins: of Lightning.
    """
    # Else Lightning takes a variable of a cluster's environment for a wish to train on several machines.
    alone = LightningEnvironment()
    alone.set_global_rank(0)
    chosen = asdict(options)
    interval = min(options.val_check_interval, options.max_steps)
    chosen["val_check_interval"] = interval * options.accumulate_grad_batches  # Lightning counts batches
    return L.Trainer(
        **chosen,
        devices=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=board,
        callbacks=[LoggedSteps(options.log_every_n_steps), *callbacks],
        plugins=[alone, *plugins],
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        enable_checkpointing=False,  # by Saving
    )
