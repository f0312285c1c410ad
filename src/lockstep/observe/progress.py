"""One line for each validation, on the terminal and in the run's log, and sample translations in TensorBoard."""

import logging
from collections.abc import Callable

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from torch import Tensor

from lockstep.data.batching import Batch
from lockstep.data.tokenization import EOS, PAD
from lockstep.training.module import TranslationModule

logger = logging.getLogger("lockstep")


class ProgressBar(RichProgressBar):
    """Lightning's bar; a run is told its steps, not its epochs, of which Lightning would show "0/-2"."""

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training"


class ValidationLines(L.Callback):
    """Reports the step and the validation's results in a line."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        logger.info(
            "step %5d   train loss %.4f   validation loss %.4f   token accuracy %.4f   exact match %.4f",
            trainer.global_step,
            metrics.get("train/loss", float("nan")),
            metrics["validation/loss"],
            metrics["validation/token_accuracy"],
            metrics["validation/exact_match"],
        )


class Samples(L.Callback):
    """Writes what the model makes of a few validation examples to TensorBoard, as a table of texts."""

    def __init__(self, batch: Batch, decode_source: Callable[[list[int]], str], decode: Callable[[list[int]], str]):
        self._batch = batch
        self._decode_source = decode_source
        self._decode = decode

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        translations = pl_module.translate(Batch(*(x.to(pl_module.device) for x in self._batch)))
        rows = ["| source | target | translation |", "|---|---|---|"]
        for source, target, translation in zip(*self._batch, translations, strict=True):
            texts = (self._decode_source(_real(source)), self._decode(_real(target)), self._decode(_real(translation)))
            rows.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
        trainer.logger.experiment.add_text("samples", "\n".join(rows), trainer.global_step)  # type: ignore[union-attr]


def _real(ids: Tensor) -> list[int]:
    """Token ids up to EOS, without padding."""
    tokens: list[int] = [token for token in ids.tolist() if token != PAD]
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens
