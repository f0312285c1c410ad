"""The same class at other sizes: with one head, with an odd head dimension, without biases."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.verification.candidate import Candidate
from lockstep.verification.construction import Sizes, set_dropout
from lockstep.verification.foreign import resolve
from lockstep.verification.situations import PLAIN
from lockstep.verification.user_code import UserCodeError, user_code
from lockstep.verification.weight_search import redraw

OTHERS = ((3, 7, True), (2, 32, False), (1, 64, True), (16, 16, True), (3, 1, True))
"""Heads, head dimension, and whether with biases: each as far as the constructor leaves it open."""


def at_other_sizes(
    cls: type[nn.Module], arguments: Mapping[str, Any], candidate: Candidate
) -> tuple[dict[str, Candidate], list[str]]:
    """The class constructed at :data:`OTHERS`, by their names, and a remark on each size that it could not have."""
    found: dict[str, Candidate] = {}
    remarks = []
    words = {word for word in candidate.sizes.values() if f"'{word}'" in str(arguments)}
    if not words & {"d_model", "num_heads", "head_dim"}:
        return {}, ["its sizes are its own: verified at these alone"]
    for heads, head_dim, bias in OTHERS:
        own_heads = heads if words & {"num_heads", "head_dim"} else candidate.sizes.num_heads
        sizes = Sizes(own_heads * head_dim, own_heads)
        name = f"{own_heads} heads of {head_dim}" if own_heads > 1 else f"one head of {head_dim}"
        name += ", no biases" if "bias" in words and not bias else ""
        try:
            with user_code(f"constructing it with {name}"):
                module = cls(**resolve(arguments, sizes.values(bias=bias))).to("cpu", candidate.dtype).eval()
            set_dropout(module, 0.0)
            own = {parameter for parameter, _ in module.named_parameters()}
            mapping = [layout for layout in candidate.mapping if set(layout.names(sizes.num_heads)) <= own]
            other = Candidate(module, sizes, candidate.conventions, mapping)
            redraw(module, sizes, torch.Generator().manual_seed(0), biases=True)
            canonical = other.canonical(dict(module.named_parameters()))
            back = other.stored(canonical)
            other.call(other.draw(PLAIN), PLAIN)
        except (UserCodeError, RuntimeError, ValueError, KeyError) as error:
            remarks.append(f"not verified with {name}: {error}")
            continue
        if set(back) != own or not {f"{role}.weight" for role in (*INPUT_ROLES, "output")} <= set(canonical):
            remarks.append(f"not verified with {name}: its weights are others there")
        else:
            found[name] = other
    return found, remarks
