"""Is this attention right, and if not, what is wrong? ``python scripts/verify.py target=my_attention.py:MyClass``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run

CONF = Path(__file__).resolve().parents[1] / "conf"


def job(config: dict[str, Any]) -> int:
    from lockstep.commands.verify import certify

    return certify(config, CONF)


COMMAND = Command(CONF, "verify", job, judges=True, open_nodes=("arguments", "conventions"), paths=("target", "output"))

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
