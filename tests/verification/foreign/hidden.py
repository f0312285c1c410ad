"""Faults that show only to those who look where they are: in training, beside another mask, on the second call, ..."""

import math

import torch
from odd import Base, core, heads
from torch import nn
from torch.nn import functional as F


class Hooks(Base):
    """Right; its parts are there to be got wrong one at a time."""

    def scale(self, q, k):
        return math.sqrt(q.size(-1))

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(self.fit(mask) == 0, -1e9)

    def fit(self, mask):
        return mask if mask.dim() == 4 else mask[:, None]

    def soften(self, scores):
        return scores.softmax(-1)

    def forward(self, query, key, value, mask=None):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        weights = self.soften(self.hide(q @ k.transpose(-2, -1) / self.scale(q, k), mask))
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class MaskLostInTraining(Hooks):
    def hide(self, scores, mask):
        return super().hide(scores, None if self.training else mask)


class MaskLostWithoutGrad(Hooks):
    def hide(self, scores, mask):
        return super().hide(scores, mask if torch.is_grad_enabled() or not self.training else None)


class MaskInFirstHead(Hooks):
    def hide(self, scores, mask):
        return torch.cat([super().hide(scores[:, :1], mask), scores[:, 1:]], 1)


class FirstMaskKept(Hooks):
    kept = None

    def hide(self, scores, mask):
        if mask is not None and (self.kept is None or self.kept.shape != mask.shape):
            self.kept = mask
        return super().hide(scores, None if mask is None else self.kept)


class MaskTooWeak(Hooks):
    """Hides as long as scores are ordinary."""

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(self.fit(mask) == 0, -100)


class ScaleAcrossInTraining(Hooks):
    def scale(self, q, k):
        return 3.0 if self.training and q.size(2) != k.size(2) else super().scale(q, k)


class SingleSample(Hooks):
    def soften(self, scores):
        return scores.softmax(-1) if scores.size(0) > 1 else scores.softmax(1)


class FirstKeys(Hooks):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key[:, :64], value[:, :64], None if mask is None else mask[..., :64])


class LocalWindow(Hooks):
    def hide(self, scores, mask):
        q, k = torch.arange(scores.size(-2)), torch.arange(scores.size(-1))
        return super().hide(scores.masked_fill((q[:, None] - k).abs() > 32, -1e9), mask)


class SmallConstant(Hooks):
    def soften(self, scores):
        return scores.softmax(-1) + 1e-9


class BiasBlocksInEval(Hooks):
    """A number that is not zero is added in training, and hides in eval."""

    def hide(self, scores, mask):
        if mask is None:
            return scores
        mask = self.fit(mask)
        return scores + mask if self.training else scores.masked_fill(mask != 0, float("-inf"))


class NonzeroHides(Hooks):
    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(self.fit(mask).bool(), float("-inf"))


class ScaledBeforeBias(Base):
    def forward(self, query, key, value):
        q = F.linear(query, self.q_proj.weight / math.sqrt(self.q_proj.out_features // self.h), self.q_proj.bias)
        q, k, v = heads(q, self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        return self.o_proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Causal(Base):
    """Right, with a switch for causality and one for the weights."""

    def visible(self, mask, is_causal, need_weights, q, k):
        square = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2))
        mask = None if mask is None else mask[:, None, None].bool()
        return (square if mask is None else square & mask) if is_causal else mask

    def forward(self, query, key, value, padding_mask=None, is_causal=False, need_weights=False):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        out = self.o_proj(core(q, k, v, self.visible(padding_mask, is_causal, need_weights, q, k)))
        return (out, q @ k.transpose(-2, -1)) if need_weights else out


class CausalLostWithWeights(Causal):
    def visible(self, mask, is_causal, need_weights, q, k):
        return super().visible(mask, is_causal and not need_weights, need_weights, q, k)


class CausalLostWithPadding(Causal):
    def visible(self, mask, is_causal, need_weights, q, k):
        return super().visible(mask, is_causal and mask is None, need_weights, q, k)


class FloatPaddingLost(Base):
    """Padding in floats is dropped beside another mask."""

    def forward(self, query, key, value, attn_mask=None, key_padding_mask=None):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if key_padding_mask is not None and key_padding_mask.is_floating_point() and attn_mask is not None:
            key_padding_mask = None
        for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
            if mask is not None:
                scores = scores + mask if mask.is_floating_point() else scores.masked_fill(mask, float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class HiddenDropout(Base):
    """Drops in eval, at a rate kept under a name that says nothing."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__(d_model, num_heads)
        self.rate = dropout

    def forward(self, query, key, value, mask=None):
        return F.dropout(super().forward(query, key, value, mask), self.rate)


class FixedDropout(Base):
    """Right; the rate is written into the code."""

    def forward(self, query, key, value, mask=None):
        return F.dropout(super().forward(query, key, value, mask), 0.1, self.training)


class WritesInput(Base):
    def forward(self, query, key, value, mask=None):
        query.detach().mul_(1.5)
        return super().forward(query, key, value, mask)


class RunningMean(Base):
    last = 0.0

    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask) + self.last
        self.last = out.detach().mean()
        return out


class PackedGrouped(Base):
    """Packed into D + 2 K: one key and one value head for all."""

    def __init__(self, d_model, num_heads):
        nn.Module.__init__(self)
        self.h, self.k = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, d_model + 2 * self.k)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).split([self.h * self.k, self.k, self.k], -1)
        return self.out(core(heads(q, self.h), k[:, None], v[:, None]))


class Passes(Hooks):
    """Passes everything on, with an argument more that has to be given, and layers made by the first call."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.o_proj = nn.LazyLinear(self.q_proj.in_features)

    def forward(self, query, key, value, valid_lens, **kwargs):
        assert valid_lens is None
        return super().forward(query, key, value, **kwargs)


class ForeignWidth(Base):
    """Its width is written into the code."""

    def __init__(self, num_heads, head_size):
        super().__init__(24, num_heads)


class Frozen(Hooks):
    """The right function, of which a part never learns."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k_proj.requires_grad_(False)


class OneShapeInverted(Hooks):
    def hide(self, scores, mask):
        return super().hide(scores, mask if mask is None or mask.dim() == 3 else mask == 0)


class OneShapeIgnored(Hooks):
    def hide(self, scores, mask):
        return super().hide(scores, None if mask is None or mask.dim() == 2 else mask)


class MemoryConfused(Hooks):
    """A short cut for encoder-decoder attention, at the wrong tensor."""

    def forward(self, query, key, value, mask=None):
        return super().forward(query, query if key is value and key.shape == query.shape else key, value, mask)


class NotANumber(Hooks):
    """A row that sees nothing has zero weights."""

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(self.fit(mask) == 0, float("-inf"))

    def soften(self, scores):
        return scores.softmax(-1).nan_to_num()
