"""The entry of every script: signals, mistakes in one line, exit statuses.

Imports nothing that takes time, so that signals are heard while all the rest is imported.
"""

import argparse
import logging
import re
import signal
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from lockstep.base.errors import (
    AttentionError,
    CheckpointError,
    ConfigurationError,
    InputError,
    Interrupted,
    NonFiniteError,
)
from lockstep.base.terminal import Stream, TerminalHandler, hang_up, open_closed, say

if TYPE_CHECKING:
    from lockstep.commands.composition import Composer

# Verdicts are 0, 1 and 2; the others as sysexits.h has them.
COULD_NOT_TELL = 2
REFUSED, UNUSABLE, BUG, FILE = 64, 65, 70, 74
Job = Callable[[dict[str, Any]], int | Mapping[str, Any]]


@dataclass(frozen=True)
class Command:
    """A script's command.

    Args:
        folder: of configurations.
        name: of the configuration, and of the script.
        job: what it does with plain values; returns an exit status, or a run's metrics.
        sweeps: with ``-m``, each job's ``output`` is the sweep's folder and its ``name`` tells the swept options, the
            metrics make a table, and a job that fails leaves the others to run.
        judges: its exit status is a verdict, and code of the user that fails cannot be judged.
        log: where the log goes; not to standard output where that holds the job's results.
        open_nodes: see :class:`lockstep.commands.composition.Composer`.
        paths: likewise.
    """

    folder: Path
    name: str
    job: Job
    sweeps: bool = False
    judges: bool = False
    log: Stream = "stdout"
    open_nodes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def run(command: Command, words: Sequence[str]) -> int:
    """Do what the words of a command line say, print what goes wrong in one line, and return the exit status.

    0, 1 and 2 are verdicts, and 0 success; 64 a refused option, 65 unusable input, 70 a bug, 74 a file that cannot be
    read or written, 130 and 143 the end by SIGINT and SIGTERM.
    """
    open_closed()
    handler = TerminalHandler(command.log)
    logging.getLogger("lockstep").addHandler(handler)
    received: list[int] = []
    try:
        with _interruptible(received):
            status = _run(command, words)
            if received:  # something swallowed it
                raise Interrupted(received[0])
            return status
    except BaseException as error:
        # What a library makes of an exception in the middle of its import is anybody's guess.
        stopped = Interrupted(received[0]) if received and not isinstance(error, Interrupted) else error
        status, sentence = _ending(stopped, command)
        _complain(sentence)
        return status
    finally:
        logging.getLogger("lockstep").removeHandler(handler)


@contextmanager
def _interruptible(received: list[int]) -> Iterator[None]:
    """SIGINT and SIGTERM raise, until something with more to lose listens itself.

    What a command was started to ignore, as by nohup or in the background, it ignores.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        raise Interrupted(signum)

    heeded = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop) for signum in heeded}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _run(command: Command, words: Sequence[str]) -> int:
    from lockstep.commands.composition import Composer

    composer = Composer(command.folder, command.name, command.open_nodes, command.paths)
    parsed = _parsed(command, words, composer)
    if parsed.help:
        say(_help(command, composer))
        return 0
    if parsed.cfg:
        say(composer.text(parsed.overrides).rstrip())
        return 0
    jobs = composer.jobs(parsed.overrides, parsed.multirun)
    if not parsed.multirun:
        outcome = command.job(_of_run(jobs[0].values, jobs[0].told))
        return outcome if isinstance(outcome, int) else 0
    from lockstep.commands.sweep import Sweep

    if any(job.values.get("resume") is not None for job in jobs):
        raise ConfigurationError("resume= goes on with one run, without -m; a sweep begins new ones")
    sweep = Sweep.begin(Path(jobs[0].values["output"]), [job.words for job in jobs])
    statuses = [0]
    try:
        for number, job in enumerate(jobs):
            try:
                values = _of_run(job.values, job.told)
                named = {"output": str(sweep.folder), "name": _job_name(number, job.choices)}
                outcome = command.job({**values, **named})
                assert isinstance(outcome, Mapping)
                sweep.add(job.choices, outcome)
            except BaseException as error:
                status, sentence = _ending(error, command)
                sweep.add(job.choices, sentence)
                if not isinstance(error, Exception):
                    raise
                _complain(sentence)
                statuses.append(status)
    finally:
        sweep.report()
    return max(statuses)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; the flags are --help, --cfg job and -m")


def _parsed(command: Command, words: Sequence[str], composer: "Composer") -> argparse.Namespace:
    """Flags, named as Hydra names them, and the other words, which are overrides.

    Raises:
        ConfigurationError: a flag that does not exist, or not here.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("overrides", nargs="*")
    parsed, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        parser.error(f"{unknown[0]} is no flag{composer.without_dashes(unknown[0])}")
    if parsed.multirun and not command.sweeps:
        raise ConfigurationError(f"{command.name} runs once: -m is for scripts/train.py, and sweeps over options")
    for first, second in pairwise(parsed.overrides):
        if re.fullmatch(r"[\w.]+", first) and "=" not in second:
            raise ConfigurationError(f"{first} {second}: the = is missing; write {first}={second}")
    return parsed


def _help(command: Command, composer: "Composer") -> str:
    sweeps = "\n-m, first, runs every combination of options with several values: seed=0,1" if command.sweeps else ""
    return (
        f"python scripts/{command.name}.py option=value ...\n\n{composer.help()}\n{sweeps}\n"
        f"--cfg job shows the configuration that the other words make, and runs nothing.\n"
        "Exit status: 0 done, 64 a refused option, 65 unusable input, 70 a bug, 74 a file that cannot be read or "
        f"written, 130 and 143 stopped{'; 0, 1, 2 are verdicts' if command.judges else ''}."
    )


def _of_run(values: dict[str, Any], told: Sequence[str]) -> dict[str, Any]:
    """The options of the run that is gone on with, where one is."""
    if not isinstance(values.get("resume"), str):
        return values
    from lockstep.commands.run_folder import options_of_run

    return options_of_run(values, told)


def _job_name(number: int, choices: Mapping[str, str]) -> str:
    """A folder's name for one job of a sweep, such as ``0-attention-per_head-seed-1``."""
    words = [str(number), *(f"{option}-{value}" for option, value in choices.items())]
    return re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")[:100]


def _ending(error: BaseException, command: Command) -> tuple[int, str]:
    """Exit status and sentence for what ended a job; the traceback of a bug is printed."""
    said = str(error).strip() or type(error).__name__
    if isinstance(error, Interrupted):
        kept = f": {error}" if str(error) else ""
        return 128 + error.signum, f"stopped by {signal.Signals(error.signum).name}{kept}"
    if isinstance(error, KeyboardInterrupt):  # before anything of this project's listened
        return 128 + signal.SIGINT, "stopped by SIGINT"
    if isinstance(error, ConfigurationError):
        unjudged = isinstance(error, AttentionError) or _failed_for_the_user(error, command)
        return (COULD_NOT_TELL if command.judges and unjudged else REFUSED), said
    if isinstance(error, CheckpointError | InputError | NonFiniteError):
        return UNUSABLE, said
    if place := _users_code(error, command):
        return COULD_NOT_TELL if command.judges else UNUSABLE, f"{place}: {type(error).__name__}: {said}"
    if isinstance(error, BrokenPipeError):
        hang_up("stdout")
        return FILE, "standard output was closed"
    if isinstance(error, OSError):
        return FILE, f"{error.filename}: {error.strerror}" if error.filename and error.strerror else said
    if isinstance(error, MemoryError) or re.search("alloc.*memory|out of memory|Storage size calculation", said):
        return UNUSABLE, f"more memory is asked for than there is: {said.splitlines()[0]}"
    say("".join(traceback.format_exception(error)).rstrip(), "stderr")
    return BUG, f"{type(error).__name__}: this is a bug of Lockstep's; please report it, with the lines above"


def _failed_for_the_user(error: BaseException, command: Command) -> bool:
    """Whether the error says what code of the user's raised."""
    cause = error.__cause__
    return cause is not None and (_users_code(cause, command) is not None or _failed_for_the_user(cause, command))


def _users_code(error: BaseException, command: Command) -> str | None:
    """File and line in code that is neither this project's nor a library's, where the error came through such code."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    own = [str(Path(__file__).parents[1]), command.job.__code__.co_filename]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        ours = any(path.is_relative_to(place) for place in (*libraries, *own))
        if not ours and path.is_file() and not {"site-packages", "dist-packages"} & set(path.parts):
            return f"{frame.filename}:{frame.lineno}"
    return None


def _complain(sentence: str) -> None:
    say("error: " + sentence.replace("\n", "\\n"), "stderr")
