"""Convert a checkpoint to another attention: ``python scripts/convert.py checkpoint=A attention=per_head output=B``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run


def job(config: dict[str, Any]) -> int:
    from lockstep.commands.train import convert

    convert(config)
    return 0


COMMAND = Command(Path(__file__).resolve().parents[1] / "conf", "convert", job, paths=("checkpoint", "output"))

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
