"""One layer for each role, (q, k, v, mask), a mask of ones and zeros."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_model = d_model
        self.h = num_heads
        self.d_k = d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        q = self.w_q(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        k = self.w_k(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v = self.w_v(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p = self.dropout(F.softmax(scores, dim=-1))
        x = torch.matmul(p, v)
        x = x.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.w_o(x)
