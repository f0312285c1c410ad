"""The scripts as they are called: signals and exit statuses, paths, quoting, sweeps, conversion."""

import contextlib
import csv
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import CONF
from training.runs import SMALL, points, state

from lockstep.base.errors import CheckpointError, ConfigurationError, InputError, Interrupted, NonFiniteError
from lockstep.base.hints import as_argument
from lockstep.commands.command_line import BUG, COULD_NOT_TELL, FILE, REFUSED, UNUSABLE, Command, run
from lockstep.commands.composition import Composer
from lockstep.training.signals import Signals
from scripts import SCRIPTS, called

ROOT = Path(__file__).parents[2]
TESTED = {"test/exact_match": 1.0, "test/loss": 0.1, "train/steps": 2, "train/target_tokens_per_second": 3.0}
TOLD = {  # without which a command refuses before it imports much
    "translate": ["checkpoint=nowhere"],
    "convert": ["checkpoint=nowhere", "attention=fused", "output=x"],
    "verify": ["attention=fused"],
}
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
def test_two_ctrl_c_save_and_exit_with_130_and_the_printed_command_goes_on(tmp_path):
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
def test_sigterm_exits_with_143(tmp_path):
    status, output, folder = stop(tmp_path, signal.SIGTERM)
    assert status == 143
    assert state(folder)["global_step"] >= 5
    assert "test:" not in output


@pytest.mark.slow
def test_any_path_relative_to_the_user_and_absolute_in_the_saved_configuration(tmp_path):
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


def running(job, *words, **options):
    """The exit status of a command that does this."""
    return run(Command(CONF, "benchmark", job, **options), words)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigurationError("option x"), REFUSED, "option x"),
        (CheckpointError("checkpoint x"), UNUSABLE, "checkpoint x"),
        (InputError("line 3"), UNUSABLE, "line 3"),
        (NonFiniteError("the loss is nan"), UNUSABLE, "the loss is nan"),
        (MemoryError(), UNUSABLE, "more memory is asked for than there is: MemoryError"),
        (OSError(28, "No space left on device", "/x/y"), FILE, "/x/y: No space left on device"),
        (OSError("read failed"), FILE, "read failed"),
        (Interrupted(15, "saved step 3"), 143, "stopped by SIGTERM: saved step 3"),
        (ConfigurationError("a\x1b[31mb\nc\u202e"), REFUSED, r"a\x1b[31mb\nc\u202e"),
    ],
)
def test_each_end_has_a_status_and_one_line(capsys, error, status, line):
    def job(config):
        raise error

    assert running(job) == status
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_a_bug_shows_its_traceback_and_asks_for_a_report(capsys):
    def job(config):
        raise KeyError("gate")

    assert running(job) == BUG
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("error: KeyError: this is a bug of Lockstep's; please report it")


@pytest.mark.parametrize("judges", [False, True])
def test_code_of_the_users_that_fails_is_no_bug(tmp_path, capsys, judges):
    path = tmp_path / "theirs.py"
    path.write_text("\nraise SystemExit(1)\n")

    def job(config):
        runpy.run_path(str(path))

    assert running(job, judges=judges) == (COULD_NOT_TELL if judges else UNUSABLE)
    assert capsys.readouterr().err == f"error: {path}:2: SystemExit: 1\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_whatever_becomes_of_its_exception(capsys, signum):
    def swallowed(config):
        try:
            os.kill(os.getpid(), signum)
            time.sleep(5)
        except BaseException:
            raise ImportError("half of a library") from None

    def ignored(config):
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signum)
            time.sleep(5)
        return 0

    before = signal.getsignal(signum)
    for job in (swallowed, ignored):
        assert running(job) == 128 + signum
        assert capsys.readouterr().err == f"error: stopped by {signal.Signals(signum).name}\n"
    assert signal.getsignal(signum) is before


def test_a_signal_that_a_command_was_started_to_ignore_stops_nothing():
    """As under ``nohup``, and in the background of a script."""

    def job(config):
        os.kill(os.getpid(), signal.SIGINT)
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
        return 0 if signals.received is None else 1

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert running(job) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_anything_listens_is_no_bug(capsys):
    def job(config):
        raise KeyboardInterrupt

    assert running(job) == 130
    assert capsys.readouterr().err == "error: stopped by SIGINT\n"


@pytest.mark.parametrize("streams", [{"stdout": None}, {"stdout": None, "stderr": None}, {"stdin": None}])
def test_closed_standard_streams_are_empty_ones(monkeypatch, streams):
    def job(config):
        assert not sys.stdout.isatty()
        return len(sys.stdin.read()) if "stdin" in streams else 0

    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    assert running(job) == 0
    for name in streams:
        getattr(sys, name).close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk that is always there")
@pytest.mark.parametrize(("stream", "words", "status"), [("stderr", ["nix=1"], REFUSED), ("stdout", ["--help"], FILE)])
def test_what_cannot_be_said_is_no_verdict(stream, words, status):
    program = "import sys, pathlib\nfrom lockstep.commands.command_line import Command, run\n"
    program += f"C = pathlib.Path({str(CONF)!r})\n"
    program += f"sys.exit(run(Command(C, 'benchmark', lambda c: 0, judges=True), {words}))"
    with open("/dev/full", "w") as full:
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        ended = subprocess.run([sys.executable, "-c", program], **outputs, check=False)
    assert ended.returncode == status
    assert b"Exception" not in (ended.stderr or b"")


@pytest.mark.parametrize("value", ["interval(0,1)", "glob(*)"])
def test_a_sweep_over_what_has_no_values_is_refused(value):
    with pytest.raises(ConfigurationError, match="a sweep takes values"):
        Composer(CONF, "train").jobs([f"seed={value}"], True)


def test_a_log_that_nobody_reads_any_more_stops_nothing(tmp_path):
    """Standard output closed, as by ``head``."""
    job = (
        "import logging\ndef job(c):\n [logging.getLogger('lockstep').warning('x' * 999) for _ in range(99)]\n return 0"
    )
    program = f"{job}\nimport sys, pathlib\nfrom lockstep.commands.command_line import Command, run\n"
    program += f"sys.exit(run(Command(pathlib.Path({str(CONF)!r}), 'benchmark', job), []))"
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started.stdout.close()
    assert (started.stderr.read(), started.wait()) == (b"", 0)
    started.stderr.close()


SPARE = [*SMALL, "trainer.max_steps=2", "attention_maps_every=0"]


def swept(capsys, *words):
    """A sweep's status, its table's rows, and what it printed."""
    status = called("train", "-m", *SPARE, *words)
    (results,) = Path.cwd().glob("outputs/sweep-*/results.csv")
    return status, list(csv.DictReader(results.read_text().splitlines())), capsys.readouterr()


def test_cells_of_a_sweeps_table_are_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.commands.train.train", lambda config: TESTED)
    status, rows, (output, _) = swept(capsys, "+name2=[a,b],'[/y]','=cmd()'")
    assert status == 0
    assert {row["name2"] for row in rows} == {"[a,b]", "'[/y]'", "'=cmd()'"}
    for row in rows:
        assert row["name2"] in output


def test_a_sweep_that_is_stopped_keeps_what_ran_and_tells_where_the_rest_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def train(config):
        if config["seed"] == 1:
            raise Interrupted(signal.SIGTERM, "saved step 3; go on with: x")
        return TESTED

    monkeypatch.setattr("lockstep.commands.train.train", train)
    status, rows, (output, errors) = swept(capsys, "seed=0,1,2")
    assert status == 143
    assert [(row["seed"], row["exact match"], row["error"]) for row in rows] == [
        ("0", "1.0000", ""),
        ("1", "", "stopped by SIGTERM: saved step 3; go on with: x"),
    ]
    assert errors == "error: stopped by SIGTERM: saved step 3; go on with: x\n"
    assert "2 of 3 jobs ran, 1 failed" in output


def test_a_sweep_refuses_before_it_makes_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert called("train", "-m", "attention=fused,fusd") == REFUSED
    assert "attention=fusd does not exist" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert called("train", "-m", "seed=0,1", "output=file/x") == FILE
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


IN_THE_WAY = ("datasets", "PIL", "secrets", "torch", "hydra", "yaml", "numpy", "train", "tensorflow", "apex")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train", [*SPARE, "trainer.accelerator=cpu"]),
        ("train", ["--help"]),
        ("translate", ["checkpoint=nowhere"]),
        ("convert", ["checkpoint=nowhere", "attention=fused", "output=x"]),
        ("benchmark", ["rounds=1", "repeats=1", "d_model=8", "batch_size=2"]),
        ("verify", ["attention=fused"]),
    ],
)
def test_files_in_the_working_folder_do_not_run(tmp_path, name, words):
    for module in IN_THE_WAY:
        (tmp_path / f"{module}.py").write_text("open('it_ran', 'a').write(__name__ + '\\n')\n")
    plugins = tmp_path / "hydra_plugins" / "mine"
    plugins.mkdir(parents=True)
    (plugins / "__init__.py").write_text("open('it_ran', 'a').write(__name__ + '\\n')\n")
    _, _, errors = script(name, *words, cwd=tmp_path)
    assert "Traceback" not in errors
    assert not (tmp_path / "it_ran").exists(), (tmp_path / "it_ran").read_text()


# Sends itself a signal when it is about to import a module.
HIT = """
import os, runpy, sys
script, signum, module, *words = sys.argv[1:]
class Hit:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), int(signum))
sys.meta_path.insert(0, Hit())
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "compare", "verify", "convert", "translate", "benchmark"])
@pytest.mark.parametrize("module", ["hydra", "torch", "torch.nn.functional"])
def test_a_signal_amid_the_imports_is_heard(tmp_path, name, module):
    for signum in (signal.SIGINT, signal.SIGTERM):
        command = [
            sys.executable,
            "-c",
            HIT,
            str(SCRIPTS / f"{name}.py"),
            str(int(signum)),
            module,
            *TOLD.get(name, []),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        said = f"error: stopped by {signal.Signals(signum).name}\n"
        assert (done.returncode, done.stdout, done.stderr) == (128 + signum, "", said)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_is_no_verdict(tmp_path, signum):
    process = start("compare", "trainer.accelerator=cpu", cwd=tmp_path)
    assert any(line.startswith("step ") for line in process.stdout)
    process.send_signal(signum)
    status, _, errors = finish(process)
    assert (status, errors) == (128 + signum, f"error: stopped by {signal.Signals(signum).name}\n")


@pytest.mark.slow
def test_the_argument_at_fault_is_named_by_the_script_too(tmp_path):
    status, output, errors = script("train", "data.train=[a", "b.en,c.de]", cwd=tmp_path)
    assert (status, output) == (REFUSED, "")
    right = "'data.train=[\"a b.en\",c.de]'"
    assert errors == f"error: argument data.train=[a needs quotes, for Hydra and for the shell: {right}\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_two_runs_at_once_have_folders_of_their_own(tmp_path):
    processes = [start("train", *SMALL, "trainer.max_steps=4", f"seed={seed}", cwd=tmp_path) for seed in (0, 1)]
    assert [finish(process)[0] for process in processes] == [0, 0]
    folders = sorted((tmp_path / "outputs").iterdir())
    assert len(folders) == 2
    assert {yaml.safe_load((f / "config.yaml").read_text())["seed"] for f in folders} == {0, 1}
    assert all(len(points(folder)["train/loss"]) == 4 for folder in folders)


@pytest.mark.slow
def test_a_sweep_has_a_folder_a_job_and_a_table_and_survives_a_failing_job(tmp_path):
    sweep = ["-m", *SMALL, "trainer.max_steps=4", "attention=per_head,fused", "model.num_heads=2,3"]
    status, output, errors = script("train", *sweep, cwd=tmp_path)
    assert status == REFUSED
    assert errors.count("error: ") == 2
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "outputs").iterdir()
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    jobs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [job.name.split("-20")[0] for job in jobs] == [
        "0-attention-per_head-model.num_heads-2",
        "2-attention-fused-model.num_heads-2",
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
    assert "4 of 4 jobs ran, 2 failed" in output


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
    (new,) = set((tmp_path / "outputs").iterdir()) - {folder}
    assert json.loads((new / "metrics.json").read_text())["train/steps"] == 6


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
    assert (status, output) == (REFUSED, "")
    assert errors.startswith("error: data: source_locale=hungarian is not a locale that Babel knows; did you mean hu")
