"""Classes that are right in plain use and wrong in one context: each overrides one step of a right one."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Right(nn.Module):
    """Its steps are there to be got wrong one at a time."""

    def __init__(self, d_model, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.h, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=bias) for _ in range(4))
        self.build()

    def build(self):
        pass

    def inputs(self, query, key, value):
        return query, key, value

    def mask(self, mask):
        return mask if mask.dim() == 4 else mask[:, None]

    def scale(self, q, k):
        return math.sqrt(q.size(-1))

    def weights(self, scores):
        return F.dropout(scores.softmax(-1), self.p, self.training)

    def merge(self, x):
        return self.o_proj(x.transpose(1, 2).flatten(2))

    def forward(self, query, key, value, mask=None):
        query, key, value = self.inputs(query, key, value)
        q, k, v = (
            proj(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for proj, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = q @ k.transpose(-2, -1) / self.scale(q, k)
        if mask is not None:
            scores = scores.masked_fill(self.mask(mask) == 0, float("-inf"))
        return self.merge(self.weights(scores) @ v)


class Scaled(Right):
    """Multiplied by two where :meth:`wrong` says so."""

    def wrong(self, query, key, value):
        return False

    def inputs(self, query, key, value):
        self.seen = self.wrong(query, key, value)
        return query, key, value

    def scale(self, q, k):
        return super().scale(q, k) * (2 if self.seen else 1)

    def merge(self, x):
        return super().merge(x * 2 if self.seen else x)


def scaled(where):
    return type("Wrong", (Scaled,), {"wrong": where})


class KeyDetachedInTraining(Right):
    def inputs(self, query, key, value):
        return query, key.detach() if self.training else key, value


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no backward")


class _Grown(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.5


class BackwardRaisesInTraining(Right):
    def merge(self, x):
        return super().merge(_Raises.apply(x) if self.training else x)


class ParameterHook(Right):
    def build(self):
        self.v_proj.weight.register_hook(lambda gradient: gradient * 1.5)


class PostAccumulateHook(Right):
    def build(self):
        def grow(parameter):
            parameter.grad.mul_(1.5)

        self.v_proj.weight.register_post_accumulate_grad_hook(grow)


class ModuleBackwardHook(Right):
    def build(self):
        self.k_proj.register_full_backward_hook(
            lambda module, into, out: (into[0] * 1.5,) if into[0] is not None else None
        )


class WeightGradientWithoutInputs(Right):
    def inputs(self, query, key, value):
        self.grown = not value.requires_grad and torch.is_grad_enabled()
        return query, key, value

    def weights(self, scores):
        return _Grown.apply(super().weights(scores)) if self.grown else super().weights(scores)


class BufferOverwritten(Right):
    kept = None

    def merge(self, x):
        out = super().merge(x)
        if torch.is_grad_enabled():
            return out
        if self.kept is None or self.kept.shape != out.shape or self.kept.dtype != out.dtype:
            self.kept = torch.empty_like(out)
        return self.kept.copy_(out)


class FirstKeyShown(Right):
    def mask(self, mask):
        mask = super().mask(mask).clone()
        mask[..., 0] = 1
        return mask


class LeadingKeysShown(Right):
    """As padding on the right would have it: everything before the last visible key is visible."""

    def mask(self, mask):
        mask = super().mask(mask) != 0
        leading = ~mask[..., :1] & mask[..., -1:]
        return mask | leading


class DroppedWhereOneSampleIsBlind(Right):
    def mask(self, mask):
        mask = super().mask(mask)
        return torch.ones_like(mask) if bool((mask == 0).all(-1).any()) else mask


class AdditiveDoubled(Right):
    def forward(self, query, key, value, mask=None):
        q, k, v = (
            proj(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for proj, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = q @ k.transpose(-2, -1) / self.scale(q, k)
        return self.merge(self.weights(scores if mask is None else scores + self.mask(mask)) @ v)

    def mask(self, mask):
        return mask.mul_(2) if mask.dim() == 4 else mask.mul_(2)[:, None]


class AdditiveDoubledInTraining(AdditiveDoubled):
    def mask(self, mask):
        mask = mask if mask.dim() == 4 else mask[:, None]
        return mask * 2 if self.training else mask


class BooleanRefusedInEval(Right):
    def mask(self, mask):
        if mask.dtype == torch.bool and not torch.is_grad_enabled():
            raise TypeError("no booleans")
        return super().mask(mask)


class BooleanWrong(Right):
    def mask(self, mask):
        return super().mask(mask.flip(-1) if mask.dtype == torch.bool else mask)


class SecondBranch(Right):
    """With a context right, without one not."""

    def forward(self, x, context=None):
        self.seen = context is None
        return super().forward(x, x if context is None else context, x if context is None else context)

    def scale(self, q, k):
        return super().scale(q, k) * (2 if self.seen else 1)


class NormInInferenceMode(Right):
    def merge(self, x):
        return super().merge(x / 2 if torch.is_inference_mode_enabled() else x)


class UnderAutocast(Right):
    def scale(self, q, k):
        return super().scale(q, k) * (2 if torch.is_autocast_enabled("cpu") else 1)


class OneHead(Right):
    def scale(self, q, k):
        return super().scale(q, k) * (2 if self.h == 1 else 1)


class OddHead(Right):
    def scale(self, q, k):
        return float(int(super().scale(q, k)))


class WideHead(Right):
    def scale(self, q, k):
        return min(super().scale(q, k), 5.0)


class WithoutBias(Right):
    def scale(self, q, k):
        return super().scale(q, k) * (1 if self.q_proj.bias is not None else 2)


class Clamped(Right):
    def weights(self, scores):
        return super().weights(scores.clamp(-500, 500))


class EqualScores(Right):
    """Keeps a margin between the first two keys."""

    def weights(self, scores):
        equal = (scores == scores[..., :1]).all(-1, keepdim=True) & (scores.size(-1) > 1)
        return torch.where(equal, torch.zeros_like(scores), super().weights(scores))


class DropsTwice(Right):
    def weights(self, scores):
        return F.dropout(super().weights(scores), self.p, self.training)


class DropsScores(Right):
    def weights(self, scores):
        return F.dropout(scores, self.p, self.training).softmax(-1)


class DropsOutput(Right):
    def weights(self, scores):
        return scores.softmax(-1)

    def merge(self, x):
        return F.dropout(super().merge(x), self.p, self.training)


class DropsUnscaled(Right):
    def weights(self, scores):
        kept = torch.rand_like(scores) >= self.p if self.training else 1
        return scores.softmax(-1) * kept


class DropsAllHeads(Right):
    def weights(self, scores):
        kept = (torch.rand_like(scores[:, :1]) >= self.p) / (1 - self.p) if self.training else 1
        return scores.softmax(-1) * kept


class MoreSamples(scaled(lambda self, q, k, v: q.size(0) > 2)):
    pass


class OneSample(scaled(lambda self, q, k, v: q.size(0) == 1)):
    pass


class SamplesAsPositions(scaled(lambda self, q, k, v: q.size(0) == q.size(1))):
    pass


class SamplesBeyondPositions(scaled(lambda self, q, k, v: q.size(0) > q.size(1))):
    pass


class EvenLength(scaled(lambda self, q, k, v: q.size(1) % 2 == 0)):
    pass


class TwoPositions(scaled(lambda self, q, k, v: q.size(1) == 2)):
    pass


class Beyond512(scaled(lambda self, q, k, v: q.size(1) > 512)):
    pass


class QueryIsKey(scaled(lambda self, q, k, v: q is k and k is not v)):
    pass


class QueryIsValue(scaled(lambda self, q, k, v: q is v and k is not v)):
    pass


class SharedStorage(scaled(lambda self, q, k, v: q is not k and q.data_ptr() == k.data_ptr())):
    pass


class Transposed(scaled(lambda self, q, k, v: not q.is_contiguous() and q.stride(0) != 0)):
    pass


class Expanded(scaled(lambda self, q, k, v: q.size(0) > 1 and q.stride(0) == 0)):
    pass


class ZeroRows(scaled(lambda self, q, k, v: not q[:, 0].any())):
    pass


class Single(scaled(lambda self, q, k, v: q.dtype == torch.float32)):
    pass


class Training(scaled(lambda self, q, k, v: self.training)):
    pass


class NoGrad(scaled(lambda self, q, k, v: not torch.is_grad_enabled())):
    pass


class Float32Softmax(Right):
    """Right to the precision of its softmax."""

    def weights(self, scores):
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
        return F.dropout(weights, self.p, self.training)


class Float32Scale(Right):
    """Right to the precision of its scale."""

    def scale(self, q, k):
        return torch.tensor(q.size(-1), dtype=torch.float32).sqrt().item()


class RefusesDouble(Right):
    """Right, in single precision."""

    def inputs(self, query, key, value):
        if query.dtype == torch.float64:
            raise TypeError("no doubles")
        return query, key, value


class OptionalContext(Right):
    """Right, with a context and without."""

    def forward(self, x, context=None):
        return super().forward(x, x if context is None else context, x if context is None else context)


class Optional(Right):
    """Wrong where an argument is given of which nobody knows what it is."""

    def forward(self, query, key, value, mask=None, past=None):
        out = super().forward(query, key, value, mask)
        return out if past is None else out * past


class OwnDropout(Right):
    def weights(self, scores):
        kept = (torch.rand_like(scores) >= self.p) / (1 - self.p) if self.training else 1
        return scores.softmax(-1) * kept


class OutputDropoutToo(Right):
    def merge(self, x):
        return F.dropout(super().merge(x), self.p, self.training)


class ScaleAndSoftmax(Right):
    def scale(self, q, k):
        return math.sqrt(q.size(-1) * self.h)

    def weights(self, scores):
        return scores.softmax(-2)


class KeyAndValueIgnored(Right):
    def inputs(self, query, key, value):
        return query, query, query


class KeyAndValueSwapped(Right):
    def inputs(self, query, key, value):
        return query, value, key


class Divided(Right):
    def weights(self, scores):
        return scores.softmax(-1) / self.h


class Grouped(nn.Module):
    """Two heads of key and value serve the heads of the query, a half each."""

    def __init__(self, d_model, num_heads, num_kv=1, packed=False, inner=0):
        super().__init__()
        self.h, self.n, self.k = num_heads, num_kv, (inner or d_model) // num_heads
        rows = [self.h * self.k, self.n * self.k, self.n * self.k]
        self.rows = rows
        self.proj = nn.ModuleList(nn.Linear(d_model, size) for size in ([sum(rows)] if packed else rows))
        self.out = nn.Linear(self.h * self.k, d_model)

    def forward(self, x):
        parts = self.proj[0](x).split(self.rows, -1) if len(self.proj) == 1 else [p(x) for p in self.proj]
        q, k, v = (part.unflatten(-1, (-1, self.k)).transpose(1, 2) for part in parts)
        k, v = (part.repeat_interleave(self.h // self.n, 1) for part in (k, v))
        return self.out(((q @ k.transpose(-2, -1) / self.k**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
