"""Decoding: the next token's logits, with remembered keys and values or recomputed.

Several prefixes may continue one source, as in beam search: they are rows side by side, and attend to its keys as so
many queries.

Shapes: B sources, R = B·k prefixes, T_s source length, t tokens so far, D = d_model, H heads, K head_dim, V vocabulary
size.
"""

from typing import Protocol, cast

import torch
from torch import Tensor

from lockstep.attention.cached import CachedAttention
from lockstep.transformer.canonical import has_canonical_layout
from lockstep.transformer.layers import DecoderLayer
from lockstep.transformer.model import Transformer


class Decoder(Protocol):
    """Gives the logits of the next token, again and again, for a batch of sources."""

    def __call__(self, prefix: Tensor) -> Tensor:
        """Prefixes (R, t) from BOS on, which extend those of the call before, to logits (R, V)."""
        ...

    def select(self, sources: Tensor, rows: Tensor) -> None:
        """Go on with these sources (B,) and prefixes (R,), by their indices among those before."""
        ...


class RecomputedDecoder:
    """Runs the model's own decoder on the whole prefix at every step."""

    def __init__(self, model: Transformer, source: Tensor, source_mask: Tensor) -> None:
        self._model = model
        self._memory = model.encode(source, source_mask)
        self._mask = source_mask

    def __call__(self, prefix: Tensor) -> Tensor:
        k = prefix.size(0) // self._mask.size(0)
        memory, mask = self._memory.repeat_interleave(k, dim=0), self._mask.repeat_interleave(k, dim=0)
        return self._model.decode(prefix, memory, mask)[:, -1]

    def select(self, sources: Tensor, rows: Tensor) -> None:
        self._memory, self._mask = self._memory[sources], self._mask[sources]


class _LayerCache:
    """One decoder layer, with its keys and values so far and those of the source."""

    def __init__(self, layer: DecoderLayer, memory: Tensor, memory_mask: Tensor) -> None:
        self._layer = layer
        self._mask = memory_mask
        self._self = CachedAttention(layer.self_attention)
        self._cross = CachedAttention(layer.cross_attention)
        self._source = self._cross.keys_and_values(memory)  # (B, H, T_s, K) each
        self._target: tuple[Tensor, Tensor] | None = None  # (R, H, t, K) each

    def _self_attend(self, x: Tensor) -> Tensor:
        keys, values = self._self.keys_and_values(x)
        if self._target is not None:
            keys, values = torch.cat([self._target[0], keys], dim=2), torch.cat([self._target[1], values], dim=2)
        self._target = keys, values
        return self._self.attend(x, keys, values, mask=None, is_causal=x.size(1) > 1)

    def _cross_attend(self, x: Tensor) -> Tensor:
        queries = x.reshape(self._mask.size(0), -1, x.size(-1))  # (B, k·T_q, D): no copy of the source for each prefix
        return self._cross.attend(queries, *self._source, mask=self._mask, is_causal=False).view_as(x)

    def select(self, sources: Tensor, rows: Tensor) -> None:
        if len(sources) < self._mask.size(0):
            self._mask = self._mask[sources]
            self._source = (self._source[0][sources], self._source[1][sources])
        if self._target is not None:
            self._target = (self._target[0].index_select(0, rows), self._target[1].index_select(0, rows))

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

    def select(self, sources: Tensor, rows: Tensor) -> None:
        for layer in self._layers:
            layer.select(sources, rows)


def next_token(model: Transformer, source: Tensor, source_mask: Tensor) -> Decoder:
    """The fast decoder where every attention has canonical weights, else the one that recomputes."""
    return (CachedDecoder if has_canonical_layout(model) else RecomputedDecoder)(model, source, source_mask)
