"""Dropout: inactive in eval, and in training with the mean and the variance that the formula gives it.

The formula drops attention weights, each for itself, and scales the others up. With c = a · (W_o v), what one key
contributes to an output through one head, the mean of the output is what it is without dropout, and its variance
p / (1 - p) · sum of c² over heads and keys. The samples of a batch, and the queries, draw for themselves.

Shapes: B batch, T query and key length, D = d_model, H = num_heads, K = head_dim.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.attention import reference
from lockstep.verification.candidate import Candidate
from lockstep.verification.construction import set_dropout
from lockstep.verification.conventions import MaskForm
from lockstep.verification.drawing import Inputs
from lockstep.verification.foreign import resolve
from lockstep.verification.situations import PLAIN, Situation
from lockstep.verification.user_code import user_code

RATE, SAMPLES, CALLS = 0.25, 256, 8
"""Samples in one call, and calls."""
FALSE_ALARM = 7.5
"""Standard errors that the largest of some thousand figures exceeds less than once in a million verifications."""
_FIVE = Situation(lengths=(5, 5), batch=SAMPLES, storage="one sample", gradients="none")


@dataclass(frozen=True)
class Place:
    """What may be dropped: the mean and the variance (T, D) that this gives the output.

    Args:
        fault: its code, empty where it is none.
        words: as a sentence goes on after "in training".
    """

    fault: str
    words: str
    mean: Tensor
    variance: Tensor


@contextmanager
def dropping(candidate: Candidate, cls: type | None, arguments: Mapping[str, Any]) -> Iterator[tuple[Candidate, str]]:
    """The class with a dropout of :data:`RATE`; and what sets it: "argument", "layer" or, where none is found, ""."""
    if cls is None or "'dropout'" not in str(arguments):
        layers = set_dropout(candidate.module, RATE)
        try:
            yield candidate, "layer" if layers else ""
        finally:
            set_dropout(candidate.module, 0.0)
        return
    with user_code(f"constructing it with a dropout of {RATE}"):
        module = cls(**resolve(arguments, candidate.sizes.values(dropout=RATE))).to(candidate.dtype).eval()
    anew = Candidate(module, candidate.sizes, candidate.conventions, candidate.mapping)
    anew.call(anew.draw(PLAIN), PLAIN)  # where parameters are made by the first call
    module.load_state_dict(candidate.module.state_dict(), strict=False)
    yield anew, "argument"


@torch.no_grad()
def dropped_in_eval(candidate: Candidate, dropping: Candidate) -> float:
    """How far dropout changes the output in eval."""
    inputs = candidate.draw(PLAIN)
    without, _ = candidate.expected(candidate.weights(), inputs, PLAIN)
    return float((dropping.call(inputs, PLAIN) - without).abs().max() / without.abs().max())


@torch.no_grad()
def dropped_in_training(
    dropping: Candidate, weights: Mapping[str, Tensor], rate: float | None, forms: tuple[MaskForm, ...] = ()
) -> Place | None:
    """What is dropped in training; None where nothing is.

    Args:
        weights: canonical.
        rate: None where it is not known: it is taken from the variance.
        forms: of a mask that is given.
    """
    asked = replace(_FIVE, forms=forms)
    inputs = dropping.draw(asked)
    masks = tuple(mask[:1].expand_as(mask) for mask in inputs.masks)  # one for all, as the inputs are
    own = Inputs(inputs.query.contiguous(), inputs.key.contiguous(), inputs.value.contiguous(), masks)
    dropping.module.train()
    try:
        drawn = torch.cat([dropping.call(own, asked).double() for _ in range(CALLS)])  # (N, T, D)
    finally:
        dropping.module.eval()
    one = tuple(mask[:1] for mask in masks)
    x = Inputs(inputs.query[:1].double(), inputs.key[:1].double(), inputs.value[:1].double(), one)
    contributions, out, bias = _contributions(dropping, weights, x)
    if float((drawn - drawn[:1]).abs().max()) < 1e-6 * float(out.abs().max()):
        return None
    independent = contributions.square().sum((0, 2))  # (T, D)
    if rate is None:
        ratio = float(drawn.var(0).mean() / independent.mean())
        rate = ratio / (1 + ratio)
    places = _places(contributions, out, bias, rate)
    around = drawn - drawn.mean(0)
    if torch.equal(drawn[:SAMPLES], drawn[SAMPLES : 2 * SAMPLES]):
        return Place("dropout_repeated", "dropout draws the same in every call: the generator is seeded", out, out)
    neighbours = {"samples": around[0::2] * around[1::2], "queries": around[:, 0:4:2] * around[:, 1:5:2]}
    for what, products in neighbours.items():
        if float(_standard_errors(products, torch.zeros(()))) > FALSE_ALARM:
            words = f"dropout draws once for all {what}, where each draws for itself"
            return Place("dropout_shared", words, out, independent)
    fits = [place for place in places if _fits(drawn, place)]
    unknown = Place("dropout_unknown", "dropout gives the output another mean or variance than attention weights "
                    f"dropped at a rate of {rate:g} do", out, independent)  # fmt: skip
    return fits[0] if fits else unknown


def gradient_error(dropping: Candidate) -> float:
    """How far the gradient is from the differences of what is drawn, seeded alike; 0 where no seed is heeded."""
    inputs = dropping.draw(PLAIN)
    direction = torch.randn(inputs.value.shape, generator=torch.Generator().manual_seed(1), dtype=dropping.dtype)

    def drawn(step: float) -> Tensor:
        torch.manual_seed(0)
        moved = inputs.value + step * direction
        return dropping.call(Inputs(moved, moved, moved), PLAIN).square().sum()

    dropping.module.train()
    try:
        if dropping.dtype != torch.float64 or not torch.equal(drawn(0.0), drawn(0.0)):
            return 0.0
        (gradient,) = torch.autograd.grad(drawn(0.0), inputs.value)
        expected = float((drawn(1e-5).detach() - drawn(-1e-5).detach()) / 2e-5)
    finally:
        dropping.module.eval()
    return abs(float((gradient * direction).sum()) - expected) / max(abs(expected), 1.0)


def _contributions(candidate: Candidate, weights: Mapping[str, Tensor], x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """What each key contributes through each head (H, T, T, D), the output without dropout (T, D), and its bias (D)."""
    attention = reference.attention_weights(weights, x.query, x.key, x.visible, is_causal=candidate.conventions.causal)
    values = torch.einsum("bhtk,dhk->bhtd", reference.project(weights, "value", x.value), weights["output.weight"])
    contributions = attention[0, ..., None] * values[0, :, None]  # (H, T_q, T_k, D)
    bias = weights.get("output.bias", torch.zeros_like(x.query[0, 0]))
    return contributions, contributions.sum((0, 2)) + bias, bias


def _places(c: Tensor, out: Tensor, bias: Tensor, p: float) -> list[Place]:
    """What an implementation may drop, the formula's own first."""
    odds, single = p / (1 - p), c.square().sum((0, 2))
    through_heads = c.sum(2)  # (H, T, D)
    places = [
        Place("", "attention weights are dropped, each for itself", out, odds * single),
        Place("", "attention weights and then outputs are dropped", out,
              (odds * single + out.square()) / (1 - p) - out.square()),
        Place("", "attention weights and then outputs, before their bias, are dropped", out,
              (odds * single + (out - bias).square()) / (1 - p) - (out - bias).square()),
        Place("dropout_on_output", "dropout falls on the output, not on the attention weights", out,
              odds * out.square()),
        Place("dropout_shared", "dropout drops the same keys in every head", out, odds * c.sum(0).square().sum(1)),
        Place("dropout_of_heads", "dropout drops whole heads", out, odds * through_heads.square().sum(0)),
        Place("dropout_unscaled", "what dropout leaves is not divided by 1 - p", (1 - p) * (out - bias) + bias,
              p * (1 - p) * single),
    ]  # fmt: skip
    for other, words in ((1 - p, "1 - p instead of p"), (p / 2, "half its rate"), (min(2 * p, 0.9), "twice its rate"),
                         (p * (2 - p), "its rate, twice over"),
                         (p * p, "the square of its rate")):  # fmt: skip
        places.append(Place("dropout_rate", f"dropout works at {words}", out, other / (1 - other) * single))
    return places


def _fits(drawn: Tensor, place: Place) -> bool:
    around = drawn - place.mean
    mean = _standard_errors(around, torch.zeros(()))
    return float(max(mean, _standard_errors(around.square(), place.variance))) <= FALSE_ALARM


def _standard_errors(drawn: Tensor, mean: Tensor) -> Tensor:
    """How many standard errors the means of samples (N, ...) are from what they should be, at most."""
    error = drawn.std(0) / drawn.size(0) ** 0.5
    scale = 1e-9 * drawn.abs().max() + 1e-30  # where nothing is drawn, rounding is no deviation
    return ((drawn.mean(0) - mean).abs() / (error + scale)).max()
