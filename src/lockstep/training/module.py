"""The Lightning module: loss, optimisation, evaluation. Shapes: B batch, T and t length of labels, of translations."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lockstep.base.errors import NonFiniteError
from lockstep.data.batching import Batch
from lockstep.data.tokenization import BOS, EOS, NEVER, PAD
from lockstep.training.clipping import clip_global_norm
from lockstep.training.loss import summed_loss, training_loss
from lockstep.transformer import Transformer
from lockstep.transformer.decoding import next_token
from lockstep.transformer.search import GREEDY, beam_search, own_limit

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]


class TranslationModule(L.LightningModule):
    """Trains a Transformer to continue target prefixes, given the source.

    Args:
        model: initialised.
        optimizer: makes the optimiser of named parameters.
        schedule: factor of the learning rate at each step.
        label_smoothing: of the training loss alone (section 5.4); evaluation reports the plain cross-entropy.
        average_decay: of an exponential moving average of the weights, by which the model is then evaluated; the paper
            averages its last checkpoints (section 6.1). None for no average.
        natural_language: translations may differ from their references and be good. They end without a look at the
            references, and the test leaves translating to a search of its own.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: OptimizerFactory,
        schedule: Callable[[int], float],
        label_smoothing: float,
        *,
        average_decay: float | None = None,
        natural_language: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.average = None if average_decay is None else deepcopy(model).requires_grad_(False)
        self._average_decay = average_decay
        self._optimizer = optimizer
        self._schedule = schedule
        self._label_smoothing = label_smoothing
        self._natural_language = natural_language
        # Since the last optimiser step: summed loss, target tokens, and target tokens of the first batch.
        self._loss_sum = torch.zeros(())
        self._tokens = 0
        self._first_tokens = 0

    @property
    def evaluated(self) -> Transformer:
        """The model that is validated, tested and translated with."""
        return self.model if self.average is None else self.average

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = self._optimizer(self.model.named_parameters())
        scheduler = LambdaLR(optimizer, self._schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """A run that goes on may have been given another length, and with it another schedule."""
        scheduler = self.lr_schedulers()
        assert isinstance(scheduler, LambdaLR)
        for group, base in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
            group["lr"] = base * self._schedule(scheduler.last_epoch)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        loss_sum = training_loss(self.model, batch, self._label_smoothing)
        tokens = int((batch.labels != PAD).sum())
        if self._tokens == 0:
            self._first_tokens = tokens
            self._loss_sum = torch.zeros_like(loss_sum)
        self._tokens += tokens
        self._loss_sum = self._loss_sum + loss_sum.detach()
        # Lightning divides by the number of accumulated batches, which weighs them as if they had as many tokens
        # each. Undo that; the gradient is divided by all their tokens once these are known.
        return loss_sum / self._first_tokens * self.trainer.accumulate_grad_batches

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        super().optimizer_step(*arguments, **options)
        if self.average is not None and self._average_decay is not None:
            # An early average must not remember the start: the decay grows with the steps (as in TensorFlow's).
            decay = min(self._average_decay, (1 + self.global_step) / (10 + self.global_step))
            pair = [list(model.parameters()) for model in (self.average, self.model)]
            get_ema_multi_avg_fn(decay)(*pair, None)  # type: ignore[no-untyped-call]

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._tokens != self._first_tokens:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._first_tokens / self._tokens)
        loss = self._loss_sum / self._tokens
        self._require_finite("loss", loss)
        self.log("train/loss", loss, prog_bar=True)
        self.log("optimizer/learning_rate", optimizer.param_groups[0]["lr"])
        self._tokens = 0

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        """Clip by the global norm, summed over canonical tensors so that it is the same in every layout."""
        norm = clip_global_norm(self.model, self.trainer.gradient_clip_val)
        if self.trainer.precision != "16-mixed":  # whose scaler finds its scale by overflowing, and skips such steps
            self._require_finite("gradient norm", norm)
        self.log("optimizer/gradient_norm", norm)

    def _require_finite(self, name: str, value: Tensor) -> None:
        """Raise before the step is taken, while weights and optimiser are still good."""
        if not value.isfinite():
            raise NonFiniteError(f"the {name} is {float(value)} at step {self.trainer.global_step + 1}")

    def validation_step(self, batch: Batch, batch_index: int) -> Tensor:
        """The greedy translations (B, t), for observers to score."""
        self._read(batch, "validation")
        return self._write(batch, "validation")

    def test_step(self, batch: Batch, batch_index: int) -> None:
        self._read(batch, "test")
        if not self._natural_language:
            self._write(batch, "test")

    def _read(self, batch: Batch, split: str) -> None:
        """Teacher-forced loss and token accuracy, averaged over tokens."""
        logits = self.evaluated(batch.source, batch.source_mask, batch.prefix)
        real = batch.labels != PAD
        correct = (logits.argmax(dim=-1) == batch.labels) & real
        tokens = int(real.sum())
        loss = summed_loss(logits, batch.labels) / tokens
        for name, value in (("loss", loss), ("token_accuracy", correct.sum() / tokens)):
            self.log(f"{split}/{name}", value, on_step=False, on_epoch=True, batch_size=tokens)

    def _write(self, batch: Batch, split: str) -> Tensor:
        """Free-running translations (B, t), and their exact match, averaged over sequences."""
        translations = self.translate(batch)
        exact = exact_matches(translations, batch.labels).double().mean()
        self.log(f"{split}/exact_match", exact, on_step=False, on_epoch=True, batch_size=len(batch.source))
        return translations

    def translate(self, batch: Batch) -> Tensor:
        """Greedy translations (B, t) of the batch's sources.

        At most half as long again as the longest label; of natural language, each at most twice as long as its own
        source and ten tokens more, whatever else is in the batch.
        """
        limits = torch.full_like(batch.source[:, 0], batch.labels.size(1) * 3 // 2 + 1)  # (B,)
        if self._natural_language:
            limits = own_limit(batch.source_mask.sum(dim=1))
        found = beam_search(
            next_token(self.evaluated, batch.source, batch.source_mask),
            limits.tolist(),
            GREEDY,
            bos=BOS,
            eos=EOS,
            never=NEVER,
            device=batch.source.device,
        )
        tokens = [torch.tensor(best.tokens, device=batch.source.device) for (best,) in found]
        return pad_sequence(tokens, batch_first=True, padding_value=PAD)


def exact_matches(translations: Tensor, labels: Tensor) -> Tensor:
    """Which rows (B,) of padded translations (B, t) equal the padded labels (B, T)."""
    length = max(translations.size(1), labels.size(1))
    padded = [F.pad(x, (0, length - x.size(1)), value=PAD) for x in (translations, labels)]
    return (padded[0] == padded[1]).all(dim=1)
