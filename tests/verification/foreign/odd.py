"""Right classes of less common make, and classes that misbehave."""

import copy
import time

import torch
from torch import nn
from torch.nn import functional as F


def heads(x, h):
    b, t, d = x.shape
    return x.reshape(b, t, h, d // h).transpose(1, 2)


def core(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Conv1D(nn.Module):
    """(in, out) storage."""

    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class InOut(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h = config["n_head"]
        self.c_attn = Conv1D(3 * config["n_embd"], config["n_embd"])
        self.c_proj = Conv1D(config["n_embd"], config["n_embd"])

    def forward(self, x):
        q, k, v = (heads(part, self.h) for part in self.c_attn(x).chunk(3, dim=-1))
        t = x.size(1)
        return self.c_proj(core(q, k, v, torch.ones(t, t).tril()))


class Base(nn.Module):
    def __init__(self, d_model, num_heads, bias=True, key_bias=True):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, d_model, bias=bias and key_bias)
        self.v_proj = nn.Linear(d_model, d_model, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, query, key, value, mask=None):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        return self.o_proj(core(q, k, v, mask))


class NoKeyBias(Base):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, key_bias=False)


class NoBiases(Base):
    def __init__(self, d_model, num_heads):
        nn.Module.__init__(self)
        Base.__init__(self, d_model, num_heads, False)


class OutputBiasOnly(Base):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, bias=False)
        self.o_proj = nn.Linear(d_model, d_model)


class HeadsReversed(Base):
    def forward(self, query, key, value, mask=None):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        out = core(q, k, v, mask)
        return self.o_proj(out.unflatten(2, (self.h, -1)).flip(2).flatten(2))


class Relabelled(Base):
    """The module called q_proj projects the key."""

    def forward(self, query, key, value, mask=None):
        q, k, v = heads(self.k_proj(query), self.h), heads(self.q_proj(key), self.h), heads(self.v_proj(value), self.h)
        return self.o_proj(core(q, k, v, mask))


class HeadsLast(Base):
    """Channels before heads: (K, H)."""

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            layer(x).unflatten(2, (-1, self.h)).permute(0, 3, 1, 2)
            for layer, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        out = core(q, k, v, mask).unflatten(2, (self.h, -1))
        return self.o_proj(out.transpose(2, 3).flatten(2))


class LinearList(nn.Module):
    """Four layers in one list, the last one the output's."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, k, v = (heads(layer(x), self.h) for layer, x in zip(self.linears, (query, key, value), strict=False))
        return self.linears[-1](core(q, k, v, mask))


class OnesBlock(Base):
    """Ones hide, by a large negative number: the style of one well-known tutorial."""

    def forward(self, v, k, q, mask):
        q, k, v = heads(self.q_proj(q), self.h), heads(self.k_proj(k), self.h), heads(self.v_proj(v), self.h)
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if mask is not None:
            scores = scores + mask * -1e9
        weights = scores.softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class BooleanOnly(Base):
    """Needs a boolean mask, and says nothing of None."""

    def forward(self, query, key, value, mask):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        scores = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).masked_fill(mask.unsqueeze(1), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class PostNorm(Base):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__(d_model, n_head)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        return self.layer_norm(super().forward(q, k, v, mask) + q)


class Tied(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qk = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        shared = heads(self.qk(x), self.heads)
        return self.out(core(shared, shared, heads(self.v(x), self.heads)))


class SingleSoftmax(Base):
    def forward(self, query, key, value):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        weights = F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1, dtype=torch.float32)
        return self.o_proj((weights.to(v.dtype) @ v).transpose(1, 2).flatten(2))


class WrongCorner(Base):
    def forward(self, query, key, value, is_causal=False):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class InPlaceMask(Base):
    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask[..., 0] = 1
        return super().forward(query, key, value, mask)


class DetachedKey(Base):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key.detach(), value, mask)


class ExtraParameter(Base):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.unused = nn.Linear(d_model, d_model)


class HiddenBuffer(Base):
    """Adds a bias that is zero until somebody fills it."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("shift", torch.zeros(d_model))

    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask) + self.shift


class AttributeDropout(Base):
    """The functional form, which is active unless it is told otherwise."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__(d_model, num_heads)
        self.dropout = dropout

    def forward(self, query, key, value):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Raises(Base):
    def forward(self, query, key, value):
        raise KeyError("no such luck")


class Prints(Base):
    def forward(self, query, key, value):
        print("shape", query.shape)
        return super().forward(query, key, value)


class Hangs(Base):
    def forward(self, query, key, value):
        while True:
            time.sleep(0.01)


class ReturnsNan(Base):
    def forward(self, query, key, value):
        return super().forward(query, key, value) * float("nan")


class WrongShape(Base):
    def forward(self, query, key, value):
        return super().forward(query, key, value)[:, :, :-1]


class Exits(Base):
    def __init__(self, d_model, num_heads):
        raise SystemExit(3)


class UnknownArgument(nn.Module):
    def __init__(self, d_model, num_heads, flavour):
        super().__init__()


class UnknownInputs(Base):
    def forward(self, a, b, c):
        return super().forward(a, b, c)


class Linear(Base):
    """Attention of another kind: no formula that is known."""

    def forward(self, query, key, value):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        out = q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2).unsqueeze(-1))
        return self.o_proj(out.transpose(1, 2).flatten(2))


class UnusedNorm(Base):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)


class Squeezes(Base):
    """Loses a dimension where there is one query."""

    def forward(self, query, key, value):
        return super().forward(query, key, value).squeeze(1)


class InputSliced(nn.Module):
    """A well-known mistake: the input is cut into heads, and one small layer for each role serves them all."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.h = heads
        self.values = nn.Linear(embed_size // heads, embed_size // heads, bias=False)
        self.keys = nn.Linear(embed_size // heads, embed_size // heads, bias=False)
        self.queries = nn.Linear(embed_size // heads, embed_size // heads, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        q, k, v = self.queries(heads(query, self.h)), self.keys(heads(keys, self.h)), self.values(heads(values, self.h))
        return self.fc_out(core(q, k, v, mask))


class Grouped(Base):
    """Five query heads share one key and one value head."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k_proj = nn.Linear(d_model, d_model // num_heads)
        self.v_proj = nn.Linear(d_model, d_model // num_heads)

    def forward(self, query, key, value, mask=None):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), 1), heads(self.v_proj(value), 1)
        return self.o_proj(core(q, k.expand(-1, self.h, -1, -1), v.expand(-1, self.h, -1, -1), mask))


class EqualLengths(Base):
    """Takes the key's length for the query's."""

    def forward(self, query, key, value):
        k = self.k_proj(key).view(query.size(0), query.size(1), self.h, -1).transpose(1, 2)
        q, v = heads(self.q_proj(query), self.h), heads(self.v_proj(value), self.h)
        return self.o_proj(core(q, k, v))


class OwnDevice(Base):
    """A scale that is a tensor of its own, in single precision."""

    def __init__(self, hid_dim, n_heads, dropout, device):
        super().__init__(hid_dim, n_heads)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim // n_heads])).to(device)

    def forward(self, query, key, value):
        q, k, v = heads(self.q_proj(query), self.h), heads(self.k_proj(key), self.h), heads(self.v_proj(value), self.h)
        return self.o_proj((((q @ k.transpose(-2, -1)) / self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2))


class CopiesConfig(Base):
    """Keeps its own copy of the configuration, and asks whether it has an entry."""

    def __init__(self, config):
        config = copy.deepcopy(config)
        super().__init__(config.hidden_size, config.num_attention_heads, bias=not hasattr(config, "flavour"))
        self.config = config


class ScaledInEval(Base):
    """Dropout as it once was: weights are scaled down in eval instead of up in training."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.dropout = dropout

    def forward(self, query, key, value):
        out = super().forward(query, key, value)
        return out if self.training else out * (1 - self.dropout)


class InPlainList(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.q, self.k, self.v = (
            [nn.Linear(d_model, d_model // num_heads) for _ in range(num_heads)] for _ in range(3)
        )
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        roles = ((self.q, q), (self.k, k), (self.v, v))
        per_head = (torch.stack([layer(x) for layer in layers], 1) for layers, x in roles)
        return self.out(core(*per_head, mask))
