"""Whole runs: the same losses to the bit, accumulation, precision, what a run leaves behind."""

import json
import math
import re

import pytest
import torch
from conftest import TINY, VARIANTS, compose, make_variant
from lightning.fabric.utilities.rank_zero import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from lockstep.commands.train import train
from lockstep.observe import progress
from lockstep.training.checkpoints import FORMAT_VERSION
from lockstep.training.loss import summed_loss
from lockstep.training.module import exact_matches
from lockstep.training.schedules import schedule

EQUIVALENT = [name for name in VARIANTS if make_variant(name)(4, 2).canonical]


def run(folder, *overrides):
    """Metrics, and every logged scalar as {tag: [(step, value), ...]}."""
    metrics = train(compose(*TINY, f"output={folder}", *overrides))
    (run_folder,) = folder.iterdir()
    events = EventAccumulator(str(run_folder), size_guidance={"scalars": 0}).Reload()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return metrics, scalars


def losses(scalars):
    return [value for _, value in scalars["train/loss"]]


def test_ordered_variants_train_identically_to_the_bit(tmp_path):
    options = [
        "trainer.max_steps=50",
        "model.dropout=0.1",
        "model.attention_dropout=0.1",
        "trainer.gradient_clip_val=0.5",
    ]
    runs = {
        name: run(tmp_path / name, f"attention={name}", *options) for name in ("per_head", "fused", "packed", "einsum")
    }
    metrics, scalars = runs["per_head"]
    assert len(losses(scalars)) == 50
    assert losses(scalars)[-1] < 0.95 * losses(scalars)[0]
    assert max(value for _, value in scalars["optimizer/gradient_norm"]) > 0.5  # so that clipping was at work
    for name, (other, others) in runs.items():
        for tag in ("train/loss", "optimizer/gradient_norm", "validation/loss"):
            assert others.get(tag) == scalars.get(tag), f"{name}: {tag}"
        assert other["weights_sha256"] == metrics["weights_sha256"], name


def test_native_losses_agree_in_float64_and_the_contrast_does_not(tmp_path):
    options = ["arithmetic=native", "trainer.precision=64-true", "trainer.max_steps=15", "model.dropout=0.1"]
    expected = None
    for name in [*EQUIVALENT, "shared_heads"]:
        module_losses = _float64_losses(tmp_path / name, name, options)
        expected = module_losses if expected is None else expected
        difference = max(abs(a - b) for a, b in zip(module_losses, expected, strict=True))
        assert difference < 1e-10 if name != "shared_heads" else difference > 1e-3, f"{name}: {difference}"


def _float64_losses(folder, name, options):
    """Event files keep float32: the losses are caught on their way there."""
    import lightning.pytorch.loggers as loggers

    caught, original = [], loggers.TensorBoardLogger.log_metrics

    def log_metrics(self, metrics, step=None):
        if "train/loss" in metrics:
            caught.append(metrics["train/loss"])
        original(self, metrics, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loggers.TensorBoardLogger, "log_metrics", log_metrics)
        run(folder, f"attention={name}", *options)
    assert len(caught) == 15
    return caught


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_trains(tmp_path, precision):
    _, scalars = run(tmp_path, f"trainer.precision={precision}", "trainer.max_steps=24", "schedule.warmup_steps=4")
    values = losses(scalars)
    assert sum(values[-5:]) < 0.95 * sum(values[:5])


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_accumulation_weighs_tokens_not_batches(tmp_path):
    """Two unequal batches accumulated give the gradient of one batch that holds both."""
    import lightning as L

    from lockstep.commands.building import build_data, build_model, build_module
    from lockstep.commands.options import TrainOptions, parse
    from lockstep.data.batching import Batch

    options = parse(TrainOptions, compose(*TINY, "model.dropout=0", "optimizer=sgd", "optimizer.momentum=0"))
    data = build_data(options)

    def sequences(count, length):
        return torch.cat(
            [torch.ones(count, 1), torch.randint(4, 30, (count, length)), torch.full((count, 1), 2)], 1
        ).long()

    def padded(x):
        return torch.nn.functional.pad(x, (0, 12 - x.size(1)))

    few, many = sequences(2, 3), sequences(9, 10)
    both = torch.cat([padded(few), many])
    weights = {}
    for name, batches in {"accumulated": [few, many], "together": [both]}.items():
        module = build_module(options, build_model(options, data))
        trainer = L.Trainer(
            max_steps=1,
            limit_val_batches=0,
            accumulate_grad_batches=len(batches),
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader([Batch(x, x) for x in batches], batch_size=None))
        assert trainer.global_step == 1
        weights[name] = torch.cat([p.detach().flatten() for p in module.model.parameters()])
        loss = trainer.callback_metrics["train/loss"]
        weights[f"{name} loss"] = loss
    start = torch.cat([p.detach().flatten() for p in build_model(options, data).parameters()])
    assert (weights["together"] - start).abs().max() > 1e-3
    assert (weights["accumulated"] - weights["together"]).abs().max() < 1e-6
    torch.testing.assert_close(weights["accumulated loss"], weights["together loss"])


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_evaluation_averages_over_tokens_and_sequences(tmp_path):
    import lightning as L

    from lockstep.commands.building import build_data, build_model, build_module
    from lockstep.commands.options import TrainOptions, parse
    from lockstep.data.tokenization import PAD

    options = parse(TrainOptions, compose(*TINY, "data.test_size=173", "batch_tokens=100"))
    data = build_data(options)
    module = build_module(options, build_model(options, data))
    trainer = L.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False)
    (results,) = trainer.test(module, data, verbose=False)
    module.eval()
    loss = tokens = 0
    for batch in data.test_dataloader():
        with torch.no_grad():
            log_p = module.model(batch.source, batch.source_mask, batch.prefix).double().log_softmax(-1)
        for row, labels in zip(log_p, batch.labels, strict=True):
            for position, label in enumerate(labels):
                if label != PAD:
                    loss, tokens = loss - row[position, label].item(), tokens + 1
    assert results["test/loss"] == pytest.approx(loss / tokens, rel=1e-6)


def test_label_smoothing_and_padding_in_the_loss():
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 2, 0], [3, 0, 0]])
    log_p = logits.log_softmax(-1)
    plain = -(log_p[0, 0, 1] + log_p[0, 1, 2] + log_p[1, 0, 3])
    torch.testing.assert_close(summed_loss(logits, labels), plain)
    uniform = -(log_p[0, 0].mean() + log_p[0, 1].mean() + log_p[1, 0].mean())
    torch.testing.assert_close(summed_loss(logits, labels, 0.1), 0.9 * plain + 0.1 * uniform)


def test_exact_match_is_of_whole_sequences():
    labels = torch.tensor([[5, 6, 2], [5, 2, 0], [7, 2, 0]])
    translations = torch.tensor([[5, 6, 2, 0], [5, 2, 0, 0], [7, 7, 7, 2]])
    assert exact_matches(translations, labels).tolist() == [True, True, False]
    assert exact_matches(translations[:, :2], labels).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.5, 0]),
        ("cosine", [0.5, 1, 1, 0.5, 0]),
        ("inverse_sqrt", [0.5, 1, math.sqrt(2 / 3), math.sqrt(2 / 5), math.sqrt(2 / 7)]),
    ],
)
def test_schedules(name, expected):
    factor = schedule(name, warmup_steps=2, max_steps=6)
    assert [factor(step) for step in (0, 1, 2, 4, 6)] == pytest.approx(expected)


def test_what_a_run_leaves_behind(tmp_path):
    metrics, scalars = run(tmp_path, "trainer.max_steps=4", "trainer.val_check_interval=2", "attention_maps_every=1")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tiny-20")
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert metrics["train/steps"] == 4
    assert {"test/exact_match", "test/loss", "train/seconds", "train/target_tokens_per_second", "parameters"} <= set(
        metrics
    )
    for name in ("config.yaml", "train.log", "source_tokenizer.json", "checkpoints/best.ckpt", "checkpoints/last.ckpt"):
        assert (folder / name).stat().st_size > 0, name
    assert not [path for path in folder.rglob("*") if "=" in path.name]
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["lockstep"]["format_version"] == FORMAT_VERSION
    assert checkpoint["global_step"] == 4
    assert [step for step, _ in scalars["train/loss"]] == list(range(1, 5))
    assert [step for step, _ in scalars["validation/exact_match"]] == [2, 4]
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()
    assert set(events.Tags()["images"]) == {"attention/encoder", "attention/decoder", "attention/cross"}
    assert [image.step for image in events.Images("attention/cross")] == list(range(5))  # before training, too
    assert "samples/text_summary" in events.Tags()["tensors"]


def test_a_run_of_any_length_has_a_curve_and_a_validation(tmp_path):
    options = ["trainer.val_check_interval=1000", "trainer.log_every_n_steps=10"]
    for steps, points in {1: [1], 25: [1, 10, 20, 25]}.items():
        _, scalars = run(tmp_path / str(steps), f"trainer.max_steps={steps}", *options)
        assert [step for step, _ in scalars["train/loss"]] == points
        assert [step for step, _ in scalars["validation/loss"]] == [steps]


def test_without_a_terminal_lines_tell_what_remains_and_change_nothing(tmp_path, monkeypatch, caplog):
    options = ["trainer.max_steps=4", "model.dropout=0.1"]
    quiet, _ = run(tmp_path / "quiet", *options)
    assert "left" not in caplog.text
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    told, _ = run(tmp_path / "told", *options)
    assert re.search(r"step     3 of 4   loss \d\.\d{4}   [\d,]+ target tokens/s   0 s left", caplog.text)
    assert re.search(r"validation: batch 1 of \d", caplog.text)
    assert re.search(r"test: batch 1 of \d", caplog.text)
    assert told["weights_sha256"] == quiet["weights_sha256"]


def test_a_cluster_in_the_environment_is_no_wish_for_several_processes(tmp_path, monkeypatch):
    for name, value in {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "3", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as Lightning reads SLURM_PROCID=1 when it is imported
    _, scalars = run(tmp_path, "trainer.max_steps=1")
    assert len(scalars["train/loss"]) == 1


def test_looking_changes_no_bit(tmp_path):
    runs = [
        run(tmp_path / str(every), "trainer.max_steps=6", f"attention_maps_every={every}", "model.dropout=0.1")
        for every in (0, 1, 4)
    ]
    assert len({metrics["weights_sha256"] for metrics, _ in runs}) == 1
    assert runs[0][1]["train/loss"] == runs[1][1]["train/loss"] == runs[2][1]["train/loss"]


def test_ends_early_when_solved(tmp_path):
    options = ["trainer.max_steps=400", "trainer.val_check_interval=10", "data.symbols=3", "data.max_length=5"]
    sizes = ["data.train_size=50", "data.validation_size=4", "data.test_size=4", "stop_at_exact_match=0.25"]
    metrics, _ = run(tmp_path, *options, *sizes, "data.min_length=5", "optimizer.lr=5e-3")
    assert metrics["train/steps"] < 400
