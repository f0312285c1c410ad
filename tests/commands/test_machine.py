"""What is asked of the machine, and what Lightning then does."""

import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import TINY, compose

from lockstep.commands import machine
from lockstep.commands.options import ConfigurationError, TrainOptions, parse
from lockstep.commands.train import train
from lockstep.commands.trainer import quiet_libraries
from lockstep.training.module import TranslationModule

no_gpu = pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")


@no_gpu
@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("trainer.accelerator=gpu", "use cpu, or auto"),
        ("trainer.precision=16-mixed", "a CPU has bf16-mixed, or 32-true"),
    ],
)
def test_what_the_machine_has_not_got_is_refused_before_a_folder_is_made(tmp_path, option, instead):
    with pytest.raises(ConfigurationError, match=f"option {option}.*{instead}"):
        train(compose(*TINY, f"output={tmp_path}/runs", option))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        ("32-true", torch.float32, torch.float32),
        ("64-true", torch.float64, torch.float64),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.float32, torch.bfloat16),
    ],
)
def test_what_runs_is_the_precision_that_was_asked_for(tmp_path, monkeypatch, precision, weights, products):
    seen, original = {}, TranslationModule.training_step

    def training_step(self, batch, batch_index):
        hook = self.model.encoder[0].feed_forward.register_forward_hook(
            lambda module, args, output: seen.update(products=module.inner(*args).dtype)
        )
        loss = original(self, batch, batch_index)
        hook.remove()
        seen["weights"] = {parameter.dtype for parameter in self.model.parameters()}
        return loss

    monkeypatch.setattr(TranslationModule, "training_step", training_step)
    train(compose(*TINY, f"output={tmp_path}", f"trainer.precision={precision}", "trainer.max_steps=1"))
    assert seen == {"products": products, "weights": {weights}}


def test_slow_bfloat16_is_said_once_before_the_first_step(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(machine, "bfloat16_cost", lambda *sizes: 80.0)
    train(compose(*TINY, f"output={tmp_path}", "trainer.precision=bf16-mixed", "trainer.max_steps=1"))
    said = [record.getMessage() for record in caplog.records]
    (place,) = (index for index, line in enumerate(said) if "80 times as long" in line)
    assert "trainer.precision=32-true is the faster option" in said[place]
    assert place < next(index for index, line in enumerate(said) if line.startswith("step"))


@pytest.mark.parametrize(
    ("precision", "cost", "lines"), [("bf16-true", 80.0, 1), ("bf16-true", 0.6, 0), ("32-true", 80.0, 0)]
)
def test_bfloat16_is_mentioned_where_it_is_asked_for_and_slow(monkeypatch, caplog, precision, cost, lines):
    options = parse(TrainOptions, compose(*TINY)).trainer
    monkeypatch.setattr(machine, "bfloat16_cost", lambda *sizes: cost)
    machine.say_if_slow(replace(options, precision=precision), 64, 64)
    assert len(caplog.records) == lines


def test_the_probe_leaves_generator_and_threads_alone():
    before = torch.get_rng_state(), torch.get_num_threads()
    assert machine.bfloat16_cost(64, 64) > 0
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.get_num_threads() == before[1]


def test_only_known_warnings_of_lightning_are_left_out():
    quiet_libraries()
    lightning_warns = partial(
        warnings.warn_explicit, category=UserWarning, filename="f.py", lineno=1, module="lightning.pytorch.trainer"
    )
    lightning_warns("GPU available but not used.")
    with pytest.raises(UserWarning, match="precision is another"):  # an error, as all that is shown in a test
        lightning_warns("precision is another")
