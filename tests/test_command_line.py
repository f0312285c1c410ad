"""The scripts as they are called: signals and exit statuses, paths, quoting, sweeps, conversion."""

import csv
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from training.runs import SMALL, points, state

from lockstep.configuration import as_argument

ROOT = Path(__file__).parents[1]
LONG = [*SMALL, "trainer.max_steps=100000", "trainer.val_check_interval=5", "checkpoint_every=1000"]


def start(script, *arguments, cwd):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


def script(name, *arguments, cwd):
    return finish(start(name, *arguments, cwd=cwd))


def stop(cwd, *signums, arguments=LONG):
    """Start a long run, send signals after its first validation; exit status, output, and its folder."""
    process = start("train", *arguments, cwd=cwd)
    head = []
    for line in process.stdout:
        head.append(line)
        if line.startswith("step"):
            break
    for signum in signums:
        process.send_signal(signum)
    status, output, errors = finish(process)
    assert "Traceback" not in errors
    return status, "".join(head) + output, max((cwd / "outputs").iterdir())


def resume_command(output):
    """The arguments of the printed command, as a shell would pass them."""
    (line,) = [line for line in output.splitlines() if "go on with: " in line]
    return shlex.split(line.partition("scripts/train.py ")[2])


@pytest.mark.slow
def test_c42_c34_two_ctrl_c_save_and_exit_with_130_and_the_printed_command_goes_on(tmp_path):
    status, output, folder = stop(tmp_path, signal.SIGINT, signal.SIGINT)
    assert status == 130
    assert "test:" not in output
    assert "\r" not in output
    assert not (folder / "metrics.json").exists()
    step = state(folder)["global_step"]
    assert f"saved step {step}; go on with: " in output
    arguments = resume_command(output)
    assert arguments == [f"resume=outputs/{folder.name}"]
    status, output, errors = script("train", *arguments, f"trainer.max_steps={step + 5}", cwd=tmp_path)
    assert (status, errors) == (0, "")
    assert f"changed: trainer.max_steps was 100000, is {step + 5}" in output
    assert [s for s, _ in points(folder)["train/loss"]] == list(range(1, step + 6))


@pytest.mark.slow
def test_c42_sigterm_exits_with_143(tmp_path):
    status, output, folder = stop(tmp_path, signal.SIGTERM)
    assert status == 143
    assert state(folder)["global_step"] >= 5
    assert "test:" not in output


@pytest.mark.slow
def test_c34_c35_any_path_relative_to_the_user_and_absolute_in_the_saved_configuration(tmp_path):
    place = tmp_path / "naïve café 数据 #1 50%=x"
    place.mkdir()
    output = as_argument("output", "über # 数据 %, =out")
    process = start("train", *SMALL, *shlex.split(output), "trainer.max_steps=6", "checkpoint_every=3", cwd=place)
    status, text, errors = finish(process)
    assert (status, errors) == (0, "")
    (folder,) = (place / "über # 数据 %, =out").iterdir()
    saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert saved["output"] == str(folder.parent)
    assert not [path.name for path in folder.rglob("*") if "=" in path.name]
    again = shlex.split(as_argument("resume", f"{folder.parent.name}/{folder.name}/checkpoints/previous.ckpt"))
    status, text, errors = script("train", *again, "trainer.max_steps=8", cwd=place)
    assert (status, errors) == (0, "")
    assert "going on from step 3" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["output=naïve"], "argument output=naïve needs quotes, for Hydra and for the shell: 'output=\"naïve\"'"),
        pytest.param(["attention=fused,packed"], "several values take -m, which runs each", marks=pytest.mark.slow),
        pytest.param(["resume=nowhere"], "checkpoint nowhere does not exist", marks=pytest.mark.slow),
    ],
)
def test_c34_the_argument_at_fault_is_named_with_its_right_quoting(tmp_path, arguments, message):
    status, output, errors = script("train", *arguments, cwd=tmp_path)
    assert status in (1, 2)
    assert output == ""
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    assert message in errors
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_c35_two_runs_at_once_have_folders_of_their_own(tmp_path):
    processes = [start("train", *SMALL, "trainer.max_steps=4", f"seed={seed}", cwd=tmp_path) for seed in (0, 1)]
    assert [finish(process)[0] for process in processes] == [0, 0]
    folders = sorted((tmp_path / "outputs").iterdir())
    assert len(folders) == 2
    assert {yaml.safe_load((f / "config.yaml").read_text())["seed"] for f in folders} == {0, 1}
    assert all(len(points(folder)["train/loss"]) == 4 for folder in folders)


@pytest.mark.slow
def test_c35_a_sweep_has_a_folder_a_job_and_a_table_and_survives_a_failing_job(tmp_path):
    sweep = ["-m", *SMALL, "trainer.max_steps=4", "attention=per_head,fused", "model.num_heads=2,3"]
    status, output, errors = script("train", *sweep, cwd=tmp_path)
    assert status == 2
    assert errors.count("error: ") == 2
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "outputs").iterdir()
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    jobs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [job.name.split("-20")[0] for job in jobs] == [
        "0-model.num_heads-2-attention-per_head",
        "1-model.num_heads-2-attention-fused",
    ]
    for job in jobs:
        assert state(job)["global_step"] == 4
        assert len(points(job)["train/loss"]) == 4
        for name in ("config.yaml", "train.log", "metrics.json", "source_tokenizer.json"):
            assert (job / name).stat().st_size > 0
        assert "training" in (job / "train.log").read_text()
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [(row["attention"], row["model.num_heads"], bool(row["error"])) for row in rows] == [
        ("per_head", "2", False),
        ("fused", "2", False),
        ("per_head", "3", True),
        ("fused", "3", True),
    ]
    assert "num_heads must divide d_model" in rows[3]["error"]
    assert "4 jobs, 2 failed" in output


@pytest.mark.slow
def test_convert_then_train_on(tmp_path):
    """As the README has it."""
    assert script("train", *SMALL, "trainer.max_steps=4", cwd=tmp_path)[0] == 0
    (folder,) = (tmp_path / "outputs").iterdir()
    last = f"outputs/{folder.name}/checkpoints/last.ckpt"
    told = [f"checkpoint={last}", "attention=per_head", "output=B.ckpt"]
    status, output, errors = script("convert", *told, cwd=tmp_path)
    assert (status, errors) == (0, "")
    assert "outputs agree" in output
    status, output, errors = script("train", *resume_command(output), "trainer.max_steps=6", cwd=tmp_path)
    assert (status, errors) == (0, "")
    new = max((tmp_path / "outputs").iterdir())
    assert new != folder
    assert json.loads((new / "metrics.json").read_text())["train/steps"] == 6
    for arguments, message in (
        (["checkpoint=x", "output=y"], "You must specify 'attention'"),
        (["checkpoint=x", "attention=fused", "output=y"], "checkpoint x does not exist"),
        (["attention=fused", "output=y"], "option checkpoint is missing; write checkpoint=..."),
    ):
        status, output, errors = script("convert", *arguments, cwd=tmp_path)
        assert status in (1, 2)
        assert errors.startswith("error: ")
        assert message in errors
        assert len(errors.splitlines()) == 1


@pytest.mark.slow
def test_dates_are_learnt_and_another_script_works_without_a_change(tmp_path):
    for locales in ([], ["data.source_locale=ar", "data.target_locale=ja"]):
        options = ["data=dates", "trainer.max_steps=400", "trainer.val_check_interval=400", "attention_maps_every=0"]
        status, _, errors = script("train", *options, *locales, cwd=tmp_path)
        assert (status, errors) == (0, "")
        metrics = json.loads((max((tmp_path / "outputs").iterdir()) / "metrics.json").read_text())
        assert metrics["test/exact_match"] >= 0.99


@pytest.mark.slow
def test_an_unknown_locale_is_refused_in_one_line(tmp_path):
    status, output, errors = script("train", "data=dates", "data.source_locale=hungarian", cwd=tmp_path)
    assert (status, output) == (2, "")
    assert errors.startswith("error: data: source_locale=hungarian is not a locale that Babel knows; did you mean hu")
