"""Where a foreign class keeps the canonical weights: plain data, read and written by permutation alone.

Axes: r role, h head, k channel within a head, d model width; parentheses join axes that share a dimension, row-major.
``"(r h k) d"`` is one packed projection with all queries first, ``"(h r k) d"`` one interleaved by head,
``"d (h k)"`` a projection stored as (in, out), or an output projection stored as (out, in).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """One stored parameter, or one for each head, and what it holds.

    Args:
        parameter: its name; ``{}`` in a name stands for the index of the head, the first axis of ``axes``.
        axes: how its dimensions are made of r, h, k and d; ``1`` is a dimension of one entry.
        roles: the roles in their order along r; a single one where ``axes`` has no r.
        heads: position h holds canonical head ``heads[h]``; empty where the orders agree.
    """

    parameter: str
    axes: str
    roles: tuple[str, ...]
    heads: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """ "weight" or "bias": an input weight has the axis d, an output weight the axis k."""
        return "weight" if ("k" if self.roles == ("output",) else "d") in self.axes else "bias"

    @property
    def _order(self) -> str:
        """The canonical order of the axes, role first."""
        order = "rdhk" if self.roles == ("output",) else "rhkd"
        return "".join(axis for axis in order if axis == "r" or axis in self.axes)

    def _flat(self) -> str:
        """The axes in their stored order, role included even where there is one."""
        flat = "".join(axis for axis in self.axes if axis in "rhkd")
        return flat if "r" in flat else "r" + flat

    def names(self, num_heads: int) -> list[str]:
        """The names of the parameters."""
        listed = "{}" in self.parameter
        return [self.parameter.format(index) for index in range(num_heads)] if listed else [self.parameter]

    def _sizes(self, num_heads: int, head_dim: int, width: int | None = None) -> dict[str, int]:
        return {"r": len(self.roles), "h": num_heads, "k": head_dim, "d": width or num_heads * head_dim}

    def _head_order(self, num_heads: int) -> list[int] | None:
        """The order for ``num_heads`` heads; a reversed order is known for every number of heads, others for theirs."""
        if not self.heads:
            return None
        if self.heads == tuple(reversed(range(len(self.heads)))):
            return list(reversed(range(num_heads)))
        if len(self.heads) != num_heads:
            raise ValueError(
                f"the order of heads of {self.parameter!r} is known for {len(self.heads)} heads, not for {num_heads}"
            )
        return list(self.heads)

    def read(
        self, tensors: Mapping[str, Tensor], num_heads: int, head_dim: int, width: int | None = None
    ) -> dict[str, Tensor]:
        """Stored tensors by parameter name -> canonical tensors of this layout's roles; ``width`` is d if not D."""
        if "{}" in self.parameter:
            stored = torch.stack([tensors[name] for name in self.names(num_heads)])
        else:
            stored = tensors[self.parameter]
        sizes, flat, order = self._sizes(num_heads, head_dim, width), self._flat(), self._order
        canonical = stored.reshape([sizes[axis] for axis in flat]).permute([flat.index(axis) for axis in order])
        positions = self._head_order(num_heads)
        if positions is not None:
            back = [positions.index(head) for head in range(num_heads)]
            canonical = torch.stack([canonical.select(order.index("h"), i) for i in back], order.index("h"))
        return {f"{role}.{self.kind}": tensor for role, tensor in zip(self.roles, canonical.unbind(), strict=True)}

    def write(self, canonical: Mapping[str, Tensor], num_heads: int, head_dim: int) -> dict[str, Tensor]:
        """The inverse of :meth:`read`."""
        sizes, flat, order = self._sizes(num_heads, head_dim), self._flat(), self._order
        stacked = torch.stack([canonical[f"{role}.{self.kind}"] for role in self.roles])
        positions = self._head_order(num_heads)
        if positions is not None:
            stacked = torch.stack([stacked.select(order.index("h"), i) for i in positions], order.index("h"))
        groups = re.findall(r"\([^)]*\)|\S+", self.axes)
        shape = [prod(sizes[axis] for axis in group if axis in sizes) for group in groups]
        stored = stacked.permute([order.index(axis) for axis in flat]).reshape(shape)
        if "{}" not in self.parameter:
            return {self.parameter: stored}
        return {self.parameter.format(index): tensor for index, tensor in enumerate(stored.unbind())}


OUTPUT_LINEAR = (Layout("output.weight", "d (h k)", ("output",)), Layout("output.bias", "d", ("output",)))
"""An ``nn.Linear`` named output on the concatenated heads."""
