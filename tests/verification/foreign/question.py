"""Per-head layers in lists, (value, key, query, mask), an additive mask of shape (N, q, k)."""

import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.queries = nn.ModuleList([nn.Linear(embed_size, self.head_dim) for _ in range(heads)])
        self.keys = nn.ModuleList([nn.Linear(embed_size, self.head_dim) for _ in range(heads)])
        self.values = nn.ModuleList([nn.Linear(embed_size, self.head_dim) for _ in range(heads)])
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, value, key, query, mask):
        outs = []
        for i in range(self.heads):
            q = self.queries[i](query)
            k = self.keys[i](key)
            v = self.values[i](value)
            energy = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)
            if mask is not None:
                energy = energy + mask
            attention = torch.softmax(energy, dim=2)
            outs.append(torch.bmm(attention, v))
        return self.fc_out(torch.cat(outs, dim=2))
