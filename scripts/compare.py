"""Train variants side by side and judge them: ``python scripts/compare.py``."""

from pathlib import Path
from typing import Any

from lockstep.command_line import run

CONF = Path(__file__).resolve().parents[1] / "conf"


def job(config: dict[str, Any]) -> int:
    from lockstep.comparison import compare

    return compare(config, CONF)


if __name__ == "__main__":
    run(CONF, "compare", job)
