"""Train variants side by side and judge them: ``python scripts/compare.py``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run

CONF = Path(__file__).resolve().parents[1] / "conf"


def job(config: dict[str, Any]) -> int:
    from lockstep.commands.compare import compare

    return compare(config, CONF)


COMMAND = Command(CONF, "compare", job, judges=True, paths=("output",))

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
