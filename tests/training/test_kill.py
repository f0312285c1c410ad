"""Killed at any moment, a run goes on to the same bits."""

import json
import multiprocessing
import random
import time

import pytest
from runs import config, newest, points, same, state

from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import train
from lockstep.training.checkpoints import newest_checkpoint, read_checkpoint

OPTIONS = ["trainer.max_steps=60", "trainer.val_check_interval=7", "checkpoint_every=3", "model.attention_dropout=0.1"]


def start(configuration):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lockstep.commands.train"])
    process = context.Process(target=train, args=(configuration,))
    process.start()
    return process


@pytest.mark.slow
def test_ten_runs_killed_at_random_moments_end_bit_identical(tmp_path):
    began = time.monotonic()
    start(config(tmp_path / "import", "trainer.max_steps=1")).join()
    began = time.monotonic()
    start(config(tmp_path / "whole", *OPTIONS)).join()
    duration = time.monotonic() - began
    whole = newest(tmp_path / "whole")
    draw, survived = random.Random(1), []
    for number in range(10):
        process = start(config(tmp_path / str(number), *OPTIONS))
        while not list((tmp_path / str(number)).glob("*/checkpoints/last.ckpt")):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, duration / 2))
        process.kill()
        process.join()
        folder = newest(tmp_path / str(number))
        # Between two renamings there may be no last.ckpt, but always a previous one.
        survived.append(read_checkpoint(newest_checkpoint(folder))["global_step"])
        resumed = start(options_of_run({"resume": str(folder)}, []))
        resumed.join()
        assert resumed.exitcode == 0
        ours, theirs = state(folder), state(whole)
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "loops", "DataModule", "callbacks"):
            assert same(ours[key], theirs[key]), f"run {number}, saved at step {survived[-1]}: {key}"
        results = [json.loads((path / "metrics.json").read_text()) for path in (folder, whole)]
        for name in ("test/loss", "weights_sha256", "train/steps"):
            assert results[0][name] == results[1][name]
        ours, theirs = points(folder), points(whole)
        assert all(ours[tag] == theirs[tag] for tag in theirs if "per_second" not in tag)
    assert len(set(survived)) > 3
    assert min(survived) < 60
