"""What a run was made with: the command, the versions of what it rests on, and the commit of this code."""

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from lockstep.base.files import read_record, write_whole

LIBRARIES = ("torch", "lightning", "tokenizers", "datasets", "numpy", "hydra-core", "sacrebleu")
NAME = "environment.json"
SOURCE = Path(__file__).resolve().parents[1]


def add_session(folder: Path) -> None:
    """Add what this process is to ``environment.json`` of a run folder: a list, with an entry for each session."""
    before = read_record(folder / NAME)
    sessions = [*before, session()] if isinstance(before, list) else [session()]
    write_whole(folder / NAME, json.dumps(sessions, indent=2) + "\n")


def session() -> dict[str, Any]:
    """What this process is."""
    found = {name: _version(name) for name in LIBRARIES}
    return {"command": sys.argv, "commit": commit(), "versions": {"python": platform.python_version(), **found}}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit that this code is of, ``-dirty`` where it was changed since; None where that cannot be told."""
    if _git("rev-parse", "--show-prefix") != "src/lockstep/":  # installed, or somebody else's repository
        return None
    return _git("-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(*arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return found.stdout.strip()
