"""Second stage: how ``forward`` is called, by the names of its arguments, then by what it does."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.verification.construction import Sizes, signature
from lockstep.verification.conventions import MASK_SHAPES, MEANINGS, Conventions, MaskForm, parts_of
from lockstep.verification.user_code import CannotTell, UserCodeError, user_code

_ROLES = {
    "query": {"q", "query", "queries", "xq", "qs"},
    "key": {"k", "key", "keys", "xk", "ks"},
    "value": {"v", "value", "values", "xv", "vs"},
}
_AFFIXES = {"input", "inputs", "in", "x", "states", "state", "seq", "sequence", "tensor", "tokens", "token", "emb",
            "embs", "embedding", "embeddings", "feats", "features", "layer", "data"}  # fmt: skip
_X = {"x", "input", "inputs", "hidden_states", "src", "embeddings", "tensor", "inp", "emb", "embs", "xs", "seq", "h"}
_CONTEXT = {"context", "memory", "encoder_hidden_states", "y", "enc", "kv", "source", "cond", "key_value_states",
            "xa", "encoder_output", "encoder_outputs", "enc_out", "x_kv", "ctx", "enc_output", "other"}  # fmt: skip
CAUSAL_ARGUMENTS = {"is_causal", "causal", "use_causal_mask", "use_causal", "apply_causal_mask", "masked"}
OPTIONS = ("inputs", "layout", "mask", "mask_shape", "num_heads")
"""What ``conventions`` may state."""


class NoSuchOption(ValueError):
    """A convention that does not exist, or cannot have this value."""


def check_stated(stated: Mapping[str, Any]) -> None:
    """Refuse what ``conventions`` cannot be."""
    choices = {"mask": MEANINGS, "mask_shape": MASK_SHAPES, "layout": ("batch_first", "time_first")}
    roles = stated.get("inputs", {"x": "query"})
    named = list(roles.values()) if isinstance(roles, Mapping) else []
    if "query" not in named or any(role not in INPUT_ROLES for role in named):
        raise NoSuchOption(f"conventions.inputs={roles} must say {{NAME: query}}, and which are key and value")
    heads = stated.get("num_heads", 1)
    if not isinstance(heads, int) or heads < 1:
        raise NoSuchOption(f"conventions.num_heads={heads} must be a number of heads")
    for kind, value, known in (
        *(("conventions", name, OPTIONS) for name in stated),
        *((f"conventions.{name}", stated[name], known) for name, known in choices.items() if name in stated),
    ):
        if value not in known:
            nearest = get_close_matches(str(value), known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it is one of {', '.join(known)}"
            raise NoSuchOption(f"{kind} has no {value!r}; {hint}")


def _role(name: str) -> str | None:
    parts = set(name.lower().split("_"))
    if any("mask" in part or part in ("pos", "bias", "cache", "past") for part in parts) or name.lower() in _CONTEXT:
        return None
    roles = [role for role, names in _ROLES.items() if parts & names and parts <= names | _AFFIXES]
    return roles[0] if len(roles) == 1 else None


def _inputs(module: nn.Module, stated: Mapping[str, str] | None) -> dict[str, str]:
    """Argument name -> role."""
    parameters = signature(type(module), "forward")
    if stated is not None:
        unknown = [name for name in stated if name not in parameters]
        if unknown:
            raise CannotTell(f"conventions.inputs names {unknown[0]!r}, but forward takes ({', '.join(parameters)})")
        return dict(stated)
    named = list(parameters)
    roles: dict[str, str] = {}
    for name in named:
        role = _role(name)
        if role is not None and role not in roles.values():
            roles[name] = role
    if set(roles.values()) == set(_ROLES):
        return roles
    contexts = [name for name in named if name.lower() in _CONTEXT]
    if named and contexts and named[0] != contexts[0]:
        return {named[0]: "query", contexts[0]: "key"}
    required = [name for name in named if parameters[name].default is inspect.Parameter.empty]
    tensors = [name for name in required if "mask" not in name.lower()]
    if len(tensors) == 1 or (named and named[0].lower() in _X and tensors[:1] == named[:1] and len(tensors) < 2):
        return {tensors[0]: "query"}
    raise CannotTell(
        f"which of forward({', '.join(parameters)}) are query, key and value cannot be told from their names; "
        "settle it with conventions.inputs={NAME: query, NAME: key, NAME: value}, or {NAME: query} for a single x"
    )


def mask_arguments(module: nn.Module) -> list[str]:
    """The arguments of ``forward`` that take masks, by name."""
    names = list(signature(type(module), "forward"))
    return [
        name
        for name in names
        if "mask" in name.lower()
        and name.lower() not in (*CAUSAL_ARGUMENTS, "head_mask")
        # That of another argument, which is not given, is none of ours.
        and not any(of.startswith(name.lower().removesuffix("_mask")) for of in names if _is_other(of))
    ]


def _is_other(name: str) -> bool:
    """Whether an argument is neither an input nor a mask, as far as its name tells."""
    return "mask" not in name.lower() and name.lower() not in _X | _CONTEXT and _role(name) is None


def optional_inputs(module: nn.Module, conventions: Conventions) -> list[str]:
    """The inputs that need not be given."""
    parameters = signature(type(module), "forward")
    return [name for name in conventions.inputs if parameters[name].default is None]


def flags(module: nn.Module) -> dict[str, bool]:
    """The switches of ``forward`` that ask for attention weights as well, turned over: no output may depend on them."""
    return {
        name: not parameter.default
        for name, parameter in signature(type(module), "forward").items()
        if isinstance(parameter.default, bool)
        and {"weights", "attn", "attention", "attentions"} & set(name.split("_"))
        and {"need", "output", "return", "average", "with", "get"} & set(name.split("_"))
    }


def _output_index(out: Any, shape: tuple[int, ...]) -> int | str | None:
    parts = parts_of(out)
    if parts is not None:
        for index, item in parts.items():
            if isinstance(item, Tensor) and item.shape == shape:
                return index
        found = [tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__ for item in parts.values()]
        raise CannotTell(f"it returned {found}, none of them of the shape {shape} that its inputs call for")
    if not isinstance(out, Tensor):
        raise CannotTell(f"it returned {type(out).__name__}, neither a tensor nor several")
    if out.shape != shape:
        raise CannotTell(f"it returned shape {tuple(out.shape)} for inputs that call for {shape}")
    return None


def _neutral_forms(required: list[str], meaning: str | None) -> list[MaskForm | None]:
    """Ways to pass no mask: none at all, or all visible in some form; the caller finds those that work."""
    if not required:
        return [None]
    meanings = (meaning,) if meaning else ("zero_blocks", "true_attends", "additive", "true_blocks")
    forms = [MaskForm(required[0], m, shape) for m in meanings for shape in MASK_SHAPES]
    return [MaskForm(required[0], "none", ""), *forms]


def find_call(module: nn.Module, sizes: Sizes, stated: Mapping[str, Any]) -> tuple[Conventions, list[MaskForm | None]]:
    """How to call the module, and the ways to say "no mask" that it accepts.

    Raises:
        CannotTell: names or shapes do not say; the message names the option that does.
        UserCodeError: every way to call it failed.
    """
    inputs, masks = _inputs(module, stated.get("inputs")), mask_arguments(module)
    required = [
        name
        for name, parameter in signature(type(module), "forward").items()
        if parameter.default is inspect.Parameter.empty and name not in inputs
    ]
    required = sorted(required, key=lambda name: name not in masks)
    neutral = required[:1] if set(required) & set(masks) else []
    conventions = Conventions(inputs=inputs, none=tuple(name for name in required if name not in neutral))
    B, T, D = 2, 7, sizes.d_model
    dtype = next((p.dtype for p in module.parameters() if not nn.parameter.is_lazy(p)), torch.float64)
    x = torch.randn(B, T, D, dtype=dtype)
    finite: list[MaskForm | None] = []
    working: list[MaskForm | None] = []
    failure: UserCodeError | None = None
    out: Any = None
    for form in _neutral_forms(neutral, stated.get("mask")):
        try:
            with user_code("calling it"), torch.no_grad():
                out = module(**replace(conventions, neutral=form).arguments(sizes.num_heads, x, x, x))
            working.append(form)
            first = next(iter((parts_of(out) or {}).values()), out)
            if isinstance(first, Tensor) and first.isfinite().all():
                finite.append(form)
        except UserCodeError as error:
            failure = failure or error
    if not working and stated.get("inputs") is None and (optional := optional_inputs(module, conventions)):
        # With a context it wants to be constructed otherwise.
        alone = {name: role for name, role in inputs.items() if name not in optional}
        return find_call(module, sizes, {**stated, "inputs": alone})
    if not working:
        assert failure is not None
        given = f"it was given a width of {D} for {sizes.num_heads} heads"
        hint = f"; {given}: if that is not its own, state its sizes by arguments.<name>=..."
        raise UserCodeError(f"{failure}{hint if 'shape' in str(failure) else ''}", failure.trace)
    conventions = replace(conventions, output=_output_index(out, (B, T, D)))
    layout = stated.get("layout")
    time_first = (
        layout == "time_first" if layout else _mixes_first_axis(module, sizes, conventions, (finite or working)[0])
    )
    # All visible in one form is all hidden in another, which may be NaN.
    return replace(conventions, time_first=time_first), finite or working


def _mixes_first_axis(module: nn.Module, sizes: Sizes, conventions: Conventions, neutral: MaskForm | None) -> bool:
    """Whether entries along the first axis see each other, and those along the second do not: time comes first."""
    x = torch.randn(3, 3, sizes.d_model, dtype=next(module.parameters()).dtype)
    changed = x.clone()
    changed[0, 0] += 1
    call = replace(conventions, neutral=neutral).call
    with user_code("calling it"), torch.no_grad():
        difference = call(module, sizes.num_heads, x, x, x) - call(module, sizes.num_heads, changed, changed, changed)
    moved = difference.abs().amax(-1) > 1e-6  # (3, 3)
    return bool(moved[1:, 0].any()) and not bool(moved[0, 1:].any())
