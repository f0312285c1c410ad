"""The numbers of a situation: query, key, value and masks, as it wants them to lie and to be related.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads.
"""

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.verification.construction import Sizes
from lockstep.verification.conventions import MaskForm
from lockstep.verification.situations import Situation

_SCALE = {"large": 6.0, "huge": 20.0, "immense": 1e4}


@dataclass(frozen=True)
class Inputs:
    """Query (B, T_q, D), key and value (B, T_k, D), and the masks, each of four dimensions that fit the scores.

    Args:
        masks: boolean, True = may attend; or finite biases, which are added to the scores.
        leaves: what gradients are asked of: the tensors of which query, key and value are views.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    masks: tuple[Tensor, ...] = ()
    leaves: tuple[Tensor, ...] = ()

    @property
    def visible(self) -> Tensor | None:
        """What all masks together leave visible, or the biases."""
        return functools.reduce(torch.logical_and, self.masks[1:], self.masks[0]) if self.masks else None


Given = Callable[[torch.dtype], Inputs]


def zeroed(inputs: Inputs) -> Tensor:
    """Positions (B, T) that no query sees, where queries and keys are the same positions."""
    visible = inputs.visible
    B, T = inputs.query.shape[:2]
    if visible is None or visible.is_floating_point() or visible.size(2) > 1 or inputs.key.size(1) != T:
        return torch.zeros(B, T, dtype=torch.bool)
    return ~visible.any(1)[:, 0].expand(B, T)


def draw(
    s: Situation, roles: Collection[str], sizes: Sizes, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Given:
    """Inputs for a situation, to be had in several precisions: the numbers are those that ``dtype`` can hold.

    Args:
        roles: the inputs that the class tells apart.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = dict(zip(("query", "key", "value"), (s.lengths[0], s.lengths[1], s.lengths[1]), strict=True))
    numbers = {
        role: torch.randn(s.batch, T, sizes.d_model, generator=generator, dtype=torch.float64)
        * _SCALE.get(s.values, 1.0)
        for role, T in lengths.items()
    }
    if s.values == "zero rows":
        for x in numbers.values():
            x[:, ::2] = 0
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "positive": torch.abs,
        "whole": torch.round,
        "offset": lambda x: x + 20,
    }
    numbers = {role: changes.get(s.values, torch.clone)(x) for role, x in numbers.items()}
    one = tuple(numbers) if s.same == "all" else tuple(s.same.split(" and "))
    owner = {role: one[0] if role in one else role for role in numbers}
    if "key" not in roles:
        owner = dict.fromkeys(numbers, "query")
    elif "value" not in roles:
        owner["value"] = owner["key"]
    if s.values == "equal keys":
        numbers[owner["key"]] = numbers[owner["key"]][:, :1].expand_as(numbers[owner["key"]])
    wanted = {"everything": set(owner.values()), "inputs": set(owner.values()), "the key": {owner["key"]}}
    wanted["the query"] = {owner["query"]}
    masks = _masks(s, sizes, generator)

    def given(precision: torch.dtype) -> Inputs:
        exact = {role: numbers[role].to(dtype).to(precision) for role in sorted(set(owner.values()))}
        overlaps = s.storage == "overlapping"
        asked = {"key" if overlaps and role == "query" else role for role in wanted.get(s.gradients, ())}
        views: dict[str, Tensor] = {}
        leaves: list[Tensor] = []
        if s.storage == "sliced":
            T, D = max(s.lengths), sizes.d_model
            parts = [F.pad(x, (0, 0, 0, T - x.size(1))) for x in exact.values()]
            leaf = torch.cat([parts[0], *parts], -1)  # none of them begins where the storage does
            leaves = [leaf.requires_grad_(bool(asked))]
            views = {role: leaf[:, : x.size(1), i * D : i * D + D] for i, (role, x) in enumerate(exact.items(), 1)}
        else:
            for role, x in exact.items():
                # One position for all: of the query alone, where it is another tensor than the key.
                alone = {"key transposed": "key", "one position": owner["query"]}.get(s.storage, role)
                storage = s.storage if role == alone else "contiguous"
                leaf = _leaf(x, storage).requires_grad_(role in asked)
                leaves.append(leaf)
                views[role] = _view(leaf, storage, x)
        if overlaps:
            views["query"] = views["key"][:, : s.lengths[0]]
        query, key, value = (views[owner[role]] for role in lengths)
        return Inputs(query, key, value, masks, tuple(leaf for leaf in leaves if leaf.requires_grad))

    return given


def _leaf(x: Tensor, storage: str) -> Tensor:
    """The tensor of which one of these values (B, T, D) is the view that lies as asked."""
    if storage in ("transposed", "key transposed"):
        return x.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    if storage == "channels first":
        return x.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    if storage == "every second channel":
        return torch.stack([x, x], -1).flatten(-2)
    return {"one sample": x[:1], "one position": x[:, :1]}.get(storage, x).clone()


def _view(leaf: Tensor, storage: str, x: Tensor) -> Tensor:
    if storage in ("transposed", "key transposed"):
        return leaf.transpose(0, 1)
    if storage == "channels first":
        return leaf.transpose(1, 2)
    if storage == "every second channel":
        return leaf[..., ::2]
    return leaf.expand_as(x) if storage in ("one sample", "one position") else leaf


def laid(mask: Tensor, storage: str) -> Tensor:
    """A mask of the same values that lies as the inputs do, as far as it can."""
    if mask.dim() < 2 or storage == "contiguous":
        return mask
    if storage == "one position":
        return mask[..., :1, :].expand_as(mask)  # it is the same for all queries
    return mask.transpose(-1, -2).contiguous().transpose(-1, -2) if storage == "transposed" else mask


def _masks(s: Situation, sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
    """One for each form, that differs along the axes which the form has."""
    scores = (s.batch, sizes.num_heads, *s.lengths)
    masks = [_mask(form, s, scores, generator) for form in s.forms]
    if s.hidden in ("finite biases", "one sample blind") or not masks:
        return tuple(masks)
    T_q, T_k = s.lengths
    seen = functools.reduce(torch.logical_and, masks).expand(scores)
    if s.is_causal:
        seen = seen & torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q)
    empty = ~seen.any(-1, keepdim=True)  # (B, H, T_q, 1)
    if empty.any():  # what a query gets that sees nothing is no convention: it sees its own position
        own = torch.eye(T_k, dtype=torch.bool)[torch.arange(T_q) + T_k - T_q] if T_q <= T_k else torch.ones(1, 1).bool()
        masks = [mask | _along(empty & own, mask) for mask in masks]
    return tuple(masks)


def _along(opened: Tensor, mask: Tensor) -> Tensor:
    """Opened wherever it is along the axes that the mask has not."""
    for axis, size in enumerate(mask.shape):
        if size == 1:
            opened = opened.any(axis, keepdim=True)
    return opened


def _mask(form: MaskForm, s: Situation, scores: tuple[int, ...], generator: torch.Generator) -> Tensor:
    shape = [size if axis in form.shape else 1 for axis, size in zip("bhqk", scores, strict=True)]
    T_k = s.lengths[1]
    if s.storage == "one position":
        shape[2] = 1  # the same for all queries
    if s.hidden == "finite biases":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
    if s.hidden == "all but one key":
        return drawn == drawn.amax(-1, keepdim=True)
    visible = drawn < 0.6
    visible[..., 0] = True
    position = torch.arange(T_k)
    cut = 1 + (drawn[..., :1] * (T_k - 1)).long()  # at least one key on either side
    if s.hidden == "the first key":
        visible = (drawn < 0.8) & (position > 0)
    elif s.hidden == "leading keys":
        visible = position >= cut - int(T_k == 1)
    elif s.hidden == "trailing keys":
        visible = position < cut
    elif s.hidden == "no key":
        visible = torch.ones(shape, dtype=torch.bool)
    elif s.hidden == "one sample blind":
        visible[-1 if "b" in form.shape else slice(0)] = False
    return visible.expand(shape)
