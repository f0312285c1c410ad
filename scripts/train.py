"""Train one variant: ``python scripts/train.py attention=fused``."""

from pathlib import Path
from typing import Any

from lockstep.command_line import run


def job(config: dict[str, Any]) -> dict[str, Any]:
    from lockstep.experiment import train

    return train(config)


if __name__ == "__main__":
    run(Path(__file__).resolve().parents[1] / "conf", "train", job, sweeps=True)
