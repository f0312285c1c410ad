"""What was written when the rooms had other names still serves; ``before/`` was made by that code."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from conftest import TINY, compose

from lockstep.attention import reference
from lockstep.attention.fused import FusedAttention
from lockstep.base.errors import CheckpointError
from lockstep.commands.building import attention_factory
from lockstep.commands.options import TrainOptions, parse
from lockstep.commands.renames import RENAMED, up_to_date
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import convert, train
from lockstep.commands.trained_model import load_trained
from lockstep.verification.adapter import ForeignAttention

BEFORE = Path(__file__).parent / "before"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(BEFORE / "run", tmp_path / "run"))


def test_a_saved_class_still_builds():
    node = yaml.safe_load((BEFORE / "mine.yaml").read_text())
    assert node["_target_"] in RENAMED
    options = parse(TrainOptions, compose("name=mine", *TINY))
    attention = attention_factory(up_to_date(node), options.model)()
    assert isinstance(attention, ForeignAttention)
    inputs = torch.randn(3, 2, 5, options.model.d_model)
    right = reference.attention(attention.to_canonical(dict(attention.named_parameters())), *inputs)
    torch.testing.assert_close(attention.eval()(*inputs), right)


def test_a_run_of_before_translates_and_resumes_where_its_class_is_trusted(run):
    with pytest.raises(CheckpointError, match=r"my_attention\.py:Mine"):
        load_trained(run)
    assert load_trained(run, trust=True).step == 4
    told = compose("name=mine", f"resume={run}", "trust=true", "trainer.max_steps=6")
    metrics = train(options_of_run(told, ["resume", "trust", "trainer.max_steps"]))
    assert metrics["train/steps"] == 6
    assert load_trained(run, trust=True).step == 6


def test_a_checkpoint_of_before_converts(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fused = compose("name=mine", "attention=fused")["attention"]
    convert(
        {
            "checkpoint": str(run / "checkpoints" / "last.ckpt"),
            "output": "fused.ckpt",
            "attention": fused,
            "arithmetic": "ordered",
            "trust": True,
            "overwrite": False,
        }
    )
    for side in ("source", "target"):
        shutil.copy(run / f"{side}_tokenizer.json", tmp_path)
    model = load_trained(Path("fused.ckpt")).model
    assert sum(isinstance(module, FusedAttention) for module in model.modules()) == 3
