"""The callback that measures a comparison: before training, at recorded steps, and after every step."""

import logging
import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor

from lockstep.base.errors import NonFiniteError
from lockstep.comparison.learner_checks import draws_difference, initialisation_difference, update_differences
from lockstep.comparison.module import LockstepModule
from lockstep.comparison.record import Drift, Exercised, LearnerCheck, Record, VariantRecord
from lockstep.comparison.resync import resynchronised_step
from lockstep.comparison.step import Conditions, Weights, bits_equal, copied_weights, random_and_distinct
from lockstep.comparison.variant import Variant, is_key_bias
from lockstep.data.batching import Batch
from lockstep.training.optimizer_state import CanonicalState, canonical_state
from lockstep.transformer.canonical import canonical_weights, has_canonical_layout

logger = logging.getLogger("lockstep")


def log_spaced(count: int, max_steps: int) -> list[int]:
    """About ``count`` steps from the first, 1, to the last, dense at the start, where the optimiser is youngest."""
    spaced = torch.logspace(0, torch.log10(torch.tensor(float(max_steps))), max(count - 1, 2), dtype=torch.float64)
    return sorted({1} | {min(round(float(step)) + 1, max_steps) for step in spaced})


class Recorder(L.Callback):
    """Fills a record. Draws nothing from the random state of training.

    Args:
        check_batch: for the check on random weights.
        recorded_steps: at which the copies are resynchronised with nulls and controls, before the step is taken.
        setting: see :class:`Record`.
        not_exercised: see :class:`Record`.
    """

    def __init__(
        self, check_batch: Batch, recorded_steps: Iterable[int], setting: dict[str, str], not_exercised: list[str]
    ) -> None:
        self._check_batch = check_batch
        self._recorded = set(recorded_steps)
        self._setting = setting
        self._not_exercised = not_exercised
        self._start: Weights = {}
        self.record: Record  # from the start of training

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module = cast(LockstepModule, pl_module)
        self._start = copied_weights(module.model(module.reference.name))
        # Apple's accelerator has no float64.
        device = torch.device("cpu") if module.device.type == "mps" else module.device
        batch = Batch(*(x.to(device) for x in self._check_batch))
        reference = module.reference
        at = self._check = Conditions(
            batch=batch,
            weights={n: t.to(device) for n, t in random_and_distinct(self._start, module.seed).items()},
            state=None,
            optimizer=module.make_optimizer,
            rate_factor=1.0,
            clip=trainer.gradient_clip_val,
            label_smoothing=module.label_smoothing,
            dtype=torch.float64,
            training=False,
            seed=module.seed,
        )
        # What a copy becomes later is checked now, in its place.
        others = [replace(v.successor or v, name=v.name) for v in [*module.variants.values()][1:]]
        self.record = Record(
            reference=reference.name,
            setting=self._setting,
            not_exercised=self._not_exercised,
            checks={
                "in eval mode": resynchronised_step(0, reference, others, at),
                "in training mode": resynchronised_step(
                    0, _without_dropout(reference), [_without_dropout(v) for v in others], replace(at, training=True)
                ),
            },
            check_exercised=Exercised.by(batch),
        )
        for variant in others:
            self.record.variants[variant.name] = self._examined(module, variant, at)

    def _examined(self, module: LockstepModule, variant: Variant, at: Conditions) -> VariantRecord:
        """The checks before training of one variant."""
        original = module.variants[variant.name]
        model, is_reference = module.model(variant.name), original.identity == module.reference.identity
        if not has_canonical_layout(model):
            return VariantRecord(is_reference, has_layout=False)
        start = initialisation_difference(canonical_weights(model), self._start)
        draws = draws_difference(variant, module.reference, at)
        learner: dict[LearnerCheck, list[str]] = {
            "initialisation": [start] if start else [],
            "draws": [draws] if draws else [],
            "update": update_differences(variant, module.reference, at),
        }
        return VariantRecord(is_reference, learner=learner)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        module, step = cast(LockstepModule, pl_module), trainer.global_step + 1
        if step not in self._recorded:
            return
        weights = canonical_weights(module.model(module.reference.name))
        dtype = next(iter(weights.values())).dtype
        at = replace(
            self._check,
            batch=batch,
            weights=weights,
            state=_state(module, module.reference.name),
            rate_factor=module.schedule(trainer.global_step),
            # In half precision rounding hides small faults: the weights are judged in single.
            dtype=torch.float32 if dtype.itemsize < 4 else dtype,
            training=True,
            seed=module.seed + trainer.global_step,
        )
        # The copies themselves, with whatever else they have come to hold than weights.
        running = [replace(v, build=partial(deepcopy, module.model(name))) for name, v in module.variants.items()]
        resync = resynchronised_step(step, running[0], running[1:], at)
        self.record.resyncs.append(resync)
        self.record.exercised |= Exercised.by(batch)
        differences = "   ".join(f"{name} {excess.noise:.2g}" for name, excess in resync.variants.items())
        logger.info("step %5d   loss %.4f   difference in units of the noise: %s", step, resync.loss, differences)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        module, step = cast(LockstepModule, pl_module), trainer.global_step
        losses = module.losses
        truth = canonical_weights(module.model(module.reference.name))
        self.record.losses.append(float(losses[module.reference.name]))
        if not math.isfinite(self.record.losses[-1]):
            raise NonFiniteError(
                f"the loss of {module.reference.name} is {self.record.losses[-1]} at step {step}, and nothing can be "
                "compared with it; a lower optimizer.lr or more schedule.warmup_steps may keep it finite"
            )
        for name, found in self.record.variants.items():
            found.losses.append(float(losses[name]))
            recorded = step in self._recorded
            if not recorded and found.first_difference is not None:
                continue
            weights = canonical_weights(module.model(name))
            if found.first_difference is None:
                pairs = {"the loss": (losses[name], losses[module.reference.name])}
                pairs |= {key: (weights[key], tensor) for key, tensor in truth.items() if key in weights}
                differing = [key for key, pair in pairs.items() if not bits_equal(*pair)]
                if differing or not found.has_layout:
                    found.first_difference = (step, (differing or ["no layout"])[0])
            if recorded:
                found.drift.append(self._drift(step, weights, truth, found.losses[-1] - self.record.losses[-1]))

    def _drift(self, step: int, weights: Weights, truth: Weights, loss: float) -> Drift:
        common = [n for n, tensor in truth.items() if n in weights and weights[n].shape == tensor.shape]

        def relative(names: list[str]) -> float:
            moved = _norm(truth[n] - self._start[n] for n in names)
            return _norm(weights[n] - truth[n] for n in names) / moved if moved else 0.0

        rest = [n for n in common if not is_key_bias(n)]
        return Drift(step, relative(rest), relative([n for n in common if is_key_bias(n)]), loss)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module = cast(LockstepModule, pl_module)
        truth = {n: t for n, t in canonical_weights(module.model(module.reference.name)).items() if not is_key_bias(n)}
        self.record.moved = _norm(t - self._start[n] for n, t in truth.items()) / _norm(self._start[n] for n in truth)
        state = _flat(_state(module, module.reference.name))
        for name, found in self.record.variants.items():
            if found.first_difference is None:
                own = _flat(_state(module, name))
                differing = [n for n, tensor in state.items() if n not in own or not bits_equal(own[n], tensor)]
                if differing:
                    found.first_difference = (trainer.global_step, differing[0])


def _without_dropout(variant: Variant) -> Variant:
    return replace(variant, build=variant.without_dropout)


def _state(module: LockstepModule, name: str) -> CanonicalState | None:
    """The optimiser's state of one copy, or None where it belongs to the stored matrices."""
    try:
        return canonical_state(module.model(name), module.trainer.optimizers[0])
    except ValueError:
        return None


def _flat(state: CanonicalState | None) -> dict[str, Tensor]:
    if state is None:
        return {}
    kinds = (state.moments | state.numbers).items()
    return {f"{key} of {name}": tensor for key, tensors in kinds for name, tensor in tensors.items()}


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().norm()) ** 2 for tensor in tensors))
