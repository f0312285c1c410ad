"""A module's own tensors: redrawn before any question is asked, grouped by head, and read in every possible way."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import permutations

import torch
from torch import Tensor, nn

from lockstep.attention.layout import Layout
from lockstep.verification.construction import Sizes

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def norms(module: nn.Module) -> dict[str, nn.Module]:
    """The normalisation layers inside a module; their parameters belong to none of the projections."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _NORMS)}


def whole_norms(module: nn.Module, d_model: int) -> list[nn.Module]:
    """Those of a whole position (D)."""
    return [part for part in norms(module).values() if getattr(part, "normalized_shape", None) == (d_model,)]


def redraw(module: nn.Module, sizes: Sizes, generator: torch.Generator, biases: bool) -> None:
    """Draw every parameter anew, so that no two are alike and scores have a deviation of 2.5; biases, or zero them.

    A floating buffer of zeros is drawn as well: zeros hide what it does. Other buffers (a causal mask, a constant)
    are part of the formula and stay.
    """
    deviation = math.sqrt(2.5 / sizes.d_model)
    normal = {f"{name}.{own}" for name, part in norms(module).items() for own, _ in part.named_parameters()}
    groups = Groups.of(module, sizes)
    vectors = {own for name in groups.shapes if groups.is_vector(name) for own in groups.members[name]}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if name in vectors:
                drawn = drawn * 0.5 if biases else drawn * 0
            elif name not in normal:
                drawn = drawn * deviation
            parameter.copy_(drawn)
        for buffer in module.buffers():
            if buffer.is_floating_point() and buffer.numel() > 1 and not buffer.any():
                buffer.copy_(torch.randn(buffer.shape, generator=generator, dtype=torch.float64))


@dataclass
class Groups:
    """Parameters by name, those of the heads of one list taken together under a name with ``{}``."""

    sizes: Sizes
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, sizes: Sizes) -> "Groups":
        own = dict(module.named_parameters())
        for name in norms(module):
            own = {n: p for n, p in own.items() if not n.startswith(f"{name}.")}
        groups = cls(sizes)
        for name, parameter in own.items():
            template = _template(name, own, sizes.num_heads)
            groups.members.setdefault(template, []).append(name)
            stacked = (sizes.num_heads, *parameter.shape) if "{}" in template else tuple(parameter.shape)
            groups.shapes[template] = torch.Size(stacked)
        return groups

    def is_vector(self, name: str) -> bool:
        return self.shapes[name].numel() <= 3 * self.sizes.d_model


def _template(name: str, own: dict[str, nn.Parameter], num_heads: int) -> str:
    """ "heads.3.query.weight" -> "heads.{}.query.weight", if there is one such for each head and no more."""
    for match in re.finditer(r"(?<![^._])\d+(?![^._])", name):
        template = f"{name[: match.start()]}{{}}{name[match.end() :]}"
        siblings = [own.get(template.format(index)) for index in range(num_heads)]
        alike = all(s is not None and s.shape == own[name].shape for s in siblings)
        if alike and int(match.group()) < num_heads and template.format(num_heads) not in own:
            return template
    return name


@dataclass(frozen=True)
class Cell:
    """One role's place in the parameters: a reading of a group, and an index along its role axis.

    Args:
        parameter: the name of the group.
        axes: how it is read, see :class:`~lockstep.attention.layout.Layout`.
        count: the number of roles that share it.
        index: which of them this is.
        heads: see :class:`~lockstep.attention.layout.Layout`.
        sliced: each head is projected from its own slice of the input, K channels wide.
    """

    parameter: str
    axes: str
    count: int
    index: int
    heads: tuple[int, ...] = ()
    sliced: bool = False

    def read(self, name: str, tensors: dict[str, Tensor], sizes: Sizes) -> Tensor:
        """The canonical tensor of this name; without heads it serves all of them (as output: the first alone)."""
        role = name.split(".")[0]
        roles = tuple(role if index == self.index else f"other {index}" for index in range(self.count))
        layout = Layout(self.parameter, self.axes, roles, self.heads)
        H, K = sizes.num_heads, sizes.head_dim
        tensor = layout.read(tensors, H, K, K if self.sliced else None)[f"{role}.{layout.kind}"]
        if self.sliced:
            spread = tensor.new_zeros(H, K, H, K)
            spread.diagonal(dim1=0, dim2=2).copy_(tensor.expand(H, K, K).permute(1, 2, 0))
            return spread.flatten(2)
        if "h" in self.axes or self.axes == "d":
            return tensor
        if role == "output":
            padded = tensor.new_zeros(sizes.d_model, sizes.num_heads, sizes.head_dim)
            padded[:, 0] = tensor
            return padded
        return tensor.expand(sizes.num_heads, *tensor.shape)


def readings(shape: Iterable[int], letters: str, count: int, sizes: Sizes, width: int) -> Iterator[str]:
    """Every way to read a shape as the given axes: their orders, cut to fit the dimensions."""
    extent = {"r": count, "h": sizes.num_heads, "k": sizes.head_dim, "d": width}
    shape = list(shape)
    for order in permutations(letters):
        rest, groups = list(order), []
        for size in shape:
            group: list[str] = []
            while rest and math.prod(extent[axis] for axis in group) < size:
                group.append(rest.pop(0))
            if math.prod(extent[axis] for axis in group) != size:
                break
            groups.append(f"({' '.join(group)})" if len(group) > 1 else (group[0] if group else "1"))
        else:
            if not rest:
                yield " ".join(groups)


def cells(groups: Groups, letters: str, counts: tuple[int, ...] = (1, 2, 3), sliced: bool = False) -> list[Cell]:
    """Every place where a role may be kept as the given axes; "hkd" for weights, "hk" for their biases."""
    found = []
    width = groups.sizes.head_dim if sliced else groups.sizes.d_model
    for name, shape in groups.shapes.items():
        for count in counts:
            for axes in readings(shape, ("r" if count > 1 else "") + letters, count, groups.sizes, width):
                if "{}" in name and not axes.startswith("h"):
                    continue
                found += [Cell(name, axes, count, index, sliced=sliced) for index in range(count)]
    return found


def bijective(chosen: Iterable[Cell]) -> bool:
    """Whether cells of one parameter read it alike, and use every part of it once."""
    by_parameter: dict[str, list[Cell]] = {}
    for cell in chosen:
        by_parameter.setdefault(cell.parameter, []).append(cell)
    return all(
        len({(cell.axes, cell.count) for cell in group}) == 1
        and sorted(cell.index for cell in group) == list(range(group[0].count))
        for group in by_parameter.values()
    )


def layouts(chosen: dict[str, Cell]) -> list[Layout]:
    """Cells by role -> the layouts of the parameters they are in."""
    roles: dict[str, list[str]] = {}
    for role, cell in chosen.items():
        roles.setdefault(cell.parameter, []).append(role)
    return [
        Layout(parameter, chosen[of[0]].axes, tuple(sorted(of, key=lambda r: chosen[r].index)), chosen[of[0]].heads)
        for parameter, of in roles.items()
    ]
