"""The reference formula, and what can be different about it.

One dataclass serves three ends: a class is understood by the formula that reproduces its output, a fault is a formula
that differs in one field, and a mutant is a fault applied to the reference.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.attention.contract import INPUT_ROLES

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Formula:
    """Multi-head attention with every choice spelt out; the defaults are the paper's.

    Args:
        reads: the inputs from which query, key and value are projected.
        shared: roles whose first head serves all heads.
        split: roles reshaped into heads without swapping axes.
        scale: what the scores are divided by.
        causal: "none", "lower_right" or one of the ways to get it wrong.
        mask: what a mask does.
        softmax: the axis over which weights sum to one.
        average: "weights" or "context" averaged over heads.
        merge: "swap" axes before joining heads, or "reshape" at once.
        projected: there is an output projection.
        around: residual and normalisation inside the class.
        factor: what the output is multiplied by, before its bias is added.
    """

    reads: tuple[str, str, str] = INPUT_ROLES
    shared: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    scale: str = "sqrt(head_dim)"
    causal: str = "none"
    mask: str = "hides"
    softmax: str = "keys"
    average: str = "none"
    merge: str = "swap"
    projected: bool = True
    around: str = "none"
    factor: float = 1.0

    def fits(self, T_q: int, T_k: int) -> bool:
        """Whether the inputs that it reads are of lengths that belong together."""
        lengths = {"query": T_q, "key": T_k, "value": T_k}
        query, key, value = (lengths[read] for read in self.reads)
        return query == T_q and key == value


@dataclass(frozen=True)
class Fault:
    """A named way to be wrong.

    Args:
        code: its name in ``findings``.
        sentence: how it continues "equals the reference except that ...".
        changes: the fields of :class:`Formula` that it changes.
        stage: where it first shows: "value path" (one key), "scores" (several) or "mask".
        needs: what a class must offer for the fault to make a difference: "query" or "value" as inputs of their own,
            "mask", "batch mask" (a mask that differs between samples), "causal", "lengths" (T_q other than T_k),
            "heads" (more than one).
    """

    code: str
    sentence: str
    changes: tuple[tuple[str, Any], ...]
    stage: str
    needs: tuple[str, ...] = ()

    def applied_to(self, formula: Formula) -> Formula:
        changes = dict(self.changes)
        # What is found of the value at one stage stays beside what is found of query and key at another.
        if "shared" in changes:
            changes["shared"] += formula.shared
        if "reads" in changes:
            both = zip(changes["reads"], formula.reads, INPUT_ROLES, strict=True)
            changes["reads"] = tuple(before if new == right else new for new, before, right in both)
        return replace(formula, **changes)


def _fault(code: str, sentence: str, stage: str, *needs: str, **changes: Any) -> Fault:
    return Fault(code, sentence, tuple(changes.items()), stage, needs)


_VALUE, _SCORES, _MASK = "value path", "scores", "mask"
_ALL = INPUT_ROLES
FAULTS = (
    _fault("residual", "a residual is added", _VALUE, around="residual"),
    _fault("normalisation", "the output is normalised", _VALUE, around="norm"),
    _fault("residual_normalisation", "a residual is added and normalised", _VALUE, around="residual, norm"),
    _fault("normalisation_first", "the inputs are normalised first", _VALUE, around="norm first"),
    _fault("residual_normalisation_first", "the inputs are normalised first and a residual is added", _VALUE,
           around="norm first, residual"),
    _fault("no_output_projection", "it has no output projection", _VALUE, projected=False),
    _fault("heads_averaged", "heads are averaged instead of joined", _VALUE, "heads", average="context"),
    _fault("value_reads_key", "the value is projected from the key input", _VALUE, "value",
           reads=("query", "key", "key")),
    _fault("value_reads_query", "the value is projected from the query input", _VALUE, "query",
           reads=("query", "key", "query")),
    _fault("heads_share_weights", "all heads share the value projection of one", _VALUE, "heads", shared=("value",)),
    _fault("heads_share_weights", "all heads share the query projection of one", _SCORES, "heads", shared=("query",)),
    _fault("heads_share_weights", "all heads share the key projection of one", _SCORES, "heads", shared=("key",)),
    _fault("heads_share_weights", "all heads share the query and key projections of one", _SCORES, "heads",
           shared=("query", "key")),
    _fault("heads_share_weights", "all heads share the projections of one", _VALUE, "heads", shared=_ALL),
    _fault("no_scale", "the scores are not divided by sqrt(head_dim)", _SCORES, scale="1"),
    _fault("scale_d_model", "the scores are divided by sqrt(d_model) instead of sqrt(head_dim)", _SCORES, "heads",
           scale="sqrt(d_model)"),
    _fault("scale_head_dim", "the scores are divided by head_dim instead of its root", _SCORES, scale="head_dim"),
    _fault("scale_inverted", "the scores are multiplied by sqrt(head_dim) instead of divided", _SCORES,
           scale="1/sqrt(head_dim)"),
    _fault("softmax_over_queries", "the softmax runs over the queries instead of the keys", _SCORES,
           softmax="queries"),
    _fault("softmax_over_heads", "the softmax runs over the heads instead of the keys", _SCORES, "heads",
           softmax="heads"),
    _fault("softmax_over_batch", "the softmax runs over the batch instead of the keys", _SCORES, softmax="batch"),
    _fault("no_softmax", "there is no softmax", _SCORES, softmax="none"),
    _fault("split_by_reshape", "heads are split by a reshape without swapping axes", _SCORES, "heads", split=_ALL),
    *(_fault("split_by_reshape", f"heads of the {role} are split by a reshape without swapping axes", _SCORES, "heads",
             split=(role,)) for role in _ALL),
    _fault("merge_by_reshape", "heads are merged by a reshape without swapping axes", _SCORES, "heads",
           merge="reshape"),
    _fault("split_and_merge_by_reshape", "heads are split and merged by reshapes without swapping axes", _SCORES,
           "heads",
           split=_ALL, merge="reshape"),
    _fault("attention_averaged", "attention weights are averaged over heads", _SCORES, "heads", average="weights"),
    _fault("query_key_swapped", "query and key inputs are swapped", _SCORES, "query",
           reads=("key", "query", "value")),
    _fault("key_reads_value", "the key is projected from the value input", _SCORES, "value",
           reads=("query", "value", "value")),
    _fault("key_reads_query", "the key is projected from the query input", _SCORES, "query",
           reads=("query", "query", "value")),
    _fault("query_reads_key", "the query is projected from the key input", _SCORES, "query",
           reads=("key", "key", "value")),
    _fault("causal_off_by_one", "causality is off by one: a query does not see its own position", _SCORES, "causal",
           causal="strict"),
    _fault("causal_off_by_one", "causality is off by one: a query sees the next position", _SCORES, "causal",
           causal="loose"),
    _fault("causal_wrong_corner", "causality is aligned at the upper left corner instead of the lower right", _SCORES,
           "causal", "lengths", causal="upper_left"),
    _fault("causal_inverted", "the causal mask is inverted: a query sees what comes after it", _SCORES, "causal",
           causal="inverted"),
    _fault("causal_added", "the causal mask is added to the scores as 0/1 and hides nothing", _SCORES, "causal",
           causal="added"),
    _fault("causal_ignored", "later keys are not hidden", _SCORES, "causal", causal="none"),
    _fault("mask_inverted", "the mask looks inverted: it hides what should be visible", _MASK, "mask",
           mask="inverted"),
    _fault("mask_added", "the mask is added to the scores as 0/1 and hides nothing", _MASK, "mask", mask="added"),
    _fault("mask_ignored", "the mask is ignored", _MASK, "mask", mask="ignored"),
    _fault("mask_ignored_across", "the mask is ignored in cross-attention", _MASK, "mask", "lengths",
           mask="ignored across"),
    _fault("mask_tiled", "the mask is tiled over heads in the wrong order", _MASK, "heads", "mask", "batch mask",
           mask="tiled"),
)  # fmt: skip

CORE = {"residual", "normalisation", "residual_normalisation", "normalisation_first", "residual_normalisation_first",
        "no_output_projection"}  # fmt: skip
"""Faults of what surrounds the attention, not of the attention itself."""


def relative_difference(found: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """The largest difference over the largest expected value, or over ``floor``; infinite where something is NaN."""
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    figure = float((found - expected).abs().max()) / max(float(expected.abs().max()), floor, 1e-300)
    return figure if figure == figure else float("inf")


def plain_norm(x: Tensor) -> Tensor:
    """Layer normalisation without weights: what mutants use."""
    return F.layer_norm(x, x.shape[-1:])


def _heads(formula: Formula, weights: Mapping[str, Tensor], role: str, x: Tensor) -> Tensor:
    """(B, T, D) -> (B, H, T, K)."""
    weight, bias = weights[f"{role}.weight"], weights.get(f"{role}.bias")  # (H, K, D), (H, K)
    H, K, _ = weight.shape
    B, T, _ = x.shape
    heads = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten()).view(B, T, H, K)
    if role in formula.shared:
        heads = heads[:, :, :1].expand(B, T, H, K)
    return heads.reshape(B, H, T, K) if role in formula.split else heads.transpose(1, 2)


def _hide(formula: Formula, scores: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores with hidden keys at minus infinity, and which rows (B, T_q) see something in every head."""
    B, H, T_q, T_k = scores.shape
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if visible is not None and visible.is_floating_point():
        scores = scores + visible.to(scores.dtype)
    elif visible is not None and not (formula.mask == "ignored" or (formula.mask == "ignored across" and T_q != T_k)):
        if formula.mask == "added":
            scores = scores + visible.to(scores.dtype)
        elif formula.mask == "tiled":
            flat = visible.expand(B, H, T_q, T_k).transpose(0, 1).flatten(0, 1)  # (H·B, T_q, T_k), read as (B·H, ...)
            seen = flat.view(B, H, T_q, T_k)
        else:
            seen = ~visible if formula.mask == "inverted" else visible
    square = torch.ones(T_q, T_k, dtype=torch.bool)
    corner = T_k - T_q
    if formula.causal == "added":
        scores = scores + square.tril(corner).to(scores.dtype)
    elif formula.causal == "inverted":
        seen = seen & square.triu(corner + 1)
    elif formula.causal != "none":
        offset = {"lower_right": corner, "upper_left": 0, "strict": corner - 1, "loose": corner + 1}[formula.causal]
        seen = seen & square.tril(offset)
    seen = seen.expand(B, H, T_q, T_k)
    # Over another axis than the keys a whole slice may be hidden: the finite constant of most implementations.
    constant = float("-inf") if formula.softmax == "keys" else max(-1e9, torch.finfo(scores.dtype).min)
    empty = ~seen.any(-1, keepdim=True)
    return scores.masked_fill(~(seen | empty), constant), ~empty.squeeze(-1).any(1)


def evaluate(
    formula: Formula,
    weights: Mapping[str, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    norm: Norm = plain_norm,
) -> tuple[Tensor, Tensor]:
    """The formula on canonical weights.

    Args:
        weights: canonical weights; absent biases are zero.
        query: (B, T_q, D).
        key: (B, T_k, D).
        value: (B, T_k, D).
        visible: four dimensions that broadcast to (B, H, T_q, T_k): boolean, True = may attend; or added to the scores.
        norm: the normalisation that ``formula.around`` speaks of.

    Returns:
        The output (B, T_q, D), and which of its rows (B, T_q) are judged: those that see some key in every head.
    """
    inputs = {"query": query, "key": key, "value": value}
    if formula.around.startswith("norm first"):
        inputs = {role: norm(x) for role, x in inputs.items()}
    q, k, v = (
        _heads(formula, weights, role, inputs[read]) for role, read in zip(_ALL, formula.reads, strict=True)
    )  # (B, H, T, K)
    H, K = q.size(1), q.size(3)
    divisor = {"sqrt(head_dim)": math.sqrt(K), "1": 1.0, "sqrt(d_model)": math.sqrt(H * K), "head_dim": float(K),
               "1/sqrt(head_dim)": 1 / math.sqrt(K)}[formula.scale]  # fmt: skip
    scores, rows = _hide(formula, q @ k.transpose(-2, -1) / divisor, visible)
    axes = {"keys": -1, "queries": -2, "heads": 1, "batch": 0}
    attention = scores.softmax(axes[formula.softmax]) if formula.softmax in axes else scores
    if formula.average == "weights":
        attention = attention.mean(1, keepdim=True).expand_as(attention)
    context = attention @ v  # (B, H, T_q, K)
    B, H, T, K = context.shape
    if formula.average == "context":
        context = context.mean(1, keepdim=True).expand_as(context)
    context = context if formula.factor == 1.0 else context * formula.factor
    merged = context.reshape(B, T, H * K) if formula.merge == "reshape" else context.transpose(1, 2).flatten(2)
    out = (
        F.linear(merged, weights["output.weight"].flatten(1), weights.get("output.bias"))
        if formula.projected
        else merged
    )
    if "residual" in formula.around:
        out = out + query
    return (norm(out) if formula.around in ("norm", "residual, norm") else out), rows
