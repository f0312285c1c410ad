"""The Lightning module that trains a copy of the model for each variant, all on the same batches."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lockstep.comparison.step import MakeOptimizer, batch_loss, forked_random_state
from lockstep.comparison.variant import ParameterGroup, Variant
from lockstep.data.batching import Batch
from lockstep.training.optimizer_state import canonical_state, load_canonical_state
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import canonical_weights, load_canonical


class LockstepModule(L.LightningModule):
    """Copies that share batches, schedule and random state, and nothing else.

    Their losses are summed: each copy's gradient is its own loss's, since no parameter is shared. One optimiser holds
    parameter groups for each copy, which is enough for any optimiser that treats parameters one by one.

    Args:
        variants: the first is the reference; names differ.
        seed: of every copy's start.
        optimizer: makes the optimiser of parameter groups.
        schedule: factor of the learning rate at each step.
        label_smoothing: of the loss.
        swap_at: steps after which a copy whose variant has a successor becomes it.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        seed: int,
        optimizer: MakeOptimizer,
        schedule: Callable[[int], float],
        label_smoothing: float,
        swap_at: int | None = None,
    ) -> None:
        super().__init__()
        self.variants = {variant.name: variant for variant in variants}
        self.copies = nn.ModuleList(variant.build() for variant in variants)  # a ModuleDict refuses some names
        for variant in variants:
            variant.learner.initialize(self.model(variant.name), seed)
        self.seed = seed
        self.make_optimizer = optimizer
        self.schedule = schedule
        self.label_smoothing = label_smoothing
        self.losses: dict[str, Tensor] = {}
        self._swap_at = swap_at

    @property
    def reference(self) -> Variant:
        return next(iter(self.variants.values()))

    def model(self, name: str) -> Transformer:
        """The copy of the variant of this name."""
        return cast(Transformer, self.copies[list(self.variants).index(name)])

    def _groups(self, name: str, variant: Variant, model: Transformer) -> list[ParameterGroup]:
        """The parameter groups of one copy, marked with its name."""
        groups = variant.learner.groups(model)
        for group in groups:
            group["copy"] = name
            group["params"] = [(f"{name}/{parameter}", p) for parameter, p in group["params"]]
        return groups

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        groups = (self._groups(name, variant, self.model(name)) for name, variant in self.variants.items())
        optimizer = self.make_optimizer([*chain.from_iterable(groups)])
        scheduler = LambdaLR(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        # Building the copies drew from the global generators, in an amount that depends on their number.
        torch.manual_seed(self.seed)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if self.global_step == self._swap_at:
            for name, variant in list(self.variants.items()):
                if variant.successor is not None:
                    self._become(name, variant.successor)

    def _become(self, name: str, successor: Variant) -> None:
        """Continue a copy as another variant: weights and optimiser state move through the canonical layout."""
        old, optimizer = self.model(name), self.trainer.optimizers[0]
        parameter = next(old.parameters())
        with forked_random_state(self.device):
            new = successor.build().to(parameter.device, parameter.dtype).train(old.training)
        load_canonical(new, canonical_weights(old))
        state = canonical_state(old, optimizer)
        for forgotten in old.parameters():
            optimizer.state.pop(forgotten, None)
        own = [group for group in optimizer.param_groups if group["copy"] == name]
        for group, replacement in zip(own, self._groups(name, successor, new), strict=True):
            names, parameters = zip(*replacement["params"], strict=True)
            group["params"], group["param_names"] = list(parameters), list(names)
        load_canonical_state(new, optimizer, state)
        self.copies[list(self.variants).index(name)] = new
        self.variants[name] = dataclasses.replace(successor, name=name)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses = {}
        for name in reversed(self.variants):
            # All draw from the same state, and the reference, the last, as if it were alone, whatever the others draw.
            with nullcontext() if name == self.reference.name else forked_random_state(self.device):
                losses[name] = batch_loss(self.model(name), batch, self.label_smoothing)
        self.losses = {name: losses[name].detach() for name in self.variants}
        self.log_dict({f"loss/{name}": loss for name, loss in self.losses.items()}, batch_size=1)
        return torch.stack([*losses.values()]).sum()

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        if self.trainer.gradient_clip_val is not None:
            for name, variant in self.variants.items():
                variant.learner.clip(self.model(name), self.trainer.gradient_clip_val)
