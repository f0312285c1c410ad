"""The exponential average of the weights: what it is, that it is judged, and that it is saved and converted."""

import json
from pathlib import Path

import pytest
import torch
from conftest import compose
from runs import at_step, config, interrupt, newest, run, same, state

from lockstep.base.errors import Interrupted
from lockstep.commands.options import ConfigurationError
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import convert_to, train
from lockstep.training.module import TranslationModule

AVERAGED = ["average_decay=0.7", "trainer.max_steps=6", "trainer.val_check_interval=4"]


def test_it_is_the_average_of_all_weights_so_far(tmp_path, monkeypatch):
    seen = []
    original = TranslationModule.optimizer_step

    def optimizer_step(self, *arguments, **options):
        original(self, *arguments, **options)
        seen.append([p.detach().clone() for p in self.model.parameters()])

    monkeypatch.setattr(TranslationModule, "optimizer_step", optimizer_step)
    folder = run(config(tmp_path, *AVERAGED))
    weights = state(folder)["state_dict"]
    average = [p.detach() for p in _module(folder).model.parameters()]
    for step, now in enumerate(seen):
        decay = min(0.7, (1 + step) / (10 + step))
        average = [decay * a + (1 - decay) * b for a, b in zip(average, now, strict=True)]
    names = [f"average.{name}" for name, _ in _module(folder).model.named_parameters()]
    for name, expected in zip(names, average, strict=True):
        torch.testing.assert_close(weights[name], expected, rtol=1e-5, atol=1e-7)
    assert not torch.equal(weights[names[0]], weights["model.source_embedding.weight"])


def _module(folder):
    from lockstep.commands.building import build_data, build_model, build_module
    from lockstep.commands.options import TrainOptions, parse

    options = parse(TrainOptions, state(folder)["lockstep"]["config"])
    data = build_data(options)
    return build_module(options, build_model(options, data))


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    return run(config(tmp_path_factory.mktemp("averaged"), *AVERAGED))


def test_training_is_as_without_it_and_the_results_are_its_own(tmp_path, averaged):
    without = run(config(tmp_path / "a", "trainer.max_steps=6"))
    ours, theirs = (
        {n: t for n, t in state(f)["state_dict"].items() if "average" not in n} for f in (averaged, without)
    )
    assert same(ours, theirs)
    results = [json.loads((f / "metrics.json").read_text())["test/loss"] for f in (averaged, without)]
    assert results[0] != results[1]


def test_it_goes_on_as_if_it_had_never_stopped(tmp_path, averaged):
    with at_step(3, interrupt), pytest.raises(Interrupted):
        train(config(tmp_path / "cut", *AVERAGED))
    cut = newest(tmp_path / "cut")
    train(options_of_run({"resume": str(cut)}, []))
    assert same(state(cut)["state_dict"], state(averaged)["state_dict"])


def test_it_is_converted_with_the_weights(averaged):
    before = state(averaged)
    there = convert_to(before, compose("name=x", "attention=per_head")["attention"], Path("a"))
    assert any(name.startswith("average.") and "heads" in name for name in there["state_dict"])
    assert same(convert_to(there, before["lockstep"]["config"]["attention"], Path("b")), before)


def test_it_is_refused_where_it_would_stand_still(tmp_path):
    with pytest.raises(ConfigurationError, match="average_decay"):
        train(config(tmp_path, *AVERAGED, "trainer.precision=bf16-true"))
