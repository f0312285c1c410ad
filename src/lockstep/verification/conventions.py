"""How a foreign class is called: plain data, and the call it describes.

Shapes: B batch, H heads, T_q and T_k query and key length, D model width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor

MEANINGS = ("zero_blocks", "true_attends", "true_blocks", "additive", "one_blocks")
NUMBERS = ("zero_blocks", "one_blocks")
MASK_SHAPES = ("b 1 q k", "b q k", "b h q k", "b 1 1 k", "b 1 k", "b k", "q k", "(b h) q k")


def parts_of(out: Any) -> dict[Any, Any] | None:
    """The several values that ``forward`` returned, by index or by name; None where it is one."""
    if isinstance(out, tuple | list):
        return dict(enumerate(out))
    if isinstance(out, Mapping):
        return dict(out)
    return dict(vars(out)) if is_dataclass(out) else None


@dataclass(frozen=True)
class MaskForm:
    """One way in which a mask is handed over.

    Args:
        argument: the parameter of ``forward`` that takes it.
        meaning: "zero_blocks" and "one_blocks" are numbers 0 and 1, "true_attends" and "true_blocks" booleans,
            "additive" is 0 where visible and -inf where hidden; "none" stands for passing None.
        shape: its dimensions, of b, h, q (T_q), k (T_k), 1, and "(b h)" for batch and heads in one.
    """

    argument: str
    meaning: str
    shape: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.meaning} ({self.shape})"

    def encode(self, visible: Tensor, scores_shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
        """Put a boolean mask (True = may attend, four dimensions that broadcast to the scores) into this form.

        Raises:
            ValueError: the mask differs along an axis that this form has not.
        """
        for axis, name in enumerate("bhqk"):
            if name not in self.shape and visible.size(axis) > 1:
                first = visible.narrow(axis, 0, 1)
                if not torch.equal(first.expand_as(visible), visible):
                    raise ValueError(
                        f"the class takes masks of shape ({self.shape}) only; this one differs along "
                        f"{ {'b': 'the batch', 'h': 'the heads', 'q': 'the queries', 'k': 'the keys'}[name] }"
                    )
                visible = first
        kept = [size if name in self.shape else 1 for name, size in zip("bhqk", scores_shape, strict=True)]
        visible = visible.expand(kept)
        if self.shape == "(b h) q k":
            visible = visible.flatten(0, 1)
        else:
            sizes = dict(zip("bhqk", kept, strict=True))
            visible = visible.reshape([sizes.get(name, 1) for name in self.shape.split()])
        if visible.is_floating_point():  # biases, which are added to the scores
            return visible.to(dtype, copy=True)
        if self.meaning == "true_attends":
            return visible
        if self.meaning == "true_blocks":
            return ~visible
        if self.meaning == "additive":
            return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, float("-inf"))
        return (visible if self.meaning == "zero_blocks" else ~visible).to(dtype)


@dataclass(frozen=True)
class Conventions:
    """How ``forward`` is called.

    Args:
        inputs: argument name -> "query", "key" or "value". An x-only class has one argument, read as "query"; a class
            of x and a context two, the context read as "key".
        time_first: inputs and output are (T, B, D).
        output: index or name of the output where ``forward`` returns several values.
        masks: the forms in which masks are accepted, the most general one first.
        self_masks: those that are where no optional input is given.
        zeroes_hidden: in self-attention a position that is hidden as a key gets zeros as a query.
        neutral: the form of an all-visible mask, for a class that cannot do without one.
        causal: the class always hides later keys.
        causal_argument: the argument that switches causality on.
        none: arguments that have to be given, and are given None.
    """

    inputs: Mapping[str, str]
    time_first: bool = False
    output: int | str | None = None
    masks: tuple[MaskForm, ...] = ()
    neutral: MaskForm | None = None
    causal: bool = False
    causal_argument: str | None = None
    none: tuple[str, ...] = ()
    self_masks: tuple[MaskForm, ...] = ()
    zeroes_hidden: bool = False

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Conventions":
        """From plain mappings, as a configuration file holds them."""
        masks, alone = (tuple(MaskForm(**form) for form in plain.get(name, ())) for name in ("masks", "self_masks"))
        neutral = MaskForm(**plain["neutral"]) if plain["neutral"] else None
        return cls(**{**plain, "masks": masks, "self_masks": alone, "neutral": neutral})

    @property
    def roles(self) -> set[str]:
        """The inputs that can differ from each other."""
        return set(self.inputs.values())

    @property
    def untrainable(self) -> str | None:
        """What a Transformer asks for and the class cannot be asked, as the end of a sentence."""
        if "key" not in self.roles:
            return "attends only to itself"
        return None if self.masks else "takes no mask"

    def call(self, module: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """Call ``module`` with :meth:`arguments` and return its batch-first output, whatever that is."""
        return self.output_of(module(**self.arguments(*inputs, **options)))

    def output_of(self, out: Any) -> Any:
        """The batch-first output among what ``forward`` returned."""
        parts = parts_of(out)
        if parts is not None:
            out = parts.get(0 if self.output is None else self.output)
        return out.transpose(0, 1) if self.time_first and isinstance(out, Tensor) and out.dim() == 3 else out

    def arguments(
        self,
        num_heads: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: Sequence[tuple[MaskForm, Tensor]] = (),
        is_causal: bool = False,
    ) -> dict[str, Tensor | bool | None]:
        """The arguments of ``forward``.

        Args:
            num_heads: H, for masks that have one plane for each head.
            query: (B, T_q, D).
            key: (B, T_k, D); the query again where the class takes x alone.
            value: (B, T_k, D); the key again where the class has no argument of its own for it.
            masks: each a form, and the boolean mask to hand over in it, of four dimensions that broadcast to the
                scores.
            is_causal: switch ``causal_argument`` on.
        """
        turned: dict[int, Tensor] = {}  # one object stays one object: classes ask `query is key`
        arguments: dict[str, Tensor | bool | None] = dict.fromkeys(self.none)
        for name, role in self.inputs.items():
            x = {"query": query, "key": key, "value": value}[role]
            arguments[name] = turned.setdefault(id(x), x.transpose(0, 1)) if self.time_first else x
        if self.neutral is not None and not any(form.argument == self.neutral.argument for form, _ in masks):
            masks = [*masks, (self.neutral, torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device))]
        shape = (query.size(0), num_heads, query.size(1), key.size(1))
        for form, visible in masks:
            no_mask = form.meaning == "none"
            arguments[form.argument] = None if no_mask else form.encode(visible, shape, query.dtype)
        if is_causal and self.causal_argument:
            arguments[self.causal_argument] = True
        return arguments
