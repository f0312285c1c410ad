"""A class that somebody else wrote, verified to be multi-head attention, under the contract of the variants.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention import reference
from lockstep.attention.contract import MultiHeadAttention
from lockstep.attention.layout import Layout
from lockstep.attention.masks import merge_masks
from lockstep.base.errors import InputError
from lockstep.verification.construction import Sizes
from lockstep.verification.conventions import Conventions, MaskForm
from lockstep.verification.foreign import PROJECT, importable, load_class, resolve
from lockstep.verification.formula import relative_difference


class ForeignAttention(MultiHeadAttention):
    """Translates inputs, masks and weights; the configuration that the verifier saves describes how.

    Where ``bias`` asks for other biases than the class has, those of its ``nn.Linear`` layers are added or removed.
    At construction it is compared with the reference once, since it was verified at other sizes.

    Args:
        target: ``file.py:Class`` or an importable path (see :func:`~lockstep.verification.foreign.load_class`).
        arguments: its constructor arguments, the words d_model, num_heads, head_dim, bias and dropout among them.
        conventions: the fields of :class:`~lockstep.verification.conventions.Conventions`.
        mapping: the fields of a :class:`~lockstep.attention.layout.Layout` for each of its parameters.
        folder: from which the target is named: absolute, or relative to this project; None is the working directory.

    Raises:
        InputError: its file is not there any more, or cannot be imported.
        ValueError: the class is not there, or cannot have these sizes, biases or this dropout.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        target: str,
        arguments: Mapping[str, Any],
        conventions: Mapping[str, Any],
        mapping: Sequence[Mapping[str, Any]],
        folder: str | None = None,
    ) -> None:
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
        self.target = target
        self.conventions = Conventions.from_plain(conventions)
        words = Sizes(d_model, num_heads).values(bias, dropout)
        start = None if folder is None else PROJECT / folder
        with importable(target, start):
            try:
                cls = load_class(target, start)
            except InputError as error:
                raise InputError(f"{error}: a saved class stays where it was verified, or is verified anew") from error
            self.attention = cls(**resolve(arguments, words))
            self._adapt(arguments, mapping)

    def _adapt(self, arguments: Mapping[str, Any], mapping: Sequence[Mapping[str, Any]]) -> None:
        """Give the class the dropout and the biases that are asked for, and see that it is what was verified."""
        if "dropout" not in str(arguments):
            self._set_dropout(self.dropout)
        if any(nn.parameter.is_lazy(parameter) for parameter in self.attention.parameters()):
            x = torch.zeros(1, 1, self.d_model)
            self._call(x, x, x, ())  # makes the parameters
        layouts = [
            Layout(**{**layout, "roles": tuple(layout["roles"]), "heads": tuple(layout["heads"])}) for layout in mapping
        ]
        self.mapping = self._with_biases([layout for layout in layouts if layout.kind == "weight"], layouts)
        self._compare_with_reference()

    def _set_dropout(self, p: float) -> None:
        """The class has no argument for dropout: its layers are told."""
        layers = [part for part in self.attention.modules() if isinstance(part, nn.Dropout)]
        if p and not layers:
            raise ValueError(f"{self.target} has no attention dropout; train it with a dropout of 0, not {p}")
        for layer in layers:
            layer.p = p

    def _with_biases(self, weights: list[Layout], layouts: list[Layout]) -> list[Layout]:
        """The layouts with the biases that are asked for and no others."""
        biases = []
        for layout in weights:
            for name in layout.names(self.num_heads):
                owner = self.attention.get_submodule(name.rpartition(".")[0])
                if isinstance(owner, nn.Linear) and (owner.bias is not None) != self.has_bias:
                    added = nn.Parameter(torch.zeros(owner.out_features)) if self.has_bias else None
                    owner.register_parameter("bias", added)
        own = dict(self.attention.named_parameters())
        known = [layout for layout in layouts if layout.kind == "bias" and layout.names(self.num_heads)[0] in own]
        for layout in weights:
            name = layout.parameter.removesuffix("weight") + "bias"
            if self.has_bias and name not in {bias.parameter for bias in known} and name.replace("{}", "0") in own:
                # An nn.Linear stores (out, in): its bias has the axes of the weight's first dimensions.
                axes = "d" if layout.roles == ("output",) else layout.axes.removesuffix(" d")
                biases.append(replace(layout, parameter=name, axes=axes, heads=() if axes == "d" else layout.heads))
        biases += known
        found = sorted(role for layout in biases for role in layout.roles)
        wanted = sorted(("query", "key", "value", "output")) if self.has_bias else []
        if found != wanted:
            raise ValueError(
                f"{self.target} has biases for {found or 'no role'}, bias={self.has_bias} asks for {wanted or 'none'}, "
                "and it has no argument that changes this"
            )
        return weights + biases

    def _layouts(self) -> list[Layout]:
        return [replace(layout, parameter=f"attention.{layout.parameter}") for layout in self.mapping]

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self._refuse_inputs(query, key, value, is_causal)
        shape = (query.size(0), self.num_heads, query.size(1), key.size(1))
        visible = merge_masks(shape, mask, is_causal, query.device)
        switch = is_causal and mask is None and shape[2] <= shape[3] and self.conventions.causal_argument is not None
        if visible is None or switch or (self.conventions.causal and mask is None):
            return self._call(query, key, value, (), switch)
        empty = ~visible.any(-1)  # (B or 1, H or 1, T_q or 1)
        given = merge_masks(shape, mask, is_causal and not self.conventions.causal, query.device)
        assert given is not None
        if not empty.any():
            return self._call(query, key, value, self._masks(given, shape, query.dtype))
        # What a class does with an empty row is its own affair: it sees the first key instead, whose share goes again.
        first_key = torch.arange(shape[3], device=query.device) == 0
        opened = given | (empty[..., None] & first_key)
        out = self._call(query, key, value, self._masks(opened, shape, query.dtype))
        weights = self.to_canonical(dict(self.named_parameters()))
        if empty.size(1) > 1:
            first = reference.project(weights, "value", value[:, :1])  # (B, H, 1, K)
            share = first * empty[..., None].to(first.dtype)  # (B, H, T_q, K)
            out = out - torch.einsum("bhtk,dhk->btd", share, weights["output.weight"])
        alone = weights.get("output.bias", out.new_zeros(self.d_model))
        return torch.where(empty.all(1)[..., None], alone, out)

    def _refuse_inputs(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> None:
        """Raise ValueError for what the class's arguments cannot express."""
        roles = self.conventions.roles
        if "key" not in roles and not (_same(query, key) and _same(key, value)):
            raise ValueError(f"{self.target} takes x alone: it cannot attend across to another key or value")
        if "value" not in roles and not _same(key, value):
            raise ValueError(f"{self.target} takes x and a context: key and value must be one tensor")
        if self.conventions.causal and not is_causal and key.size(1) > 1:
            raise ValueError(f"{self.target} is always causal: it serves only where is_causal=True")

    def _masks(
        self, visible: Tensor, shape: tuple[int, int, int, int], dtype: torch.dtype
    ) -> tuple[tuple[MaskForm, Tensor]]:
        """The mask in the first form that can express it."""
        problem: ValueError | None = None
        for form in self.conventions.masks:
            try:
                form.encode(visible, shape, dtype)
            except ValueError as error:
                problem = problem or error
            else:
                return ((form, visible),)
        raise problem or ValueError(f"{self.target} takes no mask")

    def _call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: Sequence[tuple[MaskForm, Tensor]],
        is_causal: bool = False,
    ) -> Tensor:
        out = self.conventions.call(self.attention, self.num_heads, query, key, value, masks, is_causal)
        assert isinstance(out, Tensor)
        return out

    @torch.no_grad()
    def _compare_with_reference(self) -> None:
        """On random weights and five tokens, in single precision; draws nothing from the global generator."""
        generator = torch.Generator().manual_seed(0)
        before = {name: parameter.clone() for name, parameter in self.named_parameters()}
        weights = {
            name: torch.randn(shape, generator=generator) * (2.5 / self.d_model) ** 0.5
            for name, shape in self.canonical_shapes().items()
        }
        self.load_state_dict({n: t.clone() for n, t in self.from_canonical(weights).items()}, strict=False)
        x = torch.randn(2, 5, self.d_model, generator=generator)
        self.eval()
        found = self(x, x, x, is_causal=self.conventions.causal)
        self.train()
        expected = reference.attention(weights, x, x, x, is_causal=self.conventions.causal)
        self.load_state_dict(before, strict=False)
        error = relative_difference(found, expected)
        if not error < 1e-4:
            raise ValueError(
                f"{self.target} is not multi-head attention at d_model={self.d_model}, num_heads={self.num_heads}: "
                f"its output is off by {error:.1e} of the largest value"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """One tensor, or views of the same entries."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())
