"""A running TensorBoard server is asked for what a user would see."""

import json
import shlex
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

from conftest import TINY, compose

from lockstep.commands.run_folder import tensorboard_command
from lockstep.commands.train import train


@contextmanager
def tensorboard(logdir):
    """The address of a TensorBoard server on a free port, started as a run tells its user to."""
    _, *arguments = shlex.split(tensorboard_command(logdir))
    command = [sys.executable, "-m", "tensorboard.main", *arguments, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        announced = next(line for line in server.stderr if " at http" in line)
        yield announced.split(" at ")[1].split()[0]
    finally:
        server.terminate()
        server.communicate()


def ask(address, plugin, question=None):
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(f"{address}data/plugin/{plugin}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_for(question, until):
    """The server reads the files while it answers."""
    for _ in range(60):
        if until(answer := question()):
            break
        time.sleep(0.5)
    return answer


def test_curves_of_two_variants_overlay_and_every_head_is_there(tmp_path):
    for name in ("per_head", "fused"):
        options = ["trainer.max_steps=6", "trainer.val_check_interval=3", "attention_maps_every=3"]
        train(compose(*TINY, f"output={tmp_path}", f"name=copy-{name}", f"attention={name}", *options))
    with tensorboard(tmp_path) as address:
        scalars = wait_for(lambda: ask(address, "scalars/tags"), until=lambda runs: len(runs) == 2)
        assert [run.rsplit("-", 6)[0] for run in sorted(scalars)] == ["copy-fused", "copy-per_head"]
        first, second = (set(tags) for tags in scalars.values())
        assert first == second
        assert {
            "train/loss",
            "train/target_tokens_per_second",
            "validation/loss",
            "validation/token_accuracy",
            "validation/exact_match",
            "optimizer/learning_rate",
            "optimizer/gradient_norm",
        } <= first
        curves = [ask(address, f"scalars/scalars?run={run}&tag=train/loss") for run in scalars]
        assert [[step, value] for _, step, value in curves[0]] == [[step, value] for _, step, value in curves[1]]
        assert len(curves[0]) == 6
        images = ask(address, "images/tags")
        assert all(
            {"attention/encoder", "attention/decoder", "attention/cross"} <= set(tags) for tags in images.values()
        )
        for run in images:
            drawn = ask(address, f"images/images?run={run}&tag=attention/cross&sample=0")
            assert [picture["step"] for picture in drawn] == [0, 3, 6]
        assert all("samples/text_summary" in tags for tags in ask(address, "text/tags").values())
        names = {info["name"] for info in ask(address, "hparams/experiment", {})["hparamInfos"]}
        assert {"model/d_model", "optimizer/lr", "seed"} <= names
