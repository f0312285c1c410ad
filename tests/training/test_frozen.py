"""An attention may freeze a part of its weights: it trains, clips, goes on and converts as others do."""

import torch
from conftest import compose
from runs import config, newest, run, same, state

from lockstep.attention.fused import FusedAttention
from lockstep.commands.train import convert_to, train
from lockstep.training.clipping import clip_global_norm

CLIPPED = ["trainer.gradient_clip_val=0.5", "optimizer=adamw", "average_decay=0.9"]


class FrozenKey(FusedAttention):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.key.requires_grad_(False)


def frozen(folder, *overrides):
    return {**config(folder, *CLIPPED, *overrides), "attention": {"_target_": f"{__name__}.FrozenKey"}}


def test_it_trains_and_goes_on_to_the_same_bits(tmp_path):
    whole = run(frozen(tmp_path / "whole", "trainer.max_steps=6"))
    part = run(frozen(tmp_path / "part", "trainer.max_steps=3"))
    start = state(part)
    train({**frozen(tmp_path / "part", "trainer.max_steps=6"), "name": "tiny", "resume": str(part)})
    part = newest(tmp_path / "part")
    assert state(part)["global_step"] == 6
    for name in ("state_dict", "optimizer_states"):
        assert same(state(part)[name], state(whole)[name])
    end = state(whole)
    key, query = (f"model.encoder.0.self_attention.{role}.weight" for role in ("key", "query"))
    assert torch.equal(start["state_dict"][key], end["state_dict"][key])
    assert not torch.equal(start["state_dict"][query], end["state_dict"][query])


def test_it_converts_as_if_its_gradient_had_been_zero(tmp_path):
    before = state(run(frozen(tmp_path, "trainer.max_steps=3")))
    packed = compose("name=x", "attention=packed")["attention"]
    there = convert_to(before, packed, tmp_path, trust=True)
    (group,) = there["optimizer_states"][0]["param_groups"]
    index = group["param_names"].index("encoder.0.self_attention.input.weight")
    moments = there["optimizer_states"][0]["state"][index]
    query, key, value = moments["exp_avg"].chunk(3)
    assert query.any()
    assert value.any()
    assert not key.any()
    assert moments["step"] == 3
    back = convert_to(there, before["lockstep"]["config"]["attention"], tmp_path)
    assert same(back["state_dict"], before["state_dict"])


def test_the_norm_is_that_of_the_other_gradients():
    attention = FrozenKey(8, 2)
    attention(*(torch.randn(2, 3, 8) for _ in range(3))).sum().backward()
    gradients = [p.grad for p in attention.parameters() if p.grad is not None]
    assert len(gradients) == 6
    expected = torch.stack([g.norm() for g in gradients]).norm()
    assert torch.allclose(clip_global_norm(attention, None), expected)
