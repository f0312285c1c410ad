"""Attention without a canonical layout: fewer key heads than query heads, or heads not d_model / num_heads wide.

Shapes: D = d_model, H = num_heads, K and V channels of a head in the scores and in the values, n key heads.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations

from torch import Tensor

from lockstep.verification.construction import Sizes
from lockstep.verification.formula import Formula, plain_norm
from lockstep.verification.hypotheses import reproduces

Projections = tuple[Tensor, Tensor, Tensor]
"""Query (H·K, D), key (n·K, D) and value (n·V, D)."""


def other_sizes(
    parameters: Mapping[str, Tensor], sizes: Sizes, inputs: tuple[Tensor, Tensor, Tensor], out: Tensor
) -> tuple[str, str] | None:
    """The code and the sentence of what reproduces an output (B, T_q, D), if that is attention of other sizes.

    Args:
        parameters: as ``nn.Linear`` keeps them, biases zero.
        inputs: query (B, T_q, D), key and value (B, T_k, D).
    """
    matrices = [p.detach().double() for p in parameters.values() if p.dim() == 2]
    for index, output in enumerate(matrices):
        others = matrices[:index] + matrices[index + 1 :]
        if len(output) != sizes.d_model or output.size(1) % sizes.num_heads:
            continue
        for projections in _projections(others, sizes, output.size(1) // sizes.num_heads):
            found = _agreeing(projections, output, sizes, inputs, out)
            if found is not None:
                return found
    return None


def _projections(matrices: list[Tensor], sizes: Sizes, V: int) -> Iterator[Projections]:
    """Each by itself, key and value in one matrix, or all three in one."""
    H = sizes.num_heads
    if len(matrices) == 3:
        yield from ((query, key, value) for query, key, value in permutations(matrices))
    elif len(matrices) == 2:
        for query, both in permutations(matrices):
            half = len(both) // 2
            yield query, both[:half], both[half:]
            yield query, both[half:], both[:half]
    elif len(matrices) == 1:
        for n in (n for n in range(1, H + 1) if H % n == 0 and len(matrices[0]) == (H + 2 * n) * V):
            yield matrices[0][: H * V], matrices[0][H * V : -n * V], matrices[0][-n * V :]


def _agreeing(
    projections: Projections, output: Tensor, sizes: Sizes, inputs: tuple[Tensor, Tensor, Tensor], out: Tensor
) -> tuple[str, str] | None:
    H, D = sizes.num_heads, sizes.d_model
    query, key, value = projections
    V = output.size(1) // H
    if any(p.size(1) != D for p in projections) or len(query) % H or len(value) % V:
        return None
    K, n = len(query) // H, len(value) // V
    usual = n == H and K == V == sizes.head_dim  # what is wrong is something else
    if usual or not n or H % n or len(key) != n * K:
        return None
    weights = {
        "query.weight": query.view(H, K, D),
        "key.weight": key.view(n, K, D).repeat_interleave(H // n, 0),
        "value.weight": value.view(n, V, D).repeat_interleave(H // n, 0),
        "output.weight": output.view(D, H, V),
    }
    x, y, z = (x.double() for x in inputs)
    if not any(reproduces(Formula(causal=c), weights, (x, y, z), out, plain_norm) for c in ("none", "lower_right")):
        return None
    if n < H:
        return "fewer_key_heads", f"equals the reference except that {n} heads of key and value serve {H} of the query"
    wide = f"{K} channels" if K == V else f"{K} channels in the scores and {V} in the values"
    instead = f"where d_model / num_heads is {sizes.head_dim}"
    return "other_sizes", f"equals the reference except that a head has {wide}, {instead}"
