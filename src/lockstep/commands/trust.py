"""What comes out of a file is not the user's word: which classes a stored configuration may name by itself.

A configuration names what is imported and called. One that was read from a checkpoint may have been written by
anybody, so what it names is judged here before anything of it is imported. New classes of this project that a run can
be made of are added here; whatever is not listed must be named by the user, or trusted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import optim

from lockstep.base.errors import CheckpointError
from lockstep.commands.options import Node

ATTENTIONS = (
    "einsum.EinsumAttention",
    "fused.FusedAttention",
    "packed.PackedAttention",
    "per_head.PerHeadAttention",
    "sdpa.SdpaAttention",
    "shared_heads.SharedHeadsAttention",
    "torch_mha.TorchAttention",
)
TASKS = ("copy.CopyTask", "dates.DatesTask", "multi30k.Multi30kTask", "parallel.ParallelTask")
KNOWN = frozenset(
    {
        *(f"lockstep.attention.{name}" for name in ATTENTIONS),
        *(f"lockstep.data.{name}" for name in TASKS),
        *(
            f"torch.optim.{name}"
            for name, value in vars(optim).items()
            if isinstance(value, type) and issubclass(value, optim.Optimizer)
        ),
    }
)


def is_known(node: Any) -> bool:
    """Whether a node of a configuration names a class that runs no code but this project's and torch's.

    That of :class:`~lockstep.verification.adapter.ForeignAttention` is none: it imports and calls what its node says.
    """
    target = node.get("_target_") if isinstance(node, Mapping) else None
    return isinstance(target, str) and target in KNOWN


def refuse_unknown(config: Node, options: Iterable[str], place: str, remedy: str) -> None:
    """Refuse a stored configuration that names other classes than are known here; nothing is imported.

    Args:
        config: as it was stored.
        options: its nodes that will be built.
        place: where it was stored, for the message.
        remedy: how the user can allow it.

    Raises:
        CheckpointError: it names another class; the message says which.
    """
    for option in options:
        node = config.get(option)
        if not is_known(node):
            names = (
                [node[key] for key in ("_target_", "target") if key in node] if isinstance(node, Mapping) else [node]
            )
            raise CheckpointError(
                f"{place} names {' of '.join(repr(name)[:100] for name in names) or 'nothing'} as its {option}, which "
                f"is not Lockstep's own, and whose code would run; if you know and trust it, {remedy}"
            )
