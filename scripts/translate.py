"""Translate lines: ``python scripts/translate.py checkpoint=outputs/RUN < source.txt > target.txt``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run


def job(config: dict[str, Any]) -> int:
    from lockstep.commands.translate import translate

    translate(config)
    return 0


CONF = Path(__file__).resolve().parents[1] / "conf"
COMMAND = Command(CONF, "translate", job, log="stderr", paths=("checkpoint", "picture"))

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
