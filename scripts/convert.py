"""Convert a checkpoint to another attention: ``python scripts/convert.py checkpoint=A attention=per_head output=B``."""

from pathlib import Path
from typing import Any

from lockstep.command_line import run


def job(config: dict[str, Any]) -> int:
    from lockstep.experiment import convert

    convert(config)
    return 0


if __name__ == "__main__":
    run(Path(__file__).resolve().parents[1] / "conf", "convert", job)
