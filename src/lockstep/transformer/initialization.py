"""The same start for every variant: each canonical tensor drawn from a stream of its own."""

import hashlib
import math

import torch
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention
from lockstep.transformer.model import Transformer


def stream(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one tensor, seeded by the run's seed and the tensor's canonical name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _xavier(seed: int, name: str, shape: torch.Size, fan_in: int, fan_out: int) -> Tensor:
    """Glorot and Bengio (2010), uniform: bounds +-sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=stream(seed, name))


@torch.no_grad()
def initialize(model: Transformer, seed: int) -> None:
    """Draw all weights of a Transformer in place.

    Xavier bounds depend on the shape of the stored matrix (for D = 512 and 8 heads 0.102 per head, 0.0766 fused,
    0.0541 packed), and drawing order on the layout. Here each tensor is drawn in canonical layout, with the fans of
    the whole D x D projection, and then laid out: every variant starts equal to the bit.

    What writes into the residual stream (values, outputs, the outer map of a feed-forward layer) starts scaled by the
    model's ``residual_gain``. Below 1 it lets deep post-norm models learn from the first steps, where else their
    gradients fade on the way to the encoder (Wang et al. 2022, DeepNet, section 4).
    """
    drawn: set[int] = set()
    for prefix, module in model.named_modules():  # an attention comes before the layers inside it
        start = _start(module, prefix, seed, model.residual_gain)
        for name, parameter in module.named_parameters():
            if name in start and id(parameter) not in drawn:  # a tied tensor keeps its first draw
                parameter.copy_(start[name])
                drawn.add(id(parameter))


def _start(module: nn.Module, prefix: str, seed: int, gain: float) -> dict[str, Tensor]:
    """Initial tensors by the module's own parameter names; LayerNorm starts as its constructor leaves it."""
    if isinstance(module, MultiHeadAttention):
        D = module.d_model
        canonical = {
            name: _xavier(seed, f"{prefix}.{name}", shape, D, D) if name.endswith("weight") else torch.zeros(shape)
            for name, shape in module.canonical_shapes().items()
        }
        for name in ("value.weight", "output.weight"):
            canonical[name] *= gain
        return module.from_canonical(canonical)
    weight = f"{prefix}.weight"
    if isinstance(module, nn.Linear):
        drawn = _xavier(seed, weight, module.weight.shape, module.in_features, module.out_features)
        return {
            "weight": drawn * gain if prefix.endswith(".outer") else drawn,
            "bias": torch.zeros(module.out_features),
        }
    if isinstance(module, nn.Embedding):
        drawn = torch.empty(module.weight.shape, dtype=torch.float64)
        return {"weight": drawn.normal_(0, module.embedding_dim**-0.5, generator=stream(seed, weight))}
    return {}
