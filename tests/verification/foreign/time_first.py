"""Packed parameters, (T, B, D), True hides, a tuple returned: in the style of torch."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        tgt_len, bsz, _ = query.shape
        src_len = key.size(0)
        w = self.in_proj_weight.chunk(3)
        b = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None,) * 3
        q = F.linear(query, w[0], b[0]) * self.head_dim**-0.5
        k = F.linear(key, w[1], b[1])
        v = F.linear(value, w[2], b[2])
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            weights = weights.masked_fill(attn_mask, float("-inf"))
        if key_padding_mask is not None:
            weights = weights.view(bsz, self.num_heads, tgt_len, src_len)
            weights = weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            weights = weights.view(bsz * self.num_heads, tgt_len, src_len)
        weights = F.softmax(weights, dim=-1)
        probs = F.dropout(weights, p=self.dropout, training=self.training)
        out = torch.bmm(probs, v).transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        return self.out_proj(out), weights.view(bsz, self.num_heads, tgt_len, src_len).mean(1)
