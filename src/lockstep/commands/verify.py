"""From a configuration to a certificate, printed and saved: what ``scripts/verify.py`` runs."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.attention import Arithmetic
from lockstep.base.errors import ConfigurationError
from lockstep.base.files import write_whole
from lockstep.base.terminal import say
from lockstep.commands.options import parse
from lockstep.verification.calling import NoSuchOption
from lockstep.verification.certificate import ADAPTED
from lockstep.verification.foreign import NoSuchArgument, NoSuchTarget
from lockstep.verification.judge import verify

RESERVED = ("null", "true", "false", "inf", "nan")


@dataclass(frozen=True)
class VerifyOptions:
    """Everything ``scripts/verify.py`` can be told."""

    target: str | None
    arguments: dict[str, Any]
    conventions: dict[str, Any]
    thorough: bool
    save: str | None
    overwrite: bool
    output: str | None
    arithmetic: Arithmetic
    attention: dict[str, Any] | None = None


def certify(config: dict[str, Any], conf: Path) -> int:
    """Verify what the configuration names, print the certificate, and write what is asked for.

    Args:
        config: of ``conf/verify.yaml``.
        conf: the folder of configurations, into whose ``attention`` a class is saved.

    Returns:
        The exit status: 0 equivalent, 1 different, 2 could not tell.

    Raises:
        ConfigurationError: an option, before any work.
        InputError: the target's file or module is not there, or cannot be imported.
        OSError: a file cannot be written.
    """
    options = parse(VerifyOptions, config)
    target, arguments = options.target, options.arguments
    if options.attention is not None:
        target, arguments = str(options.attention["_target_"]), {**options.attention, **arguments}
        del arguments["_target_"]
    if (options.target is None) == (options.attention is None):
        raise ConfigurationError("what to verify? either target=my_attention.py:MyClass, or attention=fused")
    assert target is not None
    saved, output = _configuration(options, conf), _certificate(options)
    try:
        certificate = verify(target, arguments, options.conventions, thorough=options.thorough)
    except (NoSuchOption, NoSuchArgument, NoSuchTarget) as error:
        raise ConfigurationError(str(error)) from error
    say(certificate.table())
    if output is not None:
        certificate.save(output)
        say(f"Certificate: {output}")
    if saved is None:
        return certificate.exit_status
    if certificate.verdict == "equivalent":
        write_whole(saved, certificate.yaml())
        lacks = certificate.conventions and certificate.conventions.untrainable
        advice = f"Train it with: python scripts/train.py attention={options.save}"
        say(f"Written: {saved}\n{f'It {lacks}, and so cannot be trained here.' if lacks else advice}")
    else:
        say(f"Not saved as {options.save}: that takes an equivalent class, and the verdict is: {certificate.verdict}")
    return certificate.exit_status


def _configuration(options: VerifyOptions, conf: Path) -> Path | None:
    """The file that ``save`` writes."""
    name = options.save
    if name is None:
        return None
    # A choice on the command line is to be read as a word.
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name) or name.lower() in RESERVED:
        raise ConfigurationError(f"option save={name} must be a name: a letter, then letters, digits, - and _")
    path = conf / "attention" / f"{name}.yaml"
    if os.path.lexists(path):
        if ADAPTED not in path.read_text(encoding="utf-8", errors="replace"):
            raise ConfigurationError(
                f"option save={name}: {path} was not written by verify, and stays; take another name"
            )
        if not options.overwrite:
            raise ConfigurationError(f"option save={name}: {path} exists; take another name, or say overwrite=true")
    _require_writable(path, "save")
    return path


def _certificate(options: VerifyOptions) -> Path | None:
    """The file that ``output`` names."""
    if options.output is None:
        return None
    path = Path(os.path.realpath(options.output))
    path = path / "certificate.json" if path.is_dir() else path
    if path.is_file() and path.suffix != ".json" and not options.overwrite:
        raise ConfigurationError(f"option output={options.output} exists and is no certificate; say overwrite=true")
    _require_writable(path, "output")
    return path


def _require_writable(path: Path, option: str) -> None:
    place = path if path.exists() and not path.is_file() else path.parent  # a device, or a folder for a new file
    if not place.exists():
        raise ConfigurationError(f"option {option}: there is no folder {place}")
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, f"option {option}: not allowed to write", str(place))
