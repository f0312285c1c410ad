"""The entry of every script: Hydra composes the configuration, mistakes become one line, exit statuses are kept."""

import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lockstep.errors import CheckpointError, Interrupted, NonFiniteError

if TYPE_CHECKING:  # what takes seconds to import is imported where it is needed
    from lockstep.sweep import Sweep

FAILURE, USAGE_ERROR = 1, 2
Job = Callable[[dict[str, Any]], int | Mapping[str, Any]]


def run(
    config_path: Path, config_name: str, job: Job, *, sweeps: bool = False, log: Literal["stdout", "stderr"] = "stdout"
) -> NoReturn:
    """Compose ``config_name`` from the command line, call the job with plain values, and exit with its status.

    Hydra's own printing of errors is replaced: it shows a stack, or advises ``+key=``, which hides typing errors.
    A run ended by Ctrl-C exits with 130, by SIGTERM with 143.

    Args:
        config_path: the folder of configurations.
        config_name: the one to compose.
        job: returns an exit status, or a run's metrics.
        sweeps: with ``-m``, each job's ``output`` is the sweep's folder and its ``name`` tells the swept options, the
            metrics make a table, and a job that fails leaves the others to run.
        log: where the log goes; not to standard output where that holds the job's results.
    """
    from lockstep.configuration import ConfigurationError

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that it is printed here
    sys.path.insert(0, os.getcwd())  # a class in a file beside the user is found
    logging.getLogger("lockstep").addHandler(_TerminalHandler(log))
    status = 0
    sweep: Sweep | None = None

    def attempt(values: dict[str, Any]) -> int | Mapping[str, Any] | str:
        """The job's result, or a sentence on what went wrong."""
        nonlocal status
        try:
            return job(values)
        except ConfigurationError as error:
            status, message = USAGE_ERROR, str(error)
        except (CheckpointError, NonFiniteError, OSError) as error:
            status, message = FAILURE, str(error)
        except Exception as error:
            if sweep is None:
                raise
            traceback.print_exc()
            status, message = FAILURE, f"{type(error).__name__}: {error}"
        print(f"error: {message}", file=sys.stderr)
        return message

    @hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)
    def composed(config: DictConfig) -> None:
        nonlocal status, sweep
        try:
            values = _plain(config)
        except OmegaConfBaseException as error:
            _refuse(_in_one_line(error, config_path, config_name))
        told = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
        choices: dict[str, str] = {}
        if isinstance(values.get("resume"), str):
            from lockstep.runs import options_of_run

            try:
                values = options_of_run(values, [override.key_or_group for override in told])
            except CheckpointError as error:
                _refuse(str(error), FAILURE)
        if sweeps and HydraConfig.get().mode == RunMode.MULTIRUN:
            from lockstep.sweep import Sweep

            sweep = sweep or Sweep(Path(HydraConfig.get().sweep.dir))
            choices = {
                o.key_or_group: (o.input_line or "").partition("=")[2] for o in told if o.key_or_group in _swept()
            }
            values |= {"output": str(sweep.folder), "name": _job_name(HydraConfig.get().job.num, choices)}
        outcome = attempt(values)
        if isinstance(outcome, int):
            status = max(status, outcome)
        elif sweep is not None:
            sweep.add(choices, outcome)

    try:
        _check_choices(config_path)
        composed()
    except Interrupted as interrupted:
        status = 128 + interrupted.signum
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 128 + signal.SIGINT
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(_in_one_line(error, config_path, config_name))
    if sweep is not None:
        sweep.report()
    sys.exit(status)


def _plain(config: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _job_name(number: int, choices: Mapping[str, str]) -> str:
    """A folder's name for one job of a sweep, such as ``0-attention-per_head-seed-1``."""
    words = [str(number), *(f"{option}-{value}" for option, value in choices.items())]
    return re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")


def _swept() -> set[str]:
    """Options that the command line gives several values."""
    overrides = OverridesParser.create().parse_overrides([argument for argument in sys.argv[1:] if "=" in argument])
    return {override.key_or_group for override in overrides if override.is_sweep_override()}


def _refuse(message: str, status: int = USAGE_ERROR) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def _check_choices(config_path: Path) -> None:
    """Refuse a choice that is not a name, at which Hydra only raises a ValueError."""
    from lockstep.configuration import nearest

    for argument in sys.argv[1:]:
        group, _, choice = argument.partition("=")
        if (config_path / group).is_dir() and re.fullmatch(r"[\d.]+|true|false", choice):
            options = sorted(path.stem for path in (config_path / group).glob("*.yaml"))
            _refuse(f"{argument} does not exist{nearest(choice, options, f'{group}=')}")


def _in_one_line(error: Exception, config_path: Path, config_name: str) -> str:
    from lockstep.configuration import as_argument, nearest

    key = getattr(error.__cause__ or error, "full_key", None)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).partition("/")
        return f"{group}={choice} does not exist{nearest(choice, error.options, f'{group}=')}"
    first_line = str(error).strip().splitlines()[0]
    if isinstance(error, OverrideParseException):
        option, _, value = error.override.partition("=")
        return f"argument {error.override} needs quotes, for Hydra and for the shell: {as_argument(option, value)}"
    if isinstance(error, MissingMandatoryValue):
        return f"option {key} is missing; write {key}=..."
    if "Ambiguous value for argument" in first_line:
        return f"{first_line}: several values take -m, which runs each"
    if isinstance(error, ConfigCompositionException) and key and "Could not override" in first_line:
        return f"unknown option {key}{nearest(key, _known_options(config_path, config_name))}"
    return first_line


def _known_options(config_path: Path, config_name: str) -> list[str]:
    """Dotted names of all options under the groups chosen on the command line."""
    parser = OverridesParser.create()
    chosen = [a for a in sys.argv[1:] if "=" in a and (config_path / a.partition("=")[0]).is_dir()]
    chosen = [o.input_line or "" for o in parser.parse_overrides(chosen) if not o.is_sweep_override()]
    with hydra.initialize_config_dir(str(config_path), version_base="1.3"):
        config = hydra.compose(config_name, chosen)
    return list(_dotted(OmegaConf.to_container(config, resolve=False)))


def _dotted(node: Any, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return []
    names = []
    for key, value in node.items():
        names += [f"{prefix}{key}", *_dotted(value, f"{prefix}{key}.")]
    return names


class _TerminalHandler(logging.Handler):
    """Prints to whatever the stream is at the time: a progress bar puts itself in its place."""

    def __init__(self, stream: str) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=getattr(sys, self._stream), flush=True)
