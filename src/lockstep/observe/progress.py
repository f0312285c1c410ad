"""One line for each validation, on the terminal and in the run's log, and sample translations in TensorBoard."""

import logging

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar

from lockstep.data.batching import Batch
from lockstep.data.tokenization import Tokenizers, to_line
from lockstep.training.module import TranslationModule

logger = logging.getLogger("lockstep")


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


class Samples(L.Callback):
    """Writes what the model makes of a few validation examples to TensorBoard, as a table of texts."""

    def __init__(self, batch: Batch, tokenizers: Tokenizers) -> None:
        self._batch = batch
        self._tokenizers = (tokenizers.source, tokenizers.target, tokenizers.target)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        translations = pl_module.translate(Batch(*(x.to(pl_module.device) for x in self._batch)))
        rows = ["| source | target | translation |", "|---|---|---|"]
        for row in zip(*self._batch, translations, strict=True):
            texts = [to_line(tokenizer, ids.tolist()) for tokenizer, ids in zip(self._tokenizers, row, strict=True)]
            rows.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
        trainer.logger.experiment.add_text("samples", "\n".join(rows), trainer.global_step)  # type: ignore[union-attr]
