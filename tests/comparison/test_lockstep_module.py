"""Copies share batches and random state, and nothing else."""

import lightning as L
import pytest
import torch
from comparing import participants

from lockstep.comparison.module import LockstepModule
from lockstep.training.module import TranslationModule
from lockstep.transformer.canonical import fingerprint

STEPS = 12


def fit(module, data):
    trainer = L.Trainer(
        max_steps=STEPS,
        gradient_clip_val=0.5,
        accelerator="cpu",
        logger=False,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data.train_dataloader())


def lockstep(variants):
    return LockstepModule(variants, 0, lambda groups: torch.optim.Adam(groups, lr=2e-3), lambda step: 1.0, 0.1)


@pytest.mark.filterwarnings("ignore:.*validation_step.*")
def test_a_copy_learns_what_it_would_learn_alone_whatever_the_others_draw():
    overrides = ("model.attention_dropout=0.1",)
    variants, data, _ = participants("per_head", "fused", "sdpa", overrides=overrides)
    together = lockstep(variants)
    fit(together, data)

    model = variants[0].build()
    variants[0].learner.initialize(model, 0)
    alone = TranslationModule(model, lambda named: torch.optim.Adam(named, lr=2e-3), lambda step: 1.0, 0.1)
    alone.on_train_start = lambda: torch.manual_seed(0)
    fit(alone, data)

    assert fingerprint(together.model("per_head")) == fingerprint(model)
    assert fingerprint(together.model("fused")) == fingerprint(model)
    assert fingerprint(together.model("sdpa")) != fingerprint(model)


def test_copies_share_no_parameter_and_start_equal():
    variants, _, _ = participants("per_head", "fused")
    module = lockstep(variants)
    owned = [{id(p) for p in module.model(v.name).parameters()} for v in variants]
    assert not owned[0] & owned[1]
    assert fingerprint(module.model("per_head")) == fingerprint(module.model("fused"))


def test_parameter_groups_are_named_by_copy():
    variants, _, _ = participants("per_head", "fused")
    optimizer = lockstep(variants).configure_optimizers()["optimizer"]
    assert [group["copy"] for group in optimizer.param_groups] == ["per_head", "fused"]
    assert optimizer.param_groups[1]["param_names"][0] == "fused/source_embedding.weight"
