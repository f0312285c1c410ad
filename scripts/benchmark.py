"""Compare the variants' parameters and speed: ``python scripts/benchmark.py num_heads=32``."""

import sys
from pathlib import Path
from typing import Any

from lockstep.commands.command_line import Command, run


def job(config: dict[str, Any]) -> int:
    from lockstep.commands.benchmark import benchmark

    benchmark(config)
    return 0


COMMAND = Command(Path(__file__).resolve().parents[1] / "conf", "benchmark", job)

if __name__ == "__main__":
    sys.exit(run(COMMAND, sys.argv[1:]))
