"""Is this attention right, and if not, what is wrong? See conf/verify.yaml for the options."""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lockstep.verification.verdict import verify

CONF = Path(__file__).resolve().parent.parent / "conf"
OPEN = ("arguments", "conventions")  # entries that the user adds


def compose(words: list[str]) -> DictConfig:
    """The configuration with the command line's overrides; writes nothing.

    Raises:
        ValueError: an option that does not exist, or a value that cannot be read.
    """
    known = list(OmegaConf.load(CONF / "verify.yaml"))
    options = sorted({"attention", *(str(name) for name in known)} - {"defaults"})
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        group = key.split(".")[0].lstrip("+~")
        if group not in options or not equals:
            raise ValueError(f"there is no option {key!r}; {_nearest(group, options)}")
        if group in ("target", "output"):
            # A path is taken as it stands: "=", spaces and any letters belong to it.
            value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" if value != "null" else value
        if group == "attention" and not (CONF / "attention" / f"{value}.yaml").is_file():
            own = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
            raise ValueError(f"there is no attention={value}; {_nearest(value, own, 'attention=')}")
        overrides.append(f"{'++' if group in OPEN and '.' in key else ''}{key}={value}")
        try:
            OverridesParser.create().parse_override(overrides[-1])
        except HydraException as error:
            raise ValueError(
                f"{word} cannot be read: {str(error).splitlines()[0]}; quote it as '{key}=\"...\"'"
            ) from None
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("verify", overrides)


def _nearest(given: str, known: list[str], prefix: str = "") -> str:
    nearest = get_close_matches(given, known, 1)
    suffix = "" if prefix else "="
    return f"did you mean {prefix}{nearest[0]}{suffix}?" if nearest else f"there are {', '.join(known)}"


def plain(config: DictConfig) -> dict[str, Any]:
    """A part of the configuration as a plain mapping."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


def main(words: list[str]) -> int:
    """Verify what the command line names; returns the exit status."""
    if {"-h", "--help"} & set(words):
        print((CONF / "verify.yaml").read_text())
        return 0
    try:
        config = compose(words)
        arguments, conventions = plain(config.arguments), plain(config.conventions)
        target = config.target
        if "attention" in config:
            own = plain(config.attention)
            target, arguments = own.pop("_target_"), {**own, **arguments}
        if target is None:
            raise ValueError("nothing to verify: say target=my_attention.py:MyClass, or attention=fused")
        certificate = verify(target, arguments, conventions)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(certificate.table())
    if config.output is not None:
        path = Path(config.output)
        certificate.save(path / "certificate.json" if path.is_dir() else path)
    if config.save is not None and certificate.verdict == "equivalent":
        path = CONF / "attention" / f"{config.save}.yaml"
        path.write_text(certificate.yaml(), encoding="utf-8")
        print(f"Written: {path}\nTrain it with: python scripts/train.py attention={config.save}")
    return certificate.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
