"""The scripts' commands, called in this process as a shell would call them."""

import importlib.util
from functools import cache
from pathlib import Path

from lockstep.commands.command_line import Command, run

SCRIPTS = Path(__file__).parents[1] / "scripts"


@cache
def command(name: str) -> Command:
    """What ``scripts/NAME.py`` runs."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.COMMAND


def called(name: str, *words: str) -> int:
    """The exit status of a script with these words."""
    return run(command(name), words)
