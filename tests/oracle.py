"""Multi-head attention written out number by number, in float64: shares nothing with the package."""

import math

import torch
from torch import Tensor


def oracle(weights, query, key, value, mask=None, is_causal=False) -> tuple[Tensor, Tensor]:
    """Output (B, T_q, D) and attention weights (B, H, T_q, T_k) of canonical weights; differentiable."""
    H, K, D = weights["query.weight"].shape
    (B, T_q, _), T_k = query.shape, key.shape[1]
    if mask is not None and mask.dim() == 3:
        mask = mask[:, None]
    visible = torch.ones(B, H, T_q, T_k, dtype=torch.bool) if mask is None else mask.expand(B, H, T_q, T_k).clone()
    if is_causal:
        for i in range(T_q):
            for j in range(T_k):
                visible[:, :, i, j] &= j <= i + T_k - T_q

    def project(role: str, x: Tensor, h: int) -> Tensor:
        bias = weights[f"{role}.bias"][h] if f"{role}.bias" in weights else 0
        return weights[f"{role}.weight"][h] @ x + bias  # (K,)

    maps, outputs = torch.zeros(B, H, T_q, T_k, dtype=torch.float64), []
    for b in range(B):
        for i in range(T_q):
            # The zero ties the output to the graph where a query sees nothing.
            out = weights.get("output.bias", torch.zeros(D, dtype=torch.float64)) + 0 * query[b, i].sum()
            for h in range(H):
                keys = [j for j in range(T_k) if visible[b, h, i, j]]
                if not keys:
                    continue
                q = project("query", query[b, i], h)
                scores = torch.stack([q.dot(project("key", key[b, j], h)) / math.sqrt(K) for j in keys])
                exponentials = (scores - scores.max()).exp()
                row = exponentials / exponentials.sum()
                context = sum(w * project("value", value[b, j], h) for w, j in zip(row, keys, strict=True))
                out = out + weights["output.weight"][:, h] @ context
                maps[b, h, i, keys] = row.detach()
            outputs.append(out)
    return torch.stack(outputs).view(B, T_q, D), maps
