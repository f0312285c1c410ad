"""An attention tried once before a model is built of it: whether it keeps the contract, as far as training needs it.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lockstep.attention.contract import MultiHeadAttention
from lockstep.base.errors import InputError
from lockstep.verification.construction import UNREGISTERED
from lockstep.verification.foreign import failure

B, T_Q, T_K = 2, 5, 7
SEED = 0x5EED


class Given(NamedTuple):
    """Inputs of an attention: query, what key and value are, and a mask; without one it is causal."""

    query: Tensor
    memory: Tensor
    mask: Tensor | None


class ContractError(ValueError):
    """An attention that a Transformer cannot be made of; the message says what it breaks."""


def try_out(make: Callable[[], MultiHeadAttention], *, masks: bool = True) -> None:
    """Make an attention, call it as the Transformer does, and look at its parameters.

    The global generators of torch and of Python are left as they were.

    Args:
        make: makes one.
        masks: refuse what lets hidden keys matter; a comparison finds that by itself, and says more of it.

    Raises:
        ContractError: what it does is not what the contract says, or it raises, whatever.
        ValueError: its constructor refuses these sizes.
        InputError: its file cannot be imported.
    """
    state = random.getstate()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():  # a class may leave gradients switched off
        torch.default_generator.manual_seed(0)
        try:
            _try(make, masks)
        except (ValueError, InputError):
            raise
        except Exception as error:
            raise ContractError(f"it fails: {failure(error)}") from error
        finally:
            random.setstate(state)


def _try(make: Callable[[], MultiHeadAttention], masks: bool) -> None:
    module, twin = make(), make()
    if any(nn.parameter.is_lazy(p) or p.is_meta or p.is_complex() for p in module.parameters()):
        raise ContractError(
            "it has weights that are no real numbers yet: of a lazy layer, on the meta device, or complex"
        )
    # Leaves, and what is not one, as between layers, where a change in place is no error yet.
    leaves = [torch.randn(B, T, module.d_model, requires_grad=True) for T in (T_Q, T_K)]
    x, memory = (leaf * 1 for leaf in leaves)
    own = {id(tensor) for tensor in (*module.parameters(), *leaves)}
    torch.default_generator.manual_seed(SEED)
    for what, given in _calls(x, memory).items():
        before = [tensor.clone() for tensor in given if tensor is not None]
        try:
            out = _call(module, *given)
        except Exception as error:
            raise ContractError(f"{what} it fails: {failure(error)}") from error
        if not isinstance(out, Tensor) or out.shape != given.query.shape:
            got = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ContractError(f"{what} it returns {got}, not one of shape {tuple(given.query.shape)}")
        if out.dtype != x.dtype or out.device != x.device:
            raise ContractError(f"{what} it returns {out.dtype} on {out.device} of {x.dtype} on {x.device}")
        after = [tensor for tensor in given if tensor is not None]
        if not all(map(torch.equal, before, after)):
            raise ContractError(f"{what} it changes its inputs in place, which others read after it")
        found = {id(leaf): leaf for leaf in _leaves(out)}
        if id(leaves[given.memory is memory]) not in found:
            raise ContractError(f"{what} no gradient goes back to its values: it detaches them, or runs without")
        for astray in (leaf for leaf in found.values() if id(leaf) not in own):
            raise ContractError(UNREGISTERED.format(tuple(astray.shape)))
    if torch.default_generator.initial_seed() != SEED:
        raise ContractError("its forward seeds torch's generator, from which the run draws its dropout")
    _same_from_its_state(module, twin, _calls(x.detach(), memory.detach()).values())
    if module.canonical:
        _there_and_back(module)
    for what, given in _calls(x.detach(), memory.detach()).items():
        if masks:
            _hides(module, what, given)
        _gives_weights(module, what, given)


def _calls(x: Tensor, memory: Tensor) -> dict[str, Given]:
    """What encoder and decoder ask for."""
    real = torch.ones(B, 1, 1, T_K, dtype=torch.bool)
    real[1, ..., -2:] = False
    first = x[:, :1]
    return {
        "under a padding mask (B, 1, 1, T_k)": Given(x, x, real[..., -T_Q:]),
        "with is_causal=True": Given(x, x, None),
        "of one token": Given(first, first, None),
        "in cross-attention": Given(x, memory, real),
    }


def _call(module: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
    """With views, as encoder and decoder give them."""
    inputs = [query.view_as(query), *(memory.view_as(memory) for _ in range(2))]
    out: Tensor = module(*inputs, is_causal=True) if mask is None else module(*inputs, mask)
    return out


def _leaves(out: Tensor) -> Iterator[Tensor]:
    """Every tensor that ``out.backward()`` would give a gradient."""
    seen: set[object] = set()
    nodes = [out.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


@torch.no_grad()
def _same_from_its_state(module: MultiHeadAttention, twin: MultiHeadAttention, calls: Iterable[Given]) -> None:
    """What a run goes on with is made anew, and given what ``state_dict`` holds."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=max(1, parameter.numel()) ** -0.25)
    twin.load_state_dict(module.state_dict())
    module.eval()
    twin.eval()
    for given in calls:
        if not torch.allclose(_call(module, *given), _call(twin, *given), rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ContractError(
                "made anew and given the same state_dict, it answers otherwise in eval: what is drawn at construction "
                "must be a parameter or a buffer, or no checkpoint holds it"
            )


@torch.no_grad()
def _hides(module: MultiHeadAttention, what: str, given: Given) -> None:
    """Keys that the mask hides, or that causality does, do not matter."""
    T = given.memory.size(1)
    hidden = torch.arange(T).expand(B, T) == T - 1 if given.mask is None else ~given.mask[:, 0, 0]
    changed = torch.where(hidden[..., None], given.memory * 3 + 1, given.memory)
    # In self-attention the hidden tokens ask as well.
    query, asking = (changed, ~hidden) if given.query is given.memory else (given.query, slice(None))
    before, after = _call(module, *given)[asking], _call(module, query, changed, given.mask)[asking]
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-4, equal_nan=True):
        ignored = "is_causal" if given.mask is None else "its mask, in which True = may attend"
        raise ContractError(f"{what} its answer depends on keys that are hidden: it ignores {ignored}, or inverts it")


@torch.no_grad()
def _gives_weights(module: MultiHeadAttention, what: str, given: Given) -> None:
    shape = (B, module.num_heads, given.query.size(1), given.memory.size(1))
    try:
        weights = module.attention_weights(given.query, given.memory, mask=given.mask, is_causal=given.mask is None)
    except Exception as error:
        raise ContractError(f"{what} its attention_weights, for pictures, fail: {failure(error)}") from error
    if not isinstance(weights, Tensor) or weights.shape != shape:
        got = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise ContractError(f"{what} its attention_weights, for pictures, are {got}, not of (B, H, T_q, T_k) = {shape}")


def _there_and_back(module: MultiHeadAttention) -> None:
    stored = dict(module.named_parameters())
    canonical = module.to_canonical(stored)
    for name, shape in module.canonical_shapes().items():
        if name not in canonical or canonical[name].shape != shape:
            raise ContractError(f"to_canonical gives no {name} of shape {tuple(shape)}")
    back = module.from_canonical(canonical)
    for name, parameter in stored.items():
        if name not in back or not torch.equal(back[name], parameter):
            raise ContractError(
                f"{name} does not come back from the canonical layout as it was; a class with weights that multi-head "
                "attention has not says canonical = False"
            )
