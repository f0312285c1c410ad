"""Small whole runs for the tests, and ways to break them off."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import TINY, compose
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.commands.train import train
from lockstep.training.module import TranslationModule

SMALL = [
    *TINY,
    "data.train_size=60",
    "data.validation_size=8",
    "data.test_size=8",
    "batch_tokens=64",
    "model.dropout=0.1",
]


def config(folder, *overrides):
    return compose(*SMALL, f"output={folder}", *overrides)


def run(configuration):
    """Train; the run's folder."""
    train(configuration)
    return newest(configuration["output"])


def newest(output):
    return max(Path(output).iterdir(), key=lambda path: path.stat().st_mtime_ns)


def points(folder):
    """Every logged scalar as TensorBoard shows it: {tag: [(step, value), ...]}."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def state(folder, name="last.ckpt"):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def same(a, b):
    """Equal to the bit, in nested plain data and tensors; times are left out."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a if key != "seconds")
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@contextmanager
def at_step(step, act):
    """Do something in the middle of an optimiser step."""
    original = TranslationModule.training_step

    def training_step(self, batch, batch_index):
        if self.trainer.global_step + 1 == step:
            act()
        return original(self, batch, batch_index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationModule, "training_step", training_step)
        yield


class Crash(Exception):
    """As sudden as can be within a process."""


def crash():
    raise Crash


def send(*signums):
    for signum in signums:
        os.kill(os.getpid(), signum)


def interrupt():
    send(signal.SIGINT)
