"""Cross-entropy over a vocabulary: of given logits, and of a model's output projection without its logits' memory.

Shapes: B batch, T target length, N real target tokens, D = d_model, V vocabulary size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lockstep.data.batching import Batch
from lockstep.data.tokenization import PAD
from lockstep.transformer import Transformer

ROWS = 512  # of logits held at once


def summed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of logits (B, T, V) for labels (B, T), summed over real tokens, in nats; at least float32."""
    flat = logits.flatten(0, 1)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    return F.cross_entropy(flat, labels.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=label_smoothing)


def training_loss(model: Transformer, batch: Batch, label_smoothing: float) -> Tensor:
    """:func:`summed_loss` of the model's logits for the batch, projected only where there is a label, in pieces."""
    states = model.states(batch.source, batch.source_mask, batch.prefix)  # (B, T, D)
    real = batch.labels != PAD
    kind = states.device.type
    lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    loss: Tensor = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states[real].to(lower), model.output.weight, batch.labels[real], label_smoothing
    )
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of ``states @ weight.T``, whose gradients are made with the loss, ``ROWS`` rows at a time.

    All logits of a batch are its largest tensor by far: written, read and differentiated whole, they cost more in
    memory traffic than they do in arithmetic. The product is of the states' dtype; loss and softmax are of at least
    float32.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        projection = weight.to(states.dtype)
        wide = torch.promote_types(states.dtype, torch.float32)
        loss = states.new_zeros((), dtype=wide)
        states_gradient = torch.empty_like(states)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        for rows in range(0, len(states), ROWS):
            x, y = states[rows : rows + ROWS], labels[rows : rows + ROWS, None]
            logits = (x @ projection.T).to(wide)
            likelihood = (1 - label_smoothing) * logits.gather(1, y) + label_smoothing * logits.mean(1, keepdim=True)
            peak = logits.amax(dim=1, keepdim=True)
            exponentials = logits.sub_(peak).exp_()  # once, for the loss and its gradient
            total = exponentials.sum(dim=1, keepdim=True)
            loss += (peak + total.log() - likelihood).sum()
            # d loss / d logits = softmax - smoothed label
            gradient = exponentials.div_(total).sub_(label_smoothing / len(weight))
            gradient.scatter_add_(1, y, gradient.new_full(y.shape, label_smoothing - 1))
            gradient = gradient.to(states.dtype)
            torch.mm(gradient, projection, out=states_gradient[rows : rows + ROWS])
            weight_gradient += gradient.T @ x
        ctx.save_for_backward(states_gradient, weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        states_gradient, weight_gradient = ctx.saved_tensors
        return states_gradient * outer, weight_gradient * outer, None, None
