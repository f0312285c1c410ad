"""What checks are made of: something that attends, and situations to put it in.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention.layout import Layout
from lockstep.verification.construction import Sizes
from lockstep.verification.conventions import Conventions, MaskForm
from lockstep.verification.formula import Formula, evaluate
from lockstep.verification.user_code import UserCodeError, user_code

B, LONG = 2, 130


@dataclass(frozen=True)
class Situation:
    """One set of inputs.

    Args:
        name: as the report words it.
        T_q: query length.
        T_k: key length.
        same: query, key and value are one tensor.
        scale: of the inputs; the scores grow with its square.
        forms: the forms of the masks that are given.
        is_causal: the class's own causal switch is on.
        batch: B.
        memory: key and value are one tensor.
        options: further arguments, on which the output must not depend.
    """

    name: str
    T_q: int
    T_k: int
    same: bool = True
    scale: float = 1.0
    forms: tuple[MaskForm, ...] = ()
    is_causal: bool = False
    batch: int = B
    memory: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def refusable(self) -> bool:
        """To refuse it is no wrong answer: masks that are fine alone but not together, an option, a long sequence."""
        return len(self.forms) + self.is_causal > 1 or bool(self.options) or self.T_k >= LONG


SELF_ATTENTION = Situation("self-attention", 7, 7)


@dataclass(frozen=True)
class Inputs:
    """Query (B, T_q, D), key and value (B, T_k, D), and the masks, each of four dimensions that fit the scores."""

    query: Tensor
    key: Tensor
    value: Tensor
    masks: tuple[Tensor, ...] = ()

    @property
    def visible(self) -> Tensor | None:
        """What all masks together leave visible."""
        return functools.reduce(torch.logical_and, self.masks) if self.masks else None

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        """Query, key and value changed; one tensor stays one tensor."""
        changed = {id(x): change(x) for x in (self.query, self.key, self.value)}
        return Inputs(changed[id(self.query)], changed[id(self.key)], changed[id(self.value)], self.masks)


class Candidate:
    """A module under test: the user's, or a mutant of the reference.

    Args:
        module: in eval mode.
        conventions: how it is called, and so what it can be asked.
        mapping: where it keeps the canonical weights.
    """

    def __init__(self, module: nn.Module, sizes: Sizes, conventions: Conventions, mapping: Sequence[Layout]) -> None:
        self.module, self.sizes, self.conventions, self.mapping = module, sizes, conventions, mapping

    def _asked(self, inputs: Inputs, situation: Situation) -> tuple[Any, ...]:
        masks = list(zip(situation.forms, inputs.masks, strict=True))
        return self.sizes.num_heads, inputs.query, inputs.key, inputs.value, masks, situation.is_causal

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        module = functools.partial(self.module, **dict(situation.options))
        with user_code(f"calling it ({situation.name})"):
            out = self.conventions.call(module, *self._asked(inputs, situation))
        if not isinstance(out, Tensor) or out.shape != inputs.query.shape:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise UserCodeError(f"calling it ({situation.name}) gave {got} for {tuple(inputs.query.shape)}")
        return out

    def changed_by_a_call(self, inputs: Inputs, situation: Situation) -> int:
        """How many of the tensors handed over, masks in their own form, and of the parameters a call changes."""
        arguments = self.conventions.arguments(*self._asked(inputs, situation))
        tensors = [*(x for x in arguments.values() if isinstance(x, Tensor)), *self.module.parameters()]
        before = [x.detach().clone() for x in tensors]
        with user_code(f"calling it ({situation.name})"), torch.no_grad():
            self.module(**arguments)
        return sum(not torch.equal(x, y) for x, y in zip(tensors, before, strict=True))

    def canonical(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by parameter name -> canonical tensors."""
        read: dict[str, Tensor] = {}
        for layout in self.mapping:
            read |= layout.read(tensors, self.sizes.num_heads, self.sizes.head_dim)
        return read

    def stored(self, canonical: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of :meth:`canonical`."""
        H, K = self.sizes.num_heads, self.sizes.head_dim
        return {name: x for layout in self.mapping for name, x in layout.write(canonical, H, K).items()}

    def weights(self) -> dict[str, Tensor]:
        return self.canonical({name: p.detach().clone() for name, p in self.module.named_parameters()})

    def draw(self, situation: Situation, seed: int = 0, dtype: torch.dtype = torch.float64) -> Inputs:
        """Inputs for a situation; a mask leaves something to see in every row."""
        generator = torch.Generator().manual_seed(seed)
        D, H, batch, T_q, T_k = self.sizes.d_model, self.sizes.num_heads, situation.batch, situation.T_q, situation.T_k
        drawn = [torch.randn(batch, T, D, generator=generator, dtype=torch.float64) for T in (T_q, T_k, T_k)]
        query, key, value = ((x * situation.scale).to(dtype) for x in drawn)
        if situation.same or "key" not in self.conventions.roles:
            key = query
        if situation.same or situation.memory or "value" not in self.conventions.roles:
            value = key
        masks = []
        for form in situation.forms:
            sizes = zip("bhqk", (batch, H, T_q, T_k), strict=True)
            visible = torch.rand([n if axis in form.shape else 1 for axis, n in sizes], generator=generator) < 0.6
            # Nothing is empty, under causality either: every query sees the first key.
            visible[..., 0] = True
            masks.append(visible)
        return Inputs(query, key, value, tuple(masks))

    def expected(self, weights: dict[str, Tensor], inputs: Inputs, situation: Situation) -> tuple[Tensor, Tensor]:
        """The reference's output, and which rows are judged."""
        causal = self.conventions.causal or situation.is_causal
        formula = Formula(causal="lower_right" if causal else "none")
        return evaluate(formula, weights, inputs.query, inputs.key, inputs.value, inputs.visible)


class Mutant(Candidate):
    """The reference with a fault, on the weights and under the conventions of another candidate."""

    def __init__(self, of: Candidate, formula: Formula) -> None:
        module = nn.Module()
        mapping = []
        for name, tensor in of.weights().items():
            module.register_parameter(name.replace(".", "_"), nn.Parameter(tensor))
            role = name.split(".")[0]
            axes = {2: "h k", 1: "d", 3: "d h k" if role == "output" else "h k d"}[tensor.dim()]
            mapping.append(Layout(name.replace(".", "_"), axes, (role,)))
        super().__init__(module, of.sizes, of.conventions, mapping)
        self.formula = formula

    def changed_by_a_call(self, inputs: Inputs, situation: Situation) -> int:
        return 0

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        asked = self.conventions.causal or situation.is_causal
        formula = self.formula if asked else replace(self.formula, causal="none")
        if not formula.fits(inputs.query.size(1), inputs.key.size(1)):
            raise UserCodeError("the lengths do not fit")
        weights = self.canonical(dict(self.module.named_parameters()))
        return evaluate(formula, weights, inputs.query, inputs.key, inputs.value, inputs.visible)[0]


class Spoiled(Candidate):
    """A candidate with one weight changed by 1% unknown to the checks, and noise on its output."""

    def __init__(self, of: Candidate) -> None:
        super().__init__(of.module, of.sizes, of.conventions, of.mapping)
        self.believed = of.weights()

    def __enter__(self) -> "Spoiled":
        self._place(1.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._place(1.0)

    def _place(self, factor: float) -> None:
        spoilt = dict(self.believed)
        value = spoilt["value.weight"] = spoilt["value.weight"].clone(memory_format=torch.contiguous_format)
        value.view(-1)[value.abs().argmax()] *= factor
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, tensor in self.stored(spoilt).items():
                parameters[name].copy_(tensor)

    def weights(self) -> dict[str, Tensor]:
        dtype = next(self.module.parameters()).dtype
        return {name: tensor.to(dtype, copy=True) for name, tensor in self.believed.items()}

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        out = super().call(inputs, situation)
        return out + 1e-3 * torch.randn_like(out)


def situations(conventions: Conventions, unequal_lengths: bool, flags: Mapping[str, bool]) -> list[Situation]:
    """Everything that a class so called can be asked.

    Args:
        conventions: with the masks it accepts.
        unequal_lengths: the class works with T_q other than T_k, where it has inputs for it.
        flags: arguments that ask for attention weights as well.
    """
    across = len(conventions.roles) > 1
    found = [
        SELF_ATTENTION,
        Situation("a single sample", 5, 5, batch=1),
        Situation("length 1", 1, 1),
        Situation("a long sequence", LONG, LONG),
        Situation("large scores", 7, 7, scale=6.0),
    ]
    if across:
        found.append(Situation("inputs apart, T_q = T_k", 5, 5, same=False))
        found.append(Situation("key and value one tensor", 5, 5, same=False, memory=True))
    lengths = [(7, 11), (1, 5), (11, 7), (3, 1)] if across and unequal_lengths else []
    # A causal query beyond the last key sees nothing, which is nobody's convention.
    lengths = [(T_q, T_k) for T_q, T_k in lengths if T_q <= T_k or not conventions.causal]
    found += [Situation(f"cross-attention, T_q = {T_q}, T_k = {T_k}", T_q, T_k, same=False) for T_q, T_k in lengths]
    masked: list[tuple[str, tuple[MaskForm, ...], bool]] = [(str(form), (form,), False) for form in conventions.masks]
    if conventions.causal_argument:
        masked.append((conventions.causal_argument, (), True))
    masked += _together(conventions)
    for name, forms, is_causal in masked[:1]:
        found.append(Situation(f"{name}, large scores", 7, 7, scale=6.0, forms=forms, is_causal=is_causal))
    for name, forms, is_causal in masked:
        found.append(Situation(f"{name}, self", 7, 7, forms=forms, is_causal=is_causal))
        if lengths:
            found.append(Situation(f"{name}, cross", 5, 11, same=False, forms=forms, is_causal=is_causal))
    found += [
        replace(situation, name=f"{situation.name}, {flag}={value}", options=((flag, value),))
        for flag, value in flags.items()
        for situation in found
        if situation.T_q == situation.T_k == 7
    ]
    return found


def _together(conventions: Conventions) -> list[tuple[str, tuple[MaskForm, ...], bool]]:
    """Every mask argument, in each of its meanings, and the causal switch, all at once."""
    first: dict[str, dict[str, MaskForm]] = {}
    for form in conventions.masks:
        first.setdefault(form.argument, {}).setdefault(form.meaning, form)
    switch = conventions.causal_argument
    if not first or len(first) + bool(switch) == 1:
        return []
    return [
        (" and ".join([*map(str, forms), *([switch] if switch else [])]) + " together", forms, bool(switch))
        for forms in product(*(by_meaning.values() for by_meaning in first.values()))
    ]
