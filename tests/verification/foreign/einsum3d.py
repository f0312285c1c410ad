"""Weights of three dimensions, (heads, dim, head size), x and a context, a boolean mask of what may be seen."""

import torch
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        size = dim // heads
        self.wq = nn.Parameter(torch.randn(heads, dim, size) * dim**-0.5)
        self.wk = nn.Parameter(torch.randn(heads, dim, size) * dim**-0.5)
        self.wv = nn.Parameter(torch.randn(heads, dim, size) * dim**-0.5)
        self.wo = nn.Parameter(torch.randn(heads, size, dim) * dim**-0.5)
        self.scale = size**-0.5

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q = einsum("b n d, h d e -> b h n e", x, self.wq)
        k = einsum("b n d, h d e -> b h n e", context, self.wk)
        v = einsum("b n d, h d e -> b h n e", context, self.wv)
        sim = einsum("b h i e, b h j e -> b h i j", q, k) * self.scale
        if mask is not None:
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        out = einsum("b h i j, b h j e -> b h i e", sim.softmax(dim=-1), v)
        return einsum("b h n e, h e d -> b n d", out, self.wo)
