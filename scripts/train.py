"""Train one variant: ``python scripts/train.py attention=fused``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run


def job(config: dict[str, Any]) -> dict[str, Any]:
    from lockstep.commands.train import train

    return train(config)


CONF = Path(__file__).resolve().parents[1] / "conf"
COMMAND = Command(CONF, "train", job, sweeps=True, paths=("resume", "output", "data.path"))

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
