"""A checkpoint of one variant as a checkpoint of another: weights and the optimiser's state, exact to the bit.

Both go through the canonical layout. The state is matched to parameters by name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention
from lockstep.training.checkpoints import Checkpoint
from lockstep.training.optimizer_state import from_canonical_state, to_canonical_state
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import from_canonical, to_canonical

# Their update of an entry depends on that entry's gradients alone, and so not on the layout.
ELEMENT_WISE = frozenset(
    f"torch.optim.{name}"
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
MODEL, AVERAGE = "model.", "average."  # prefixes of the Transformers' parameters within the Lightning module


class ConversionError(Exception):
    """A checkpoint that has no counterpart in the other layout; the message says why."""


def saved_weights(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """The ``state_dict`` of the Transformer under this prefix; empty where there is none."""
    saved = checkpoint["state_dict"].items()
    return {name.removeprefix(prefix): tensor for name, tensor in saved if name.startswith(prefix)}


def convert_checkpoint(checkpoint: Checkpoint, old: Transformer, new: Transformer, optimizer: str) -> Checkpoint:
    """The checkpoint of ``old``'s variant as one of ``new``'s; everything but weights and moments stays as it is.

    Args:
        checkpoint: of a model of the same configuration as ``old``.
        old: a model with the checkpoint's attention.
        new: the same with another attention. Both models are given the checkpoint's weights, and compared.
        optimizer: its dotted name.

    Raises:
        ConversionError: a variant without canonical layout, an optimiser whose state cannot move, or two models that
            differ.
    """
    for model in (old, new):
        for module in model.modules():
            if isinstance(module, MultiHeadAttention) and not module.canonical:
                raise ConversionError(f"{type(module).__name__} has no canonical layout to convert by")
    if optimizer not in ELEMENT_WISE:
        raise ConversionError(
            f"the state of {optimizer} cannot move to another layout: it is not known to treat each entry by itself"
        )
    moved: dict[str, Tensor] = {}
    for prefix in (AVERAGE, MODEL):
        if weights := saved_weights(checkpoint, prefix):
            moved |= {f"{prefix}{name}": tensor for name, tensor in _weights(weights, old, new).items()}
    _compare(old, new)
    return {
        **checkpoint,
        "state_dict": moved,
        "optimizer_states": [_optimizer_state(state, old, new) for state in checkpoint["optimizer_states"]],
    }


def _weights(weights: Mapping[str, Tensor], old: Transformer, new: Transformer) -> dict[str, Tensor]:
    """A model's ``state_dict`` in the other layout; both models are left with these weights."""
    old.load_state_dict(weights)
    own = {name: weights[name] for name, _ in old.named_parameters()}
    laid_out = from_canonical(new, to_canonical(old, own))
    # state_dict lists a tied parameter under each of its names.
    first_names = {id(parameter): name for name, parameter in new.named_parameters()}
    names = {name: first_names[id(p)] for name, p in new.named_parameters(remove_duplicate=False)}
    converted = {name: laid_out[first].contiguous() for name, first in names.items()}
    new.load_state_dict(converted)
    return converted


def _optimizer_state(saved: Mapping[str, Any], old: nn.Module, new: nn.Module) -> dict[str, Any]:
    """An optimiser's ``state_dict`` for the other layout."""
    (group,) = saved["param_groups"]
    try:
        pairs = zip(group["param_names"], group["params"], strict=True)
        named = {name: saved["state"].get(index, {}) for name, index in pairs}
        moved = from_canonical_state(new, to_canonical_state(old, named))
    except (ValueError, TypeError, RuntimeError) as error:  # the last two where an entry is no number
        raise ConversionError(" ".join(str(error).split())) from error
    state = {index: entries for index, entries in enumerate(moved.values()) if entries}
    return {"state": state, "param_groups": [{**group, "params": list(range(len(moved))), "param_names": list(moved)}]}


@torch.no_grad()
def _compare(old: Transformer, new: Transformer) -> None:
    """Both models on the same random tokens, in float64, where right layouts differ by rounding alone."""
    old, new = old.double().eval(), new.double().eval()
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(old.source_embedding.num_embeddings, (3, 7), generator=generator)
    target = torch.randint(old.output.out_features, (3, 5), generator=generator)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    expected, found = old(source, mask, target), new(source, mask, target)
    difference = float((expected - found).abs().max() / expected.abs().max())
    if not difference < 1e-9:
        raise ConversionError(f"the converted model differs: its outputs by {difference:.2g} of the largest")
