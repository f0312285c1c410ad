"""One optimisation step from given canonical weights: what every participant of a comparison is asked for."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.comparison.variant import ParameterGroup, Variant
from lockstep.data.batching import Batch
from lockstep.data.tokenization import PAD
from lockstep.training import clipping
from lockstep.training.loss import training_loss
from lockstep.training.optimizer_state import CanonicalState, load_canonical_state
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import canonical_weights, has_canonical_layout, load_canonical, to_canonical
from lockstep.transformer.initialization import stream

MakeOptimizer = Callable[[list[ParameterGroup]], Optimizer]
Weights = Mapping[str, Tensor]


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy over the real target tokens, in nats."""
    return training_loss(model, batch, label_smoothing) / int((batch.labels != PAD).sum())


def forked_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Torch's random state, of the CPU and of this device, is afterwards what it was before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def copied_weights(model: Transformer) -> dict[str, Tensor]:
    """Canonical weights that training does not change."""
    return {name: tensor.clone() for name, tensor in canonical_weights(model).items()}


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in every bit: zero and minus zero do not, a NaN and itself do."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.view(integers[a.element_size()]), b.view(integers[b.element_size()]))


@dataclass(frozen=True)
class Step:
    """What a step computed, in canonical layout: the loss (), gradients before clipping, and what was added."""

    loss: Tensor
    gradients: Weights
    updates: Weights


@dataclass(frozen=True)
class Conditions:
    """What all participants of one resynchronised step share.

    Attributes:
        batch: the batch of the step.
        weights: canonical weights of the reference.
        state: the reference's optimiser state; None leaves the update out.
        optimizer: makes the optimiser of parameter groups.
        rate_factor: the schedule's factor of the learning rate.
        clip: largest gradient norm, or None.
        label_smoothing: of the loss.
        dtype: of the models.
        training: whether dropout is on.
        seed: of the random state before each participant's forward.
    """

    batch: Batch
    weights: Weights
    state: CanonicalState | None
    optimizer: MakeOptimizer
    rate_factor: float
    clip: float | None
    label_smoothing: float
    dtype: torch.dtype
    training: bool
    seed: int


def take_step(variant: Variant, weights: Weights, at: Conditions) -> Step:
    """Lay the weights and the reference's state into a fresh model, and let it take the step.

    Draws from torch's global generators: call inside :func:`forked_random_state`.
    """
    model = built(variant, weights, at).train(at.training)
    torch.manual_seed(at.seed)
    loss = batch_loss(model, at.batch, at.label_smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = to_canonical(model, {name: g.clone() for name, g in clipping.gradients(model).items()})
    updates: Weights = {}
    if at.state is not None and has_canonical_layout(model):
        if at.clip is not None:
            variant.learner.clip(model, at.clip)
        before, optimizer = copied_weights(model), optimizer_of(model, variant, at)
        optimizer.step()
        updates = change(model, before)
    return Step(loss.detach(), gradients, updates)


def built(variant: Variant, weights: Weights, at: Conditions) -> Transformer:
    """A fresh model with these canonical weights."""
    model = variant.build().to(at.batch.source.device, at.dtype)
    load_canonical(model, weights)
    return model


def optimizer_of(model: Transformer, variant: Variant, at: Conditions) -> Optimizer:
    """An optimiser where the schedule is, with the reference's state if it is known."""
    optimizer = at.optimizer(variant.learner.groups(model))
    for group in optimizer.param_groups:
        group["lr"] *= at.rate_factor
    if at.state is not None:
        load_canonical_state(model, optimizer, at.state)
    return optimizer


def change(model: Transformer, before: Weights) -> Weights:
    """What was added to the canonical weights since."""
    return {name: tensor - before[name] for name, tensor in canonical_weights(model).items()}


def moved_by_one_ulp(weights: Weights, seed: int, name: str) -> dict[str, Tensor]:
    """Every weight moved to a neighbouring number of its dtype, up or down at random."""
    moved = {}
    for tensor_name, tensor in weights.items():
        generator = stream(seed, f"{name} {tensor_name}")
        up = torch.randint(2, tensor.shape, generator=generator, dtype=torch.bool).to(tensor.device)
        infinity = torch.full_like(tensor, float("inf"))
        moved[tensor_name] = torch.nextafter(tensor, torch.where(up, infinity, -infinity))
    return moved


def with_scaled_scores(weights: Weights, scale: float) -> dict[str, Tensor]:
    """Weights with which every attention's scores are ``scale`` times as large: its queries scaled."""
    return {
        name: tensor * scale if name.endswith(("attention.query.weight", "attention.query.bias")) else tensor
        for name, tensor in weights.items()
    }


def random_and_distinct(start: Weights, seed: int) -> dict[str, Tensor]:
    """Canonical weights (float64, on the CPU) for a check of the function: every bias and norm random and distinct.

    A start as drawn for training has zero biases and norms of one, and many mix-ups do not show on it.
    """
    noise = normal_like(start, seed, "check")
    return {name: tensor.double().cpu() + 0.1 * noise[name] for name, tensor in start.items()}


def normal_like(weights: Weights, seed: int, what: str) -> dict[str, Tensor]:
    """Normal numbers (float64, on the CPU) in the weights' shapes, from a stream for each tensor."""
    return {
        name: torch.empty(tensor.shape, dtype=torch.float64).normal_(generator=stream(seed, f"{what} {name}"))
        for name, tensor in weights.items()
    }
