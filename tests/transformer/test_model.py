"""The encoder-decoder Transformer against torch's own, and its invariances."""

import math

import pytest
import torch
from conftest import VARIANTS, make_variant
from torch import nn

from lockstep.transformer import Transformer
from lockstep.transformer.layers import sinusoids

SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 48, "dropout": 0.0}


def make(variant="fused", **options) -> Transformer:
    options = {**SIZES, "activation": "relu", "norm": "post", "tied_embeddings": "none", **options}
    factory = make_variant(variant)
    model = Transformer(lambda: factory(options["d_model"], 4), 11, 13, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model.double()


def batch():
    source, target = torch.randint(4, 11, (3, 5)), torch.randint(4, 13, (3, 6))
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 3:] = False
    return source, mask, target


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch_transformer(norm, activation):
    model = make(norm=norm, activation=activation)
    theirs = nn.Transformer(
        32, 4, 2, 2, 48, 0.0, activation, norm_first=norm == "pre", batch_first=True, dtype=torch.float64
    )
    if norm == "post":  # torch normalises once more at the end of each stack, which the paper does not
        theirs.encoder.norm = theirs.decoder.norm = None
    else:
        theirs.encoder.norm, theirs.decoder.norm = model.encoder_norm, model.decoder_norm

    def copy_attention(mine, into):
        into.in_proj_weight.copy_(torch.cat([mine.query.weight, mine.key.weight, mine.value.weight]))
        into.in_proj_bias.copy_(torch.cat([mine.query.bias, mine.key.bias, mine.value.bias]))
        into.out_proj.load_state_dict(mine.output.state_dict())

    with torch.no_grad():
        for mine, other in zip(
            [*model.encoder, *model.decoder], [*theirs.encoder.layers, *theirs.decoder.layers], strict=True
        ):
            copy_attention(mine.self_attention, other.self_attn)
            residuals = [mine.self_attention_residual, mine.feed_forward_residual]
            if hasattr(mine, "cross_attention"):
                copy_attention(mine.cross_attention, other.multihead_attn)
                residuals.insert(1, mine.cross_attention_residual)
            other.linear1.load_state_dict(mine.feed_forward.inner.state_dict())
            other.linear2.load_state_dict(mine.feed_forward.outer.state_dict())
            for index, residual in enumerate(residuals, start=1):
                getattr(other, f"norm{index}").load_state_dict(residual.norm.state_dict())
    source, mask, target = batch()
    hidden = theirs(
        model.embed(model.source_embedding, source),
        model.embed(model.target_embedding, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64),
        src_key_padding_mask=~mask,
        memory_key_padding_mask=~mask,
    )
    torch.testing.assert_close(model(source, mask, target), model.output(hidden), rtol=0, atol=1e-11)


def test_positions_are_those_of_the_paper():
    table = sinusoids(50, 6)
    for position in (0, 1, 7, 49):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert sinusoids(5, 7).shape == (5, 7)


def test_positions_of_any_length():
    model = make()
    source = torch.randint(4, 11, (2, 700))
    mask = torch.ones(2, 700, dtype=torch.bool)
    assert model.encode(source[:, :9], mask[:, :9]).isfinite().all()
    assert model.encode(source, mask).isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_the_future_change_nothing(variant):
    model = make(variant)
    source, mask, target = batch()
    logits = model(source, mask, target)
    other_source, other_target = source.clone(), target.clone()
    other_source[1, 3:] = 5
    other_target[:, 4:] = 6
    torch.testing.assert_close(model(other_source, mask, target), logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(source, mask, other_target)[:, :4], logits[:, :4], rtol=0, atol=1e-12)
    alone = model(source[1:2, :3], mask[1:2, :3], target[1:2])
    torch.testing.assert_close(alone, logits[1:2], rtol=0, atol=1e-12)


def test_tied_embeddings_are_one_tensor():
    count = {tied: sum(p.numel() for p in _tied(tied).parameters()) for tied in ("none", "output", "all")}
    assert count["none"] - count["output"] == count["output"] - count["all"] == 11 * 32
    with pytest.raises(ValueError, match="11 source and 13 target"):
        make(tied_embeddings="all")


def _tied(tied):
    factory = make_variant("fused")
    sizes = {**SIZES, "activation": "relu", "norm": "post", "tied_embeddings": tied}
    return Transformer(lambda: factory(32, 4), 11, 11, **sizes)
