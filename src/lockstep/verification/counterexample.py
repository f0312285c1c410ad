"""What holds of multi-head attention whatever its weights are, and so refutes a class that no formula explains.

Shapes: B batch, T_q and T_k query and key length, D = d_model.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lockstep.verification.formula import relative_difference
from lockstep.verification.user_code import UserCodeError

Ask = Callable[[Tensor, Tensor, Tensor], Tensor]
VIOLATED = 1e-3
"""Relative difference from which a property is violated: far above what single precision does to it."""


def counterexample(ask: Ask, d_model: int, roles: set[str], dtype: torch.dtype) -> tuple[str, str] | None:
    """The code and the sentence of a property that the class violates, if there is one.

    Args:
        ask: gives the output (B, T_q, D) for query, key and value.
        roles: the inputs that the class tells apart.
    """
    for code, sentence, violated in _properties(ask, d_model, roles, dtype):
        try:
            if violated():
                return code, sentence
        except UserCodeError:
            continue  # lengths that it refuses refute nothing
    return None


def _properties(ask: Ask, D: int, roles: set[str], dtype: torch.dtype) -> Iterator[tuple[str, str, Callable[[], bool]]]:
    generator = torch.Generator().manual_seed(5)

    def draw(B: int, T: int) -> Tensor:
        return torch.randn(B, T, D, generator=generator, dtype=dtype)

    def differ(one: Tensor, other: Tensor) -> bool:
        return relative_difference(one, other) > VIOLATED

    def misshapen() -> bool:
        x = draw(2, 1)
        return ask(x, x, x).shape != x.shape

    def not_finite() -> bool:
        x = draw(2, 7)
        return not bool(ask(x, x, x).isfinite().all())

    def mixes_samples() -> bool:
        x, y = draw(2, 7), draw(2, 7)
        y[0] = x[0]
        return differ(ask(x, x, x)[0], ask(y, y, y)[0])

    def counts_samples() -> bool:
        x = draw(4, 1)
        return any(differ(ask(x, x, x)[:n], ask(x[:n], x[:n], x[:n])) for n in (1, 2))

    def not_affine() -> bool:
        x, y = draw(3, 1), draw(3, 1)
        zero = torch.zeros_like(x)
        return differ(ask(x + y, x + y, x + y) + ask(zero, zero, zero), ask(x, x, x) + ask(y, y, y))

    def query_reaches_output() -> bool:
        x, y, memory = draw(3, 1), draw(3, 1), draw(3, 1)
        return differ(ask(x, memory, memory), ask(y, memory, memory))

    def value_is_not_mixed() -> bool:
        query, key, one, other = (draw(2, 7) for _ in range(4))
        zero = torch.zeros_like(one)
        return differ(
            ask(query, key, one + other) + ask(query, key, zero), ask(query, key, one) + ask(query, key, other)
        )

    def knows_positions() -> bool:
        x = draw(2, 7)
        changed = x.clone()
        changed[:, -1] = draw(2, 1)[:, 0]
        out = ask(x, x, x)
        if not differ(out[:, :-1], ask(changed, changed, changed)[:, :-1]):
            return False  # always causal: the order matters rightly
        order = torch.tensor([4, 2, 6, 0, 1, 5, 3])
        turned = x[:, order]
        return differ(ask(turned, turned, turned), out[:, order])

    yield "shape", "one query and one key give an output of another shape", misshapen
    yield "not_finite", "ordinary inputs give NaN or infinite values", not_finite
    yield "samples_mixed", "the output of a sample depends on the other samples of its batch", mixes_samples
    yield "samples_counted", "the output of a sample depends on how many samples its batch has", counts_samples
    yield ("not_affine", "with a single key the output is no affine map of the value: a normalisation, a gate or an "
           "activation is inside", not_affine)  # fmt: skip
    if "key" in roles:
        yield ("query_reaches_output", "with a single key, whose weight is 1, the output depends on the query: a "
               "residual, a gate, an extra key, or weights that do not add up to 1", query_reaches_output)  # fmt: skip
    if "value" in roles:
        yield "not_affine", "the output is no affine map of the values at given query and key", value_is_not_mixed
    yield ("knows_positions", "the order of the keys matters: positions (rotary, relative, a window) are inside",
           knows_positions)  # fmt: skip
