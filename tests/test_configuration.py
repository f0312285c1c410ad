"""Mistakes are refused before any work, in one line that names the option and the nearest real one."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY, compose

from lockstep.configuration import ConfigurationError
from lockstep.experiment import new_run_folder, train

ROOT = Path(__file__).parents[1]


def command(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_heads=3", "num_heads=3, d_model=64"),
        ("model.d_model=true", "option model.d_model=True: input should be a valid integer"),
        ("model.dropout=1.0", "option model.dropout=1.0: input should be less than 1"),
        ("model.dropout=0.999999", "model: dropout is a probability, 0 <= p < 1, and leaves one entry in 65,536; got 0.999999"),
        ("model.attention_dropout=0.999999", "model: dropout is a probability"),
        ("model.norm=post_norm", "option model.norm=post_norm: input should be 'post' or 'pre'"),
        ("seed=abc", "option seed=abc: input should be a valid integer"),
        ("seed=-1", "option seed=-1: input should be greater than or equal to 0"),
        ("+model.head=2", "unknown option model.head; did you mean model.num_heads?"),
        ("+trainer.max_step=2", "unknown option trainer.max_step; did you mean trainer.max_steps?"),
        ("+data.maxlength=2", "unknown option data.maxlength; did you mean data.max_length?"),
        ("+optimizer.learning_rate=1", "unknown option optimizer.learning_rate"),
        ("+attention.heads=2", "unknown option attention.heads"),
        ("optimizer.lr=fast", "option optimizer.lr=fast: input should be a valid number"),
        ("optimizer.lr=-1.0", "optimizer: Invalid learning rate: -1.0"),
        ("data.symbols=1", "too few different sequences"),
        ("data.min_length=9", "data: 1 <= min_length <= max_length"),
        ("data.test_size=1", "the test split has 1 example; at least 2"),
        (
            "attention._target_=lockstep.attention.fused.Fusd",
            "no Fusd in lockstep.attention.fused; there are FusedAttention",
        ),
        ("attention._target_=torch.nn.Linear", "is not a lockstep.attention.MultiHeadAttention"),
        ("attention._target_=nowhere.Attention", "no module named nowhere"),
    ],
)
def test_refused_before_any_work(tmp_path, override, message):
    with pytest.raises(Exception, match=message.replace("?", r"\?")) as refusal:
        train(compose(*TINY, f"output={tmp_path}", override))
    assert "\n" not in str(refusal.value) or not isinstance(refusal.value, ConfigurationError)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["model.head=2"], "error: unknown option model.head; did you mean model.num_heads?"),
        (["attention=fusd"], "error: attention=fusd does not exist; did you mean attention=fused?"),
        (["+model.heads=2"], "error: unknown option model.heads; did you mean model.num_heads?"),
        (["data.max_length=[1"], "error: "),
        (["model=7"], "error: model=7 does not exist; there are model=small"),
    ],
)
def test_command_line_answers_in_one_line(tmp_path, arguments, line):
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not any(tmp_path.iterdir())


def test_c37_the_command_line_wins_and_is_what_is_saved(tmp_path):
    train(compose(*TINY, f"output={tmp_path}", "trainer.max_steps=2", "model.num_heads=1"))
    (folder,) = tmp_path.iterdir()
    assert "num_heads: 1" in (folder / "config.yaml").read_text()


@pytest.mark.slow
def test_a_users_class_plugs_in_by_a_file_beside_them(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from lockstep.attention.fused import FusedAttention\n"
        "class Mine(FusedAttention):\n"
        "    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0, temper=1.0):\n"
        "        if temper > 1: 1 / 0\n"
        "        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)\n"
    )
    options = [*TINY, "trainer.max_steps=2", "output=out", "attention._target_=mine.Mine", "~attention.arithmetic"]
    done = command(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run folder: out/tiny-" in done.stdout
    assert "\r" not in done.stdout + done.stderr
    broken = command(*options, "+attention.temper=2.0", cwd=tmp_path)
    assert broken.returncode == 1
    assert "mine.py" in broken.stderr
    assert broken.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    (tmp_path / "mine.py").write_text("import not_installed_at_all\n")
    assert "No module named 'not_installed_at_all'" in command(*options, cwd=tmp_path).stderr


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    folders = {new_run_folder(tmp_path, "copy-fused") for _ in range(5)}
    assert len(folders) == 5
    assert all(folder.is_dir() for folder in folders)
