"""Translate lines: ``python scripts/translate.py checkpoint=outputs/RUN < source.txt > target.txt``."""

from pathlib import Path
from typing import Any

from lockstep.command_line import run


def job(config: dict[str, Any]) -> int:
    from lockstep.standard_streams import translate

    translate(config)
    return 0


if __name__ == "__main__":
    run(Path(__file__).resolve().parents[1] / "conf", "translate", job, log="stderr")
