"""An attention tried once before a model is built of it: whether it keeps the contract, as far as training needs it.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

import random
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from lockstep.attention.contract import MultiHeadAttention
from lockstep.attention.foreign import failure
from lockstep.errors import InputError

B, T_Q, T_K = 2, 5, 7
Call = Callable[[MultiHeadAttention], Tensor]


class ContractError(ValueError):
    """An attention that a Transformer cannot be made of; the message says what it breaks."""


def try_out(make: Callable[[], MultiHeadAttention]) -> None:
    """Make an attention, call it as the Transformer does, and look at its parameters.

    The global generators of torch and of Python are left as they were.

    Raises:
        ContractError: what it does is not what the contract says, or it raises, whatever.
        ValueError: its constructor refuses these sizes.
        InputError: its file cannot be imported.
    """
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            _try(make)
        except (ValueError, InputError):
            raise
        except Exception as error:
            raise ContractError(f"it fails: {failure(error)}") from error
        finally:
            random.setstate(state)


def _try(make: Callable[[], MultiHeadAttention]) -> None:
    module, twin = make(), make()
    x, memory = (torch.randn(B, T, module.d_model) for T in (T_Q, T_K))
    for what, call in _calls(x, memory).items():
        try:
            out = call(module)
        except Exception as error:
            raise ContractError(f"{what} it fails: {failure(error)}") from error
        if not isinstance(out, Tensor) or out.shape != x.shape:
            got = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ContractError(f"{what} it returns {got}, not one of shape {tuple(x.shape)}")
        own = {id(p) for p in module.parameters()}
        for astray in (leaf for leaf in _leaves(out) if id(leaf) not in own):
            raise ContractError(
                f"it has a weight of shape {tuple(astray.shape)} which is none of its parameters(), so that no "
                "checkpoint would hold it: a list of layers is an nn.ModuleList, a tensor an nn.Parameter"
            )
    _same_from_its_state(module, twin, _calls(x, memory).values())
    if module.canonical:
        _there_and_back(module)


def _calls(x: Tensor, memory: Tensor) -> dict[str, Call]:
    """What encoder and decoder ask for; views, as they give them."""
    real = torch.ones(B, 1, 1, T_K, dtype=torch.bool)
    real[1, ..., -2:] = False
    return {
        "under a padding mask (B, 1, 1, T_k)": lambda m: m(*(x.view_as(x) for _ in range(3)), real[..., -T_Q:]),
        "with is_causal=True": lambda m: m(*(x.view_as(x) for _ in range(3)), is_causal=True),
        "in cross-attention": lambda m: m(x.view_as(x), *(memory.view_as(memory) for _ in range(2)), real),
    }


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
def _same_from_its_state(module: MultiHeadAttention, twin: MultiHeadAttention, calls: Iterable[Call]) -> None:
    """What a run goes on with is made anew, and given what ``state_dict`` holds."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=max(1, parameter.numel()) ** -0.25)
    twin.load_state_dict(module.state_dict())
    module.eval()
    twin.eval()
    for call in calls:
        if not torch.allclose(call(module), call(twin), rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ContractError(
                "made anew and given the same state_dict, it answers otherwise in eval: what is drawn at construction "
                "must be a parameter or a buffer, or no checkpoint holds it"
            )


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
