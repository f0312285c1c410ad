"""The entry of every script: Hydra composes the configuration, mistakes become one line, exit statuses are kept."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

USAGE_ERROR = 2


def run(config_path: Path, config_name: str, job: Callable[[dict[str, Any]], int]) -> NoReturn:
    """Compose ``config_name`` from the command line, call the job with plain values, and exit with its status.

    Hydra's own printing of errors is replaced: it shows a stack, or advises ``+key=``, which hides typing errors.
    """
    from lockstep.configuration import ConfigurationError

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, so that it is printed here
    sys.path.insert(0, os.getcwd())  # a class in a file beside the user is found
    _log_to_terminal()
    status = 0

    @hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)
    def composed(config: DictConfig) -> None:
        nonlocal status
        values = OmegaConf.to_container(config, resolve=True)
        assert isinstance(values, dict)
        try:
            status = max(status, job({str(key): value for key, value in values.items()}))
        except ConfigurationError as error:
            _refuse(str(error))

    try:
        composed()
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(_in_one_line(error, config_path, config_name))
    sys.exit(status)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def _in_one_line(error: Exception, config_path: Path, config_name: str) -> str:
    from lockstep.configuration import nearest

    cause = error.__cause__ or error
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).partition("/")
        return f"{group}={choice} does not exist{nearest(choice, error.options, f'{group}=')}"
    first_line = str(error).strip().splitlines()[0]
    key = getattr(cause, "full_key", None)
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
    """Prints to whatever standard output is at the time: a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def _log_to_terminal() -> None:
    logging.getLogger("lockstep").addHandler(_TerminalHandler())
