"""The loss that never holds all logits, against torch's own on all of them."""

from copy import deepcopy

import pytest
import torch
from conftest import make_variant

from lockstep.data.batching import Batch, collate
from lockstep.training import loss as loss_file
from lockstep.training.loss import summed_loss, training_loss
from lockstep.transformer import Transformer
from lockstep.transformer.initialization import initialize

SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8, "dropout": 0.0}


def model_and_batch(vocabulary=23, **options) -> tuple[Transformer, Batch]:
    kinds = {"activation": "relu", "norm": "post", "tied_embeddings": "all"} | options
    model = Transformer(lambda: make_variant("fused")(8, 2), vocabulary, vocabulary, **SIZES, **kinds)
    initialize(model, 0)
    lengths = [(3, 9), (7, 2), (5, 5)]
    texts = [[torch.tensor([1, *range(4, 4 + n), 2]) for n in pair] for pair in lengths]
    return model, collate([(s, t) for s, t in texts])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tied", ["none", "all"])
@pytest.mark.parametrize("rows", [1, 4, 512])
def test_loss_and_gradients_are_those_of_all_logits(monkeypatch, smoothing, tied, rows):
    monkeypatch.setattr(loss_file, "ROWS", rows)
    model, batch = model_and_batch(tied_embeddings=tied)
    model.double()
    parameters = list(model.parameters())
    whole = summed_loss(model(batch.source, batch.source_mask, batch.prefix), batch.labels, smoothing)
    expected = torch.autograd.grad(3 * whole, parameters)
    found = training_loss(model, batch, smoothing)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=0)
    for gradient, right in zip(torch.autograd.grad(3 * found, parameters), expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-10, atol=1e-12)


def test_extreme_logits_have_the_loss_and_gradients_of_double_precision():
    model, batch = model_and_batch()
    with torch.no_grad():
        model.output.weight.mul_(1e4)
    exact = deepcopy(model).double()
    for each in (model, exact):
        each.loss = training_loss(each, batch, 0.1)
        each.loss.backward()
    torch.testing.assert_close(model.loss.double(), exact.loss, rtol=1e-4, atol=0)
    found, right = (torch.cat([p.grad.double().flatten() for p in each.parameters()]) for each in (model, exact))
    assert (found - right).norm() < 1e-2 * right.norm()


def test_mixed_precision_rounds_products_and_nothing_else():
    model, batch = model_and_batch()
    exact = training_loss(model, batch, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = training_loss(model, batch, 0.1)
    assert mixed.dtype == torch.float32
    assert mixed.item() != exact.item()
    torch.testing.assert_close(mixed, exact, rtol=5e-3, atol=0)
    mixed.backward()
    assert model.output.weight.grad.dtype == torch.float32
