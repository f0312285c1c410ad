"""Going on: as if it had never stopped, in the data, the weights, the log and the files."""

import hashlib
import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from runs import Crash, at_step, config, crash, interrupt, newest, points, run, same, send, state
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from lockstep.base.errors import CheckpointError, Interrupted, NonFiniteError
from lockstep.commands.options import ConfigurationError
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import train
from lockstep.training.checkpoints import read_checkpoint, write_checkpoint
from lockstep.training.module import TranslationModule

OPTIONS = ["trainer.max_steps=16", "trainer.val_check_interval=5", "checkpoint_every=3", "attention_maps_every=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of three epochs."""
    torch.manual_seed(99)
    return run(config(tmp_path_factory.mktemp("whole"), *OPTIONS))


def broken_off(folder, step, act=interrupt, error=Interrupted, overrides=OPTIONS):
    with at_step(step, act), pytest.raises(error):
        train(config(folder, *overrides))
    return newest(folder)


def go_on(folder, **changes):
    torch.manual_seed(5)  # whatever the new process did before
    elsewhere = {"output": str(folder.parent), "name": "other"}  # for a checkpoint that lies alone
    told = [] if folder.is_dir() else ["name"]
    return train({**options_of_run({"resume": str(folder), **elsewhere}, told), **changes})


def assert_as_whole(folder, whole):
    ours, theirs = state(folder), state(whole)
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "loops", "DataModule", "callbacks", "global_step"):
        assert same(ours[key], theirs[key]), key
    ours, theirs = points(folder), points(whole)
    for tag in theirs.keys() - {"train/target_tokens_per_second"}:
        assert ours[tag] == theirs[tag], tag
    assert pictures(folder) == pictures(whole)
    assert state(folder, "best.ckpt")["global_step"] == state(whole, "best.ckpt")["global_step"]


def pictures(folder):
    """The steps of the attention pictures, if there are any."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    return [image.step for tag in events.Tags()["images"] for image in events.Images(tag)]


# In the middle of an epoch and of the interval between validations; where a validation is due; at a checkpoint; at
# the first step and the last.
@pytest.mark.parametrize("step", [5, 16, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 4, 6, 10, 15))])
def test_interrupted_and_resumed_is_as_uninterrupted(tmp_path, whole, step):
    folder = broken_off(tmp_path, step)
    assert state(folder)["global_step"] == step
    assert not (folder / "metrics.json").exists()
    go_on(folder)
    assert_as_whole(folder, whole)
    assert list(tmp_path.iterdir()) == [folder]
    weights = [json.loads((f / "metrics.json").read_text())["weights_sha256"] for f in (folder, whole)]
    assert weights[0] == weights[1]


def test_after_a_crash_points_are_neither_doubled_nor_missing(tmp_path, whole):
    folder = broken_off(tmp_path, 12, crash, Crash)
    assert state(folder)["global_step"] == 10
    go_on(folder)
    assert_as_whole(folder, whole)
    assert [step for step, _ in points(folder)["train/loss"]] == list(range(1, 17))
    assert [step for step, _ in points(folder)["validation/loss"]] == [5, 10, 15]


def test_a_signal_in_validation_is_obeyed_at_once_and_the_validation_made_good(tmp_path, whole):
    original, calls = TranslationModule.validation_step, []

    def validation_step(self, batch, batch_index):
        calls.append(self.trainer.global_step)
        if calls.count(5) == 1 and calls[-1] == 5:
            send(signal.SIGTERM)
        return original(self, batch, batch_index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationModule, "validation_step", validation_step)
        with pytest.raises(Interrupted) as stopped:
            train(config(tmp_path, *OPTIONS))
        assert stopped.value.signum == signal.SIGTERM
        go_on(newest(tmp_path))
    assert_as_whole(newest(tmp_path), whole)


def test_accumulation_is_left_between_steps(tmp_path):
    options = [*OPTIONS, "trainer.accumulate_grad_batches=3", "trainer.max_steps=6"]
    uninterrupted = run(config(tmp_path / "a", *options))
    folder = broken_off(tmp_path / "b", 4, overrides=options)
    assert state(folder)["DataModule"]["batches"] == 12
    go_on(folder)
    assert_as_whole(folder, uninterrupted)


def test_a_finished_run_trains_nothing_and_goes_on_when_told(tmp_path, whole, caplog):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}
    assert go_on(folder) == json.loads((folder / "metrics.json").read_text())
    assert "already complete" in caplog.text
    assert before == {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
    saved = options_of_run({"resume": str(folder)}, [])
    metrics = go_on(folder, trainer={**saved["trainer"], "max_steps": 18})
    assert metrics["train/steps"] == 18
    assert state(folder)["lr_schedulers"][0]["last_epoch"] == 18
    # The schedule is the longer one's from its first step: linear, to 0 at the new end, warm-up 20.
    assert dict(points(folder)["optimizer/learning_rate"])[17] == pytest.approx(2e-3 * 17 / 20)
    assert "trainer.max_steps was 16, is 18" in (folder / "train.log").read_text()


def test_a_short_run_validates_at_its_end_and_goes_on_in_its_interval(tmp_path):
    folder = run(config(tmp_path, "trainer.max_steps=4", "trainer.val_check_interval=5"))
    saved = options_of_run({"resume": str(folder)}, [])
    go_on(folder, trainer={**saved["trainer"], "max_steps": 12})
    assert [step for step, _ in points(folder)["validation/loss"]] == [4, 5, 10]
    assert [step for step, _ in points(folder)["train/loss"]] == list(range(1, 13))


def test_the_schedule_has_stepped_before_it_is_saved(tmp_path):
    options = ["trainer.max_steps=12", "schedule.name=cosine", "schedule.warmup_steps=4", "checkpoint_every=6"]
    folder = run(config(tmp_path / "a", *options, "checkpoint_every=5"))
    other = broken_off(tmp_path / "b", 8, overrides=options)
    assert state(other)["lr_schedulers"][0]["last_epoch"] == 8
    go_on(other)
    assert points(other)["optimizer/learning_rate"] == points(folder)["optimizer/learning_rate"]


def test_an_early_stop_stays_a_stop(tmp_path):
    options = ["trainer.max_steps=90", "trainer.val_check_interval=10", "data.symbols=3", "data.min_length=5"]
    options += ["data.max_length=5", "stop_at_exact_match=0.125", "optimizer.lr=5e-3"]
    folder = run(config(tmp_path, *options))
    steps = state(folder)["global_step"]
    assert steps < 90
    go_on(folder)  # complete
    (folder / "metrics.json").unlink()  # killed before its results were written
    assert go_on(folder)["train/steps"] == steps
    assert go_on(folder, stop_at_exact_match=None)["train/steps"] == 90


def test_patience_outlives_an_interruption(tmp_path):
    options = ["trainer.max_steps=14", "trainer.val_check_interval=2", "optimizer=sgd", "optimizer.lr=0", "patience=3"]
    uninterrupted = run(config(tmp_path / "a", *options))
    assert [step for step, _ in points(uninterrupted)["validation/loss"]] == [2, 4, 6, 8]  # the first is the best
    assert state(uninterrupted, "best.ckpt")["global_step"] == 2
    assert "3 validations without a better validation/loss" in (uninterrupted / "train.log").read_text()
    folder = broken_off(tmp_path / "b", 5, overrides=options)
    go_on(folder)
    assert_as_whole(folder, uninterrupted)
    go_on(folder)  # complete
    (folder / "metrics.json").unlink()  # killed before its results were written
    assert go_on(folder)["train/steps"] == 8
    assert go_on(folder, patience=5)["train/steps"] == 12
    assert go_on(folder, patience=None)["train/steps"] == 14


def test_a_checkpoint_from_elsewhere_leaves_its_best_behind(tmp_path):
    options = ["trainer.max_steps=10", "trainer.val_check_interval=5", "optimizer=sgd", "optimizer.lr=0"]
    folder = run(config(tmp_path, *options))
    path = Path(shutil.copy(folder / "checkpoints" / "last.ckpt", tmp_path / "other.ckpt"))
    trainer = read_checkpoint(path)["lockstep"]["config"]["trainer"]
    go_on(path, trainer={**trainer, "max_steps": 20})
    (other,) = tmp_path.glob("other-*")
    assert state(other, "best.ckpt")["global_step"] == 15  # the first here, though no better than the one before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "option seed is 0 in .*last.ckpt, and cannot become 1 on the way"),
        ({"batch_tokens": 32}, "option batch_tokens is 64"),
        ({"output": "/elsewhere"}, "option output is"),
    ],
)
def test_another_experiment_is_refused_by_name(whole, change, message):
    with pytest.raises(ConfigurationError, match=message):
        go_on(whole, **change)


def test_nested_options_are_compared_by_name(whole):
    saved = options_of_run({"resume": str(whole)}, [])
    with pytest.raises(ConfigurationError, match=r"option data\.symbols is 26"):
        go_on(whole, data={**saved["data"], "symbols": 25})


def test_only_what_was_told_differs_from_the_run(whole):
    composed = {
        "resume": str(whole),
        "seed": 7,
        "trainer": {"max_steps": 99},
        "attention": {"_target_": "x", "arithmetic": "native"},
    }
    options = options_of_run(composed, ["trainer.max_steps", "attention", "resume"])
    assert options["trainer"]["max_steps"] == 99
    assert options["seed"] == 0
    assert options["attention"] == {"_target_": "x", "arithmetic": "ordered"}  # the run's
    assert options["resume"] == str(whole)


def test_another_vocabulary_is_refused(tmp_path, whole):
    checkpoint = read_checkpoint(whole / "checkpoints" / "last.ckpt")
    checkpoint["lockstep"]["tokenizers"] = "0" * 64
    write_checkpoint(checkpoint, tmp_path / "other.ckpt")
    with pytest.raises(ConfigurationError, match="belongs to another vocabulary"):
        go_on(tmp_path / "other.ckpt", trainer={**checkpoint["lockstep"]["config"]["trainer"], "max_steps": 20})


def test_a_damaged_run_never_starts_over(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    path = folder / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"is incomplete; .*previous\.ckpt is whole, of step 15"):
        go_on(folder)
    with pytest.raises(CheckpointError, match="holds 1 run; name one"):
        go_on(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_second_signal_does_no_damage(tmp_path, whole):
    before = signal.getsignal(signal.SIGINT)
    folder = broken_off(tmp_path, 7, lambda: send(signal.SIGINT, signal.SIGINT, signal.SIGTERM))
    assert state(folder)["global_step"] == 7
    assert signal.getsignal(signal.SIGINT) is before
    go_on(folder)
    assert_as_whole(folder, whole)


def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(tmp_path):
    def spoil():
        with torch.no_grad():
            next(parameter for parameter in modules[0].model.parameters()).fill_(math.nan)

    modules, original = [], TranslationModule.on_train_start

    def on_train_start(self):
        modules.append(self)
        original(self)

    with pytest.MonkeyPatch.context() as patch, at_step(8, spoil):
        patch.setattr(TranslationModule, "on_train_start", on_train_start)
        with pytest.raises(
            NonFiniteError,
            match=r"the loss is nan at step 8; .*lower optimizer\.lr .*; go on with: .*train\.py resume=",
        ):
            train(config(tmp_path, *OPTIONS))
    kept = state(newest(tmp_path))
    assert kept["global_step"] == 6
    assert all(tensor.isfinite().all() for tensor in kept["state_dict"].values())


def test_nan_never_is_the_best(tmp_path):
    calls = []
    losses = [math.nan, 0.5, 0.4, math.nan, 0.45]

    def validation_step(self, batch, batch_index):
        calls.append(losses[self.trainer.global_step // 4 - 1])
        self.log_dict(dict.fromkeys(("validation/token_accuracy", "validation/exact_match"), 0.0))
        self.log("validation/loss", calls[-1], batch_size=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationModule, "validation_step", validation_step)
        folder = run(config(tmp_path, "trainer.max_steps=16", "trainer.val_check_interval=4"))
        assert state(folder, "best.ckpt")["global_step"] == 12
        saved = options_of_run({"resume": str(folder)}, [])
        go_on(folder, trainer={**saved["trainer"], "max_steps": 20})  # what was best is still known
    assert state(folder)["global_step"] == 20
    assert state(folder, "best.ckpt")["global_step"] == 12
    assert state(folder)["callbacks"]["Saving"]["best"] == pytest.approx([0.4])


def test_hyperparameters_are_shown_as_plain_resolved_values(whole):
    events = EventAccumulator(str(whole)).Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["model/d_model"].number_value == 64
    assert shown["attention/arithmetic"].string_value == "ordered"
    assert [step for step, _ in points(whole)["test/exact_match"]] == [16]


def test_a_complete_run_refuses_another_attention(whole):
    attention = config(whole.parent, "attention=shared_heads")["attention"]
    with pytest.raises(
        ConfigurationError, match=r"option attention: .*is complete, step 16 of 16, .*trainer\.max_steps"
    ):
        go_on(whole, attention=attention)


@pytest.mark.parametrize(("before", "now"), [("64-true", "32-true"), ("bf16-mixed", "32-true"), ("32-true", "64-true")])
def test_precision_may_change_on_the_way_and_is_reported(tmp_path, before, now):
    folder = run(config(tmp_path, "trainer.max_steps=3", f"trainer.precision={before}"))
    trainer = {**read_checkpoint(folder / "checkpoints" / "last.ckpt")["lockstep"]["config"]["trainer"], "max_steps": 5}
    assert go_on(folder, trainer={**trainer, "precision": now})["train/steps"] == 5
    assert f"changed: trainer.precision was {before}, is {now}" in (folder / "train.log").read_text()
    weight = state(folder)["state_dict"]["model.output.weight"]
    assert weight.dtype == (torch.float64 if now == "64-true" else torch.float32)


def test_a_run_that_ended_early_says_what_ended_it_and_what_makes_it_go_on(tmp_path, caplog):
    options = ["trainer.max_steps=12", "trainer.val_check_interval=2", "patience=2", "optimizer=sgd", "optimizer.lr=0"]
    folder = run(config(tmp_path, *options))
    trainer = read_checkpoint(folder / "checkpoints" / "last.ckpt")["lockstep"]["config"]["trainer"]
    assert go_on(folder, trainer={**trainer, "max_steps": 80})["train/steps"] == 6
    assert "step 6 of 80, where patience=2 ended it; it goes on with patience=null" in caplog.text
    assert go_on(folder, trainer={**trainer, "max_steps": 8}, patience=None)["train/steps"] == 8
