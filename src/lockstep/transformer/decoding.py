"""Decoding: the next token's logits, with remembered keys and values or recomputed, and greedy search on them.

Shapes: B batch, T_s source length, t tokens so far, H heads, K head_dim, V vocabulary size.
"""

from typing import Protocol, cast

import torch
from torch import Tensor

from lockstep.attention.cached import CachedAttention
from lockstep.transformer.canonical import has_canonical_layout
from lockstep.transformer.layers import DecoderLayer
from lockstep.transformer.model import Transformer


class NextToken(Protocol):
    """Gives the logits (B, V) of the token after the prefixes (B, t); each call's prefixes extend the last call's."""

    def __call__(self, prefix: Tensor) -> Tensor: ...


class RecomputedDecoder:
    """Runs the model's own decoder on the whole prefix at every step."""

    def __init__(self, model: Transformer, source: Tensor, source_mask: Tensor) -> None:
        self._model = model
        self._memory = model.encode(source, source_mask)
        self._mask = source_mask

    def __call__(self, prefix: Tensor) -> Tensor:
        return self._model.decode(prefix, self._memory, self._mask)[:, -1]


class _LayerCache:
    """One decoder layer, with its keys and values so far and those of the source."""

    def __init__(self, layer: DecoderLayer, memory: Tensor, memory_mask: Tensor) -> None:
        self._layer = layer
        self._mask = memory_mask
        self._self = CachedAttention(layer.self_attention)
        self._cross = CachedAttention(layer.cross_attention)
        self._source = self._cross.keys_and_values(memory)  # (B, H, T_s, K) each
        self._target: tuple[Tensor, Tensor] | None = None  # (B, H, t, K) each

    def _self_attend(self, x: Tensor) -> Tensor:
        new = self._self.keys_and_values(x)
        if self._target is not None:
            new = (torch.cat([self._target[0], new[0]], dim=2), torch.cat([self._target[1], new[1]], dim=2))
        self._target = new
        return self._self.attend(x, *new, mask=None, is_causal=True)

    def _cross_attend(self, x: Tensor) -> Tensor:
        return self._cross.attend(x, *self._source, mask=self._mask, is_causal=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self._layer.connect(x, self._self_attend, self._cross_attend)


class CachedDecoder:
    """Feeds only the new tokens through the decoder, remembering keys and values on the canonical weights."""

    def __init__(self, model: Transformer, source: Tensor, source_mask: Tensor) -> None:
        self._model = model
        memory = model.encode(source, source_mask)
        mask = source_mask[:, None, None, :]
        self._layers = [_LayerCache(cast(DecoderLayer, layer), memory, mask) for layer in model.decoder]
        self._seen = 0

    def __call__(self, prefix: Tensor) -> Tensor:
        x = self._model.embed(self._model.target_embedding, prefix[:, self._seen :], start=self._seen)
        self._seen = prefix.size(1)
        for layer in self._layers:
            x = layer(x)
        return self._model.output(self._model.decoder_norm(x[:, -1]))


def next_token(model: Transformer, source: Tensor, source_mask: Tensor) -> NextToken:
    """The fast decoder where every attention has canonical weights, else the one that recomputes."""
    return (CachedDecoder if has_canonical_layout(model) else RecomputedDecoder)(model, source, source_mask)


@torch.no_grad()
def greedy(
    step: NextToken, batch_size: int, *, bos: int, eos: int, pad: int, max_length: int, device: torch.device
) -> Tensor:
    """The most probable token at each step, until every sequence has ended or ``max_length`` tokens follow BOS.

    Returns:
        (B, t) token ids without BOS, each up to and including its EOS, then padded.
    """
    tokens = torch.full((batch_size, 1), bos, device=device)
    ended = torch.zeros(batch_size, dtype=torch.bool, device=device)
    for _ in range(max_length):
        best = step(tokens).argmax(dim=-1).masked_fill(ended, pad)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        ended |= best == eos
        if ended.all():
            break
    return tokens[:, 1:]
