"""From variant to variant: weights and moments exact to the bit, there, back, and in training on."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import torch
from conftest import VARIANTS, compose, make_variant
from runs import config, newest, points, run, same, state

from lockstep.base.errors import CheckpointError
from lockstep.commands import train as train_command
from lockstep.commands.options import ConfigurationError
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import convert, train
from lockstep.training.checkpoints import read_checkpoint, write_checkpoint
from lockstep.training.clipping import clip_global_norm
from lockstep.training.saving import random_state, set_random_state

EQUIVALENT = [name for name in VARIANTS if make_variant(name)(4, 2).canonical]

TOLD = {"arithmetic": "ordered", "overwrite": False, "trust": False}


def convert_to(checkpoint, attention):
    return train_command.convert_to(checkpoint, attention, Path("a.ckpt"))


@functools.cache
def node(name):
    return compose("name=x", f"attention={name}")["attention"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of each variant after three steps of Adam."""
    folder = tmp_path_factory.mktemp("trained")
    runs = {n: run(config(folder / n, f"attention={n}", "trainer.max_steps=3")) for n in EQUIVALENT}
    return {name: read_checkpoint(path / "checkpoints" / "last.ckpt") for name, path in runs.items()}


# Every conversion goes through the canonical layout: each variant into it and out of it is all there is.
@pytest.mark.parametrize(("a", "b"), list(itertools.pairwise([*EQUIVALENT, EQUIVALENT[0]])))
def test_there_and_back_is_exact_to_the_bit(trained, a, b):
    there = convert_to(trained[a], node(b))
    assert there["state_dict"].keys() == trained[b]["state_dict"].keys()
    assert there["optimizer_states"][0]["param_groups"] == trained[b]["optimizer_states"][0]["param_groups"]
    assert there["lockstep"]["config"]["attention"] == trained[b]["lockstep"]["config"]["attention"]
    back = convert_to(there, node(a))
    assert same(back, trained[a])


@pytest.mark.parametrize("name", ["fused", "packed", "einsum"])
def test_moments_follow_their_names(trained, name):
    """Ordered variants have trained to the same bits: converted, one's moments are the other's own."""
    converted = convert_to(trained["per_head"], node(name))
    assert same(converted["state_dict"], trained[name]["state_dict"])
    assert same(converted["optimizer_states"], trained[name]["optimizer_states"])
    moments = converted["optimizer_states"][0]["state"]
    assert len({tuple(m["exp_avg"].flatten()[:3].tolist()) for m in moments.values()}) > len(moments) / 2
    assert {float(m["step"]) for m in moments.values()} == {3.0}


def test_tied_embeddings_stay_tied_and_untied_stay_apart(tmp_path):
    for tied, count in (("all", 1), ("output", 2), ("none", 3)):
        folder = run(config(tmp_path / tied, f"model.tied_embeddings={tied}", "trainer.max_steps=1"))
        weights = convert_to(state(folder), node("packed"))["state_dict"]
        three = [weights[f"model.{name}.weight"] for name in ("source_embedding", "target_embedding", "output")]
        assert len({tuple(tensor.flatten()[:9].tolist()) for tensor in three}) == count


@pytest.mark.parametrize(
    ("override", "state_names"),
    [
        ("optimizer=sgd", {"momentum_buffer"}),
        ("optimizer=adamw", {"step", "exp_avg", "exp_avg_sq"}),
        ("optimizer._target_=torch.optim.NAdam", {"step", "exp_avg", "exp_avg_sq", "mu_product"}),
        ("trainer.precision=64-true", {"step", "exp_avg", "exp_avg_sq"}),
    ],
)
def test_other_optimisers_and_precisions_move_too(tmp_path, override, state_names):
    before = state(run(config(tmp_path, override, "trainer.max_steps=3")))
    there = convert_to(before, node("per_head"))
    assert all(set(entries) == state_names for entries in there["optimizer_states"][0]["state"].values())
    assert same(convert_to(there, node("fused")), before)


def test_trained_on_as_another_variant_every_bit_agrees(tmp_path):
    """fused, converted to per_head at step 6, goes on as the unconverted run does: losses, weights, moments."""
    options = ["trainer.max_steps=12", "trainer.val_check_interval=100", "model.attention_dropout=0.1"]
    fused = run(config(tmp_path / "fused", *options, "checkpoint_every=6"))
    assert state(fused, "previous.ckpt")["global_step"] == 6
    output = tmp_path / "as per head.ckpt"
    told = {
        "checkpoint": str(fused / "checkpoints" / "previous.ckpt"),
        "output": str(output),
        "arithmetic": "ordered",
        "overwrite": False,
        "trust": False,
    }
    convert({**told, "attention": node("per_head")})
    told = {"resume": str(output), "output": str(tmp_path / "per head"), "name": "x"}
    train(options_of_run(told, []))
    per_head = newest(tmp_path / "per head")
    assert json.loads((per_head / "metrics.json").read_text())["train/steps"] == 12
    after = [p for p in points(fused)["train/loss"] if p[0] > 6]
    assert points(per_head)["train/loss"] == after
    assert same(convert_to(state(per_head), node("fused"))["optimizer_states"], state(fused)["optimizer_states"])
    assert same(convert_to(state(per_head), node("fused"))["state_dict"], state(fused)["state_dict"])


def test_training_with_another_attention_converts_by_itself_and_says_so(tmp_path, caplog):
    folder = run(config(tmp_path, "trainer.max_steps=4"))
    told = {"resume": str(folder), "attention": node("packed"), "trainer": {"max_steps": 6}}
    train(options_of_run(told, ["attention", "trainer.max_steps"]))
    assert list(tmp_path.iterdir()) == [folder]
    assert "converted" in caplog.text
    assert "attention was FusedAttention, is PackedAttention" in (folder / "train.log").read_text()
    assert "PackedAttention" in (folder / "config.yaml").read_text()
    assert "model.encoder.0.self_attention.input.weight" in state(folder)["state_dict"]


def test_an_optimiser_that_sees_matrices_whole_is_refused_by_name(trained):
    checkpoint = dict(trained["fused"])
    saved = {**checkpoint["lockstep"]["config"], "optimizer": {"_target_": "torch.optim.Muon", "lr": 0.1}}
    checkpoint["lockstep"] = {**checkpoint["lockstep"], "config": saved}
    with pytest.raises(ConfigurationError, match=r"the state of torch\.optim\.Muon cannot move"):
        convert_to(checkpoint, node("per_head"))


def test_a_contrast_is_refused_by_name(trained):
    with pytest.raises(ConfigurationError, match="SharedHeadsAttention has no canonical layout"):
        convert_to(trained["fused"], node("shared_heads"))


def test_numbers_that_differ_among_merged_parameters_are_refused(trained):
    checkpoint = {**trained["per_head"], "optimizer_states": [dict(trained["per_head"]["optimizer_states"][0])]}
    entries = dict(checkpoint["optimizer_states"][0]["state"])
    names = checkpoint["optimizer_states"][0]["param_groups"][0]["param_names"]
    index = names.index("encoder.0.self_attention.heads.1.value.bias")
    entries[index] = {**entries[index], "step": torch.tensor(9.0)}
    checkpoint["optimizer_states"][0]["state"] = entries
    with pytest.raises(ConfigurationError, match=r"step differs .* make up encoder\.0\.self_attention\.value\.bias"):
        convert_to(checkpoint, node("fused"))


def test_success_is_reported_only_after_the_outputs_agree(trained, monkeypatch):
    """A layout that swaps two roles has the right shapes, and loads."""
    from lockstep.attention.packed import PackedAttention

    back, there = PackedAttention.from_canonical, PackedAttention.to_canonical

    def exchanged(tensors):
        roles = {"query": "key", "key": "query", "value": "value", "output": "output"}
        return {f"{roles[n.split('.')[0]]}.{n.split('.')[1]}": t for n, t in tensors.items()}

    monkeypatch.setattr(PackedAttention, "from_canonical", lambda self, tensors: back(self, exchanged(tensors)))
    monkeypatch.setattr(PackedAttention, "to_canonical", lambda self, tensors: exchanged(there(self, tensors)))
    with pytest.raises(ConfigurationError, match="the converted model differs: its outputs by"):
        convert_to(trained["fused"], node("packed"))


def test_clipping_by_the_global_norm_knows_no_layout():
    """One gradient in six layouts: the same norm to the bit, and each piece is scaled by it."""
    shapes = make_variant("fused")(8, 2).canonical_shapes()
    gradient = {name: torch.randn(shape) for name, shape in shapes.items()}
    norm = torch.stack([tensor.square().sum() for tensor in gradient.values()]).sum().sqrt()
    norms = set()
    for name in EQUIVALENT:
        model = torch.nn.ModuleDict({"attention": make_variant(name)(8, 2)})
        for parameter, tensor in model["attention"].from_canonical(gradient).items():
            model["attention"].get_parameter(parameter).grad = tensor.clone()
        norms.add(clip_global_norm(model, 1.0).item())
        clipped = model["attention"].to_canonical({n: p.grad for n, p in model["attention"].named_parameters()})
        for canonical_name, tensor in clipped.items():
            torch.testing.assert_close(tensor, gradient[canonical_name] / norm, rtol=1e-5, atol=0)
    (one,) = norms
    assert one == pytest.approx(norm.item(), rel=1e-6)


def test_random_streams_come_back(tmp_path):
    import random

    import numpy as np

    def draw():
        return random.random(), np.random.rand(), torch.rand(3).tolist()  # noqa: NPY002

    saved = random_state()
    torch.save(saved, tmp_path / "state")
    first = draw()
    set_random_state(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == first


def test_a_converted_file_is_written_whole_or_not_at_all(tmp_path, trained):
    write_checkpoint(trained["fused"], tmp_path / "a.ckpt")
    told = {
        "checkpoint": str(tmp_path / "a.ckpt"),
        "arithmetic": "ordered",
        "overwrite": False,
        "trust": False,
        "attention": node("shared_heads"),
    }
    with pytest.raises(ConfigurationError):
        convert({**told, "output": str(tmp_path / "b.ckpt")})
    with pytest.raises(ConfigurationError, match="is a folder"):
        convert({**told, "attention": node("packed"), "output": str(tmp_path)})
    with pytest.raises(CheckpointError, match="does not exist"):
        convert({**told, "checkpoint": str(tmp_path / "c.ckpt"), "output": str(tmp_path / "b.ckpt")})
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_a_file_that_exists_is_not_written_over_unasked(trained, tmp_path):
    kept = tmp_path / "thesis.txt"
    kept.write_text("mine")
    told = {**TOLD, "checkpoint": str(tmp_path / "a.ckpt"), "attention": node("packed"), "output": str(kept)}
    write_checkpoint(trained["fused"], tmp_path / "a.ckpt")
    with pytest.raises(ConfigurationError, match=r"thesis.txt exists; take another name, or say overwrite=true"):
        convert(told)
    assert kept.read_text() == "mine"
    convert({**told, "overwrite": True})
    assert read_checkpoint(kept)["global_step"] == trained["fused"]["global_step"]
