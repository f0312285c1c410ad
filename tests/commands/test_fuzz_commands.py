"""Whatever is typed, each command does it, or says in one line why not.

``LOCKSTEP_FUZZ=1000 python -m pytest -m slow tests/commands/test_fuzz_commands.py`` runs as many; a failure names its
number.
"""

import os
import random
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch
from conftest import CONF, TINY

from lockstep.commands.command_line import FILE, REFUSED, UNUSABLE
from lockstep.commands.composition import Composer
from scripts import called, command

COUNT = int(os.environ.get("LOCKSTEP_FUZZ", "60"))
SECONDS = 120
SMALL = [*TINY, "trainer.max_steps=2", "trainer.val_check_interval=2", "data.vocabulary_size=300"]
BASE = {
    "train": [w for w in SMALL if "vocabulary" not in w],
    "compare": [w for w in SMALL if not w.startswith(("attention_maps", "trainer.val_ch", "data.vocab"))]
    + ["compare.recorded_steps=2"],
    "verify": ["attention=fused", "thorough=false"],
    "convert": ["checkpoint=RUN/checkpoints/last.ckpt", "attention=per_head", "output=out.ckpt"],
    "translate": ["checkpoint=RUN", "search.max_length=5"],
    "benchmark": ["d_model=8", "num_heads=2", "batch_size=2", "length=3", "rounds=1", "repeats=1"],
}
NUMBERS = ["0", "1", "2", "3", "7", "64", "-1", "1.5", "1e-3", ".nan", ".inf", "-.inf", "2147483648", "9" * 30, "1e400"]
WORDS = [
    "true",
    "null",
    "",
    "x",
    "fused",
    "per_head",
    "copy",
    "adam",
    "???",
    "ü",
    "数据",
    "a b",
    "a=b",
    "'a b'",
    '"',
    "'",
]
WORDS += [
    "[",
    "]",
    "[]",
    "[a",
    "[1,2]",
    "[a b,c=d]",
    "[[[1]]]",
    "{",
    "{}",
    "{a: 1}",
    "{_target_: builtins.dict}",
    "a,b",
]
WORDS += [
    "range(3)",
    "${seed}",
    "${nothing}",
    "${oc.env:HOME}",
    "${",
    "\\",
    "#",
    "%",
    "\x1b[31m",
    "\u202e",
    "a\nb",
    "x" * 300,
]
WORDS += [
    "nowhere",
    "../x",
    "/dev/null",
    "/proc/nowhere/x",
    "RUN",
    "RUN/config.yaml",
    ".",
    "/",
    "~",
    "json.loads",
    "os.system",
]
WORDS += ["torch.nn.Linear", "torch.optim.LBFGS", "torch.optim.SparseAdam", "lockstep.attention.fused.FusedAttention"]
STRAY = [
    "--help",
    "--cfg",
    "--cfg job",
    "-m",
    "-x",
    "--",
    "x",
    "=",
    "=1",
    "resume RUN",
    "~seed",
    "~attention",
    "+a=1",
    "++a.b=1",
]
STRAY += [
    "lr=1",
    "epochs=2",
    "device=cuda",
    "+attention.heads=2",
    "~optimizer.lr",
    "attention@x=fused",
    "hydra.run.dir=x",
]


@pytest.fixture(scope="module")
def commands():
    """Of each command the names of its options; everything that a command imports is imported."""

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork of a process with threads at work would wait for them for ever
    names = {}
    for name in BASE:
        names[name] = [*Composer(CONF, name).known([]), *(f"{node}.x" for node in command(name).open_nodes)]
    yield names
    torch.set_num_threads(threads)


def forked(folder: Path, name: str, words: list[str]) -> tuple[int, str, str]:
    """The exit status of a command in a process of its own that has imported all before, and what it printed."""
    paths = [folder.with_name(f"{folder.name}.{stream}") for stream in ("out", "err")]
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.chdir(folder)
            for path, stream, number in zip(paths, ("stdout", "stderr"), (1, 2), strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
                setattr(sys, stream, os.fdopen(number, "w", encoding="utf-8"))
            (folder.parent / "lines").write_text("1 2 3\n\n4\n")
            sys.stdin = (folder.parent / "lines").open(encoding="utf-8")
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            status = called(name, *words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, *(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, commands):
    """A run folder."""
    folder = tmp_path_factory.mktemp("trained")
    status, _, errors = forked(folder, "train", BASE["train"])
    assert (status, errors) == (0, "")
    (run,) = (folder / "outputs").iterdir()
    return run


def invocation(number: int, options: dict[str, list[str]]) -> tuple[str, list[str]]:
    """A command and its words, the same whenever the number is."""
    draw = random.Random(number)
    name = draw.choice(sorted(BASE))
    words = list(BASE[name])
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        if draw.random() < 0.15:
            words += draw.choice(STRAY).split(" ")
        else:
            value = draw.choice(NUMBERS if draw.random() < 0.4 else WORDS)
            words.append(f"{draw.choice(options[name])}={value}")
    if draw.random() < 0.1:
        draw.shuffle(words)
    return name, words


@pytest.mark.slow
@pytest.mark.parametrize("number", range(COUNT))
def test_a_random_invocation_runs_or_is_answered_in_one_line(number, commands, trained, tmp_path):
    name, words = invocation(number, commands)
    words = [word.replace("RUN", str(trained)) for word in words]
    before = sorted(trained.rglob("*"))
    folder = tmp_path / "here"
    folder.mkdir()
    status, output, errors = forked(folder, name, words)
    told = f"{name} {words}\n{status}\n{output[-2000:]}\n{errors[-4000:]}"
    judged = {0, 1, 2} if name in ("compare", "verify") else {0}
    assert status in {*judged, REFUSED, UNUSABLE, FILE}, told
    assert "Traceback" not in output + errors, told
    assert "\x1b" not in output + errors, told
    if status in (REFUSED, UNUSABLE, FILE):
        assert errors.splitlines()[-1].startswith("error: "), told
    if status == REFUSED and "-m" not in words:
        assert not any(folder.iterdir()), told
    if not any("resume" in word for word in words):
        assert sorted(trained.rglob("*")) == before, told
