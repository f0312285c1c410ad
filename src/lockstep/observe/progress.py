"""Lines for the terminal and the run's log, of validations and in between, and sample translations in TensorBoard."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar

from lockstep.base.terminal import printable
from lockstep.data.batching import Batch
from lockstep.data.tokenization import Tokenizers, to_line
from lockstep.training.module import TranslationModule

logger = logging.getLogger("lockstep")

SILENCE = 30.0  # seconds without a line of progress


class ProgressBar(RichProgressBar):
    """Lightning's bar; a run is told its steps, not its epochs, of which Lightning would show "0/-2"."""

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training"


class ValidationLines(L.Callback):
    """Reports the step and the validation's results in a line.

    Args:
        natural_language: show BLEU and chrF; else how many sequences are right to the last token.
    """

    def __init__(self, natural_language: bool) -> None:
        self._ending = (
            "BLEU {validation/bleu:.2f}   chrF {validation/chrf:.2f}"
            if natural_language
            else "exact match {validation/exact_match:.4f}"
        )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        logger.info(
            "step %5d   train loss %.4f   validation loss %.4f   token accuracy %.4f   %s",
            trainer.global_step,
            metrics.get("train/loss", float("nan")),
            metrics["validation/loss"],
            metrics["validation/token_accuracy"],
            self._ending.format_map(metrics),
        )


class NowAndThen(L.Callback):
    """A line on where a run is, and when it will be done, for those who see no progress bar.

    Args:
        loss: the metric to show.
    """

    def __init__(self, loss: str = "train/loss") -> None:
        self._loss = loss
        self._said = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._said = self._started = time.monotonic()
        self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        done = trainer.global_step - self._first_step
        if not done or not self._due():
            return
        metrics, name = trainer.callback_metrics, "train/target_tokens_per_second"
        pace = f"   {float(metrics[name]):,.0f} target tokens/s" if name in metrics else ""
        left = (time.monotonic() - self._started) / done * (trainer.max_steps - trainer.global_step)
        loss = float(metrics[self._loss])
        logger.info(
            "step %5d of %d   loss %.4f%s   %s left", trainer.global_step, trainer.max_steps, loss, pace, _about(left)
        )

    def on_validation_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        self.part_done("validation: batch", batch_idx + 1, int(trainer.num_val_batches[0]))

    def on_test_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        self.part_done("test: batch", batch_idx + 1, int(trainer.num_test_batches[0]))

    def part_done(self, what: str, done: int, count: int) -> None:
        """Say how far a part of a run is, if nothing was said for long."""
        if self._due():
            logger.info("%s %d of %d", what, done, count)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._said < SILENCE:
            return False
        self._said = now
        return True


def _about(seconds: float) -> str:
    """A duration, as long as it is worth telling."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Samples(L.Callback):
    """Writes what the model makes of a few validation examples to TensorBoard, as texts."""

    def __init__(self, batch: Batch, tokenizers: Tokenizers) -> None:
        self._batch = batch
        self._tokenizers = {"source": tokenizers.source, "target": tokenizers.target, "translation": tokenizers.target}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        translations = pl_module.translate(Batch(*(x.to(pl_module.device) for x in self._batch)))
        lines = []
        for row in zip(*self._batch, translations, strict=True):
            for (name, tokenizer), ids in zip(self._tokenizers.items(), row, strict=True):
                lines.append(f"{name:11}  {to_line(tokenizer, ids.tolist())}")
            lines.append("")
        trainer.logger.experiment.add_text("samples", as_code(lines), trainer.global_step)  # type: ignore[union-attr]


def as_code(lines: Sequence[str]) -> str:
    """Lines that TensorBoard, which reads Markdown and HTML, shows as they are: an indented block of code.

    Texts come from anywhere: as markup, one could fetch a picture from elsewhere whenever somebody looks.
    """
    return "\n".join("    " + printable(line).replace("\n", "\\n") for line in lines)
