"""The formula of the paper (section 3.2) on canonical weights: what every variant is measured against.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.attention.masks import masked_softmax, merge_masks


def project(weights: Mapping[str, Tensor], role: str, x: Tensor) -> Tensor:
    """Project the input of one role, "query", "key" or "value", into every head: (B, T, D) -> (B, H, T, K)."""
    heads = torch.einsum("btd,hkd->bhtk", x, weights[f"{role}.weight"])
    bias = weights.get(f"{role}.bias")
    return heads if bias is None else heads + bias[:, None, :]


def output(weights: Mapping[str, Tensor], context: Tensor) -> Tensor:
    """Add up what all heads put out: (B, H, T, K) -> (B, T, D)."""
    out = torch.einsum("bhtk,dhk->btd", context, weights["output.weight"])
    bias = weights.get("output.bias")
    return out if bias is None else out + bias


def attention_weights(
    weights: Mapping[str, Tensor], query: Tensor, key: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) over the visible keys: (B, H, T_q, T_k)."""
    q, k = project(weights, "query", query), project(weights, "key", key)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    visible = merge_masks(scores.shape, mask, is_causal, scores.device)
    return masked_softmax(scores, visible)


def attention(
    weights: Mapping[str, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Multi-head attention without dropout: (B, T_q, D)."""
    context = attention_weights(weights, query, key, mask, is_causal) @ project(weights, "value", value)
    return output(weights, context)
