"""A class as somebody might have written it, verified and saved before the rooms had their present names."""

import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        weights, biases = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
        q, k, v = (
            nn.functional.linear(x, w, b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.out((scores.softmax(-1).nan_to_num() @ v).transpose(1, 2).flatten(2))
