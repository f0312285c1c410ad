"""The same weights in Hugging Face's MarianMTModel, which others wrote: the same logits, and the same translations.

Marian's positions are the sines, then the cosines; ours alternate. That is an order of the d_model channels, in which
every weight that reads or writes them is laid out.
"""

import os
from pathlib import Path

import pytest
import torch
from conftest import make_variant
from torch.nn.utils.rnn import pad_sequence
from training.runs import run
from training.translating import config
from transformers import MarianConfig, MarianMTModel

from lockstep.commands.trained_model import load_trained
from lockstep.data.tokenization import BOS, EOS, PAD, UNK
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import canonical_weights
from lockstep.transformer.decoding import next_token
from lockstep.transformer.search import SearchOptions, beam_search

V, D, HEADS, D_FF = 30, 32, 4, 48
# Its names for our parts, and which dimensions of a weight are channels of the model.
LAYER_NORMS = {"self_attention": "self_attn", "cross_attention": "encoder_attn", "feed_forward": "final"}
FEED_FORWARD = {"inner.weight": ("fc1.weight", 1), "inner.bias": ("fc1.bias", None)}
FEED_FORWARD |= {"outer.weight": ("fc2.weight", 0), "outer.bias": ("fc2.bias", 0)}


@pytest.fixture(scope="module")
def ours():
    torch.manual_seed(0)
    factory = make_variant("per_head")
    sizes = {"d_model": D, "encoder_layers": 2, "decoder_layers": 2, "d_ff": D_FF, "dropout": 0.1}
    model = Transformer(lambda: factory(D, HEADS), V, V, **sizes, activation="relu", norm="post", tied_embeddings="all")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.1 if "norm" in name else 0.2)
        # So that what follows is no mere repetition, and ends here and there.
        model.source_embedding.weight.mul_(0.25)
        model.source_embedding.weight[EOS] *= 1.5
    return model.eval()


@pytest.fixture(scope="module")
def theirs(ours):
    return to_marian(ours)


def to_marian(model):
    layers = {"encoder": model.encoder, "decoder": model.decoder}
    sizes = {f"{side}_layers": len(stack) for side, stack in layers.items()}
    for side, stack in layers.items():
        sizes[f"{side}_attention_heads"] = stack[0].self_attention.num_heads
        sizes[f"{side}_ffn_dim"] = stack[0].feed_forward.inner.out_features
    config = MarianConfig(
        vocab_size=model.output.out_features,
        d_model=model.d_model,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        **sizes,
    )
    marian = MarianMTModel(config).eval()
    named = dict(marian.state_dict())
    order = torch.cat([torch.arange(first, model.d_model, 2) for first in (0, 1)])
    for name, tensor in canonical_weights(model).items():
        theirs, tensor = marian_name(name), tensor.clone()
        for place in theirs[0]:
            assert place in named, place
            shaped = tensor.reshape(named[place].shape)
            named[place] = shaped if theirs[1] is None else shaped.index_select(theirs[1], order)
    marian.load_state_dict(named)
    return marian


def marian_name(name):
    """The names of one of our canonical weights there, and the dimension that must be put in order."""
    if name == "source_embedding.weight":
        return [
            "model.shared.weight",
            "lm_head.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
        ], 1
    stack, layer, part, rest = name.split(".", 3)
    prefix = f"model.{stack}.layers.{layer}"
    if part.endswith("_residual"):
        return [f"{prefix}.{LAYER_NORMS[part.removesuffix('_residual')]}_layer_norm.{rest.removeprefix('norm.')}"], 0
    if part == "feed_forward":
        place, dimension = FEED_FORWARD[rest]
        return [f"{prefix}.{place}"], dimension
    role, kind = rest.split(".")
    if role == "output":
        return [f"{prefix}.{LAYER_NORMS[part]}.out_proj.{kind}"], 0
    return [f"{prefix}.{LAYER_NORMS[part]}.{role[0]}_proj.{kind}"], 1 if kind == "weight" else None


def sources():
    source = torch.randint(4, V, (8, 9), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((9, 3, 5, 9, 1, 7, 4, 2)):
        source[row, length:] = PAD
    return source, source != PAD


@torch.no_grad()
def test_logits_are_marians(ours, theirs):
    source, mask = sources()
    target = torch.randint(4, V, (8, 12))
    expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    found = ours(source, mask, target)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_trained_model_gives_marians_logits(tmp_path):
    """Of a run of this test, or of the one that LOCKSTEP_RUN names, for texts it knows something about."""
    folder = os.environ.get("LOCKSTEP_RUN") or run(config(tmp_path / "run", "trainer.max_steps=40"))
    model, tokenizers, *_ = load_trained(Path(folder))
    model.eval()
    texts = (Path(folder) / "test.references.txt").read_text(encoding="utf-8").splitlines()[:50]

    def ids(tokenizer):
        encodings = tokenizer.encode_batch(texts)
        return pad_sequence([torch.tensor(e.ids) for e in encodings], batch_first=True, padding_value=PAD)

    source, target = ids(tokenizers.source), ids(tokenizers.target)
    marian = to_marian(model)
    expected = marian(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits
    found = model(source, source != PAD, target)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def generate(model, **options):
    source, mask = sources()
    tokens = model.generate(
        input_ids=source,
        attention_mask=mask.long(),
        max_new_tokens=14,
        suppress_tokens=[PAD, BOS, UNK],
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        do_sample=False,
        **options,
    )
    # After its end a row is filled with EOS, or PAD.
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in tokens[:, 1:].tolist()]


def test_greedy_translations_are_marians(ours, theirs):
    found = search(ours, SearchOptions(1, 1.0, 1, 14, 1, early_stopping=False))
    assert [best.tokens for (best,) in found] == generate(theirs, num_beams=1)
    assert len({len(best.tokens) for (best,) in found}) > 3


def search(model, options):
    source, mask = sources()
    with torch.no_grad():
        decoder = next_token(model, source, mask)
    limits = [options.max_length] * len(source)
    return beam_search(decoder, limits, options, bos=BOS, eos=EOS, never=(PAD, BOS, UNK), device=source.device)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beam_size", [2, 5])
def test_beam_searches_are_marians(ours, theirs, beam_size, length_penalty, early_stopping):
    """Its three rules are to stop once as many have ended as there are beams (True), once none can win (never), and a
    guess in between (False)."""
    found = search(ours, SearchOptions(beam_size, length_penalty, 1, 14, 1, early_stopping))
    rule = True if early_stopping else "never"
    expected = generate(theirs, num_beams=beam_size, length_penalty=length_penalty, early_stopping=rule)
    assert [best.tokens for (best,) in found] == expected
