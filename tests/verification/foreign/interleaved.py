"""One packed projection, its rows interleaved: query, key and value of head 0, then of head 1, ..."""

import torch
from torch import nn


class InterleavedAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        batch, length, width = hidden_states.shape
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(batch, length, self.num_attention_heads, 3 * self.head_size)
        query, key, value = (part.permute(0, 2, 1, 3) for part in qkv.split(self.head_size, dim=-1))
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * self.head_size**-0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        context = scores.softmax(-1) @ value
        return self.dense(context.permute(0, 2, 1, 3).reshape(batch, length, width))
