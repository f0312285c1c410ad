"""From the words of a command line to plain configurations, by Hydra; mistakes are one line, and nothing is written.

Hydra's own entry is not used: it makes folders before anything was judged, and shows a stack, or advises ``+key=``,
which hides typing errors.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lockstep.base.errors import ConfigurationError
from lockstep.base.hints import MEANT, as_argument, as_list, meant, nearest
from lockstep.commands.renames import up_to_date


@dataclass(frozen=True)
class Job:
    """One job of a command.

    Attributes:
        values: its configuration, as plain values.
        told: dotted names of the options that the command line gave.
        choices: those of a sweep, with this job's values.
        words: of a command line that makes this job alone.
    """

    values: dict[str, Any]
    told: list[str]
    choices: dict[str, str]
    words: list[str]


@dataclass(frozen=True)
class Composer:
    """Composes one configuration.

    Args:
        folder: of configurations.
        name: of the one to compose.
        open_nodes: options in which the user makes entries.
        paths: options whose value is taken as it stands: "=", spaces and any letters belong to it. Quoted ones are
            unquoted as all others are.
    """

    folder: Path
    name: str
    open_nodes: Collection[str] = ()
    paths: Collection[str] = ()

    def without_dashes(self, flag: str) -> str:
        """A hint at the option that is written like a flag."""
        option = flag.lstrip("-").partition("=")[0].replace("-", "_")
        known = self.known(())
        if option in known:
            return f": options have no dashes, as in {option}=..."
        return f": options have no dashes{meant(option, known)}" if option in MEANT else ""

    def jobs(self, words: Sequence[str], sweep: bool) -> list[Job]:
        """The configuration under these overrides; of a sweep, one for each combination of the values given.

        Raises:
            ConfigurationError: an option that does not exist, or a value that cannot be read.
        """
        overrides = self._overrides(words)
        swept = [o for o in overrides if o.is_sweep_override()]
        if swept and not sweep:
            key, _, values = str(swept[0].input_line).partition("=")
            or_list = "" if key in self._groups() else f"; a list is written {as_list(key, _items(values))}"
            raise ConfigurationError(
                f"{swept[0].input_line} is several values: -m, first, runs each where a sweep may{or_list}"
            )
        counts = Counter(o.key_or_group for o in overrides)
        if sweep and not swept and (twice := [key for key, count in counts.items() if count > 1]):
            raise ConfigurationError(f"option {twice[0]} is given twice: a sweep takes {twice[0]}=first,second")
        try:
            lists = [[(o, value) for value in o.sweep_string_iterator()] for o in swept]
        except HydraException:
            words = " ".join(o.input_line or "" for o in swept)
            raise ConfigurationError(f"{words}: a sweep takes values, choice(a,b) or range(0,3)") from None
        fixed = [o.input_line or "" for o in overrides if not o.is_sweep_override()]
        told = [o.key_or_group for o in overrides]
        jobs = []
        for combination in itertools.product(*lists):
            alone = [*fixed, *(f"{o.get_key_element()}={value}" for o, value in combination)]
            config = self.compose(alone)
            choices = {o.key_or_group: value for o, value in combination}
            jobs.append(Job(self._plain(config), told, choices, alone))
        return jobs

    def text(self, words: Sequence[str]) -> str:
        """The composed configuration, as YAML."""
        return OmegaConf.to_yaml(self.compose([o.input_line or "" for o in self._overrides(words)]))

    def help(self) -> str:
        """The file of the configuration, whose head says what it is for, and the choices there are."""
        text = (self.folder / f"{self.name}.yaml").read_text(encoding="utf-8")
        text = re.sub(r"^defaults:\n(?:[ #].*\n)*\n?", "", text, flags=re.MULTILINE)
        groups = [(group, self._options(group)) for group in self._groups()]
        choices = [f"{group}={', '.join(options)}" for group, options in groups if options]
        return "\n".join([text.strip(), "", *choices])

    def compose(self, overrides: list[str]) -> DictConfig:
        """The configuration under overrides in Hydra's grammar.

        Raises:
            ConfigurationError: they do not go together, or with it.
        """
        try:
            with self._hydra():
                whole = hydra.compose(self.name, overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError, AttributeError, RecursionError) as error:
            raise ConfigurationError(self._in_one_line(error, overrides)) from None
        HydraConfig.instance().set_config(whole)  # for names made of choices
        return OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])

    @contextmanager
    def _hydra(self) -> Iterator[None]:
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(self.folder), version_base="1.3"):
            yield

    def _plain(self, config: DictConfig) -> dict[str, Any]:
        try:
            values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            raise ConfigurationError(self._in_one_line(error, [])) from None
        assert isinstance(values, dict)
        return {str(key): up_to_date(value) for key, value in values.items()}

    def _overrides(self, words: Sequence[str]) -> list[Override]:
        parsed = (self._parsed(word, words[number:]) for number, word in enumerate(words, start=1))
        return [override for override in parsed if override is not None]

    def _parsed(self, word: str, following: Sequence[str]) -> Override | None:
        """One override; None where it asks for what there is: no choice of a group that has none."""
        option, equals, value = word.partition("=")
        deletes = word.startswith("~")
        group = option.lstrip("+~").partition("@")[0]
        if not (group and (equals or deletes)):
            text = "; the text comes from standard input, as in < FILE" if self.name == "translate" else ""
            raise ConfigurationError(
                f"'{word}' says nothing: an option and its value are one word, as in option=value{text}"
            )
        if option in self.paths and not value.strip("'\""):
            raise ConfigurationError(f"option {option} is empty: it takes a path")
        if option in self.paths and value != "null" and not re.fullmatch(r"(['\"]).*\1", value, re.DOTALL):
            value = QuotedString(literal(value), Quote.single).with_quotes()
        if placed := [place for named, place in self._placed() if option in (named, place.partition(".")[0])]:
            raise ConfigurationError(
                f"{word}: {self.name} takes each of {', '.join(placed)}; '~{placed[-1]}' leaves one out"
            )
        if any(f"{option}.".startswith(f"{node}.") for node in self.open_nodes):
            option = f"++{option}"
        try:
            override = OverridesParser.create().parse_override(f"{option}{equals}{value}")
        except HydraException as error:
            raise ConfigurationError(_unreadable(option, value, following, error)) from None
        if (self.folder / group).is_dir() and group and not deletes and not override.is_sweep_override():
            if group not in self._groups():
                raise ConfigurationError(f"unknown option {option}{meant(option, self.known(()))}")
            choice = override.value()
            if choice is None and group in self._without_choice():
                return None
            if not isinstance(choice, str) or choice not in self._options(group):
                raise ConfigurationError(f"{word} does not exist{self._choice_hint(group, str(choice))}")
        return override

    def _choice_hint(self, group: str, choice: str) -> str:
        for other in MEANT.get(group, []):
            if choice in self._options(other):
                return f"; {other}={choice} is for another script, which its file names"
        return nearest(choice, self._options(group), f"{group}=")

    def _defaults(self) -> list[Any]:
        config = OmegaConf.load(self.folder / f"{self.name}.yaml")
        assert isinstance(config, DictConfig)
        return [entry for entry in config.get("defaults", []) if OmegaConf.is_dict(entry)]

    def _groups(self) -> list[str]:
        """Groups of which one file is chosen."""
        return sorted({str(key).partition("@")[0] for entry in self._defaults() for key in entry})

    def _placed(self) -> list[tuple[str, str]]:
        """Groups of which several files are taken, each with the options that one of them becomes."""
        keys = (str(key).partition("@") for entry in self._defaults() for key in entry)
        return [(group, place) for group, _, place in keys if place]

    def _without_choice(self) -> set[str]:
        return {str(key) for entry in self._defaults() for key, choice in entry.items() if choice is None}

    def _options(self, group: str) -> list[str]:
        return sorted(path.stem for path in (self.folder / group).glob("*.yaml"))

    def _in_one_line(self, error: Exception, overrides: Sequence[str]) -> str:
        key = getattr(error.__cause__ or error, "full_key", None)
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, MissingConfigException) and error.options:
            group, _, choice = str(error.missing_cfg_file).rpartition("/")
            return f"{group}={choice} does not exist{nearest(choice, error.options, f'{group}=')}"
        if isinstance(error, MissingMandatoryValue):
            return f"option {key} is missing; write {key}=..."
        if isinstance(error, ConfigCompositionException):
            named = re.match(r"Could not override '(?P<key>[^']*)'", first_line)
            if named and (known := self.known(overrides)):
                key = key or named["key"]
                return f"unknown option {key}{meant(key, known)}"
        return first_line

    def known(self, overrides: Sequence[str]) -> list[str]:
        """Dotted names of all options under the groups that the overrides choose, and the groups themselves."""
        chosen = [word for word in overrides if word.partition("=")[0] in self._groups()]
        try:
            with self._hydra():
                config = hydra.compose(self.name, chosen)
        except HydraException:
            return []
        return [*self._without_choice(), *_dotted(OmegaConf.to_container(config, resolve=False))]


def _unreadable(option: str, value: str, following: Sequence[str], error: Exception) -> str:
    """What cannot be read, and how it is typed; a list may go on in the words that follow, cut by the shell."""
    plain = re.fullmatch(r"[\w.@/]+", option.lstrip("+~"), re.ASCII)
    if whole := re.match(r"\[[^][{}]*\]", " ".join([value, *following])):
        right = as_list(option, _items(whole[0][1:-1]))
    elif plain and value and value[0] not in "[{" and value[-1] != ",":
        right = as_argument(option, value)
    else:
        comma = f"; a list is written {as_list(option, _items(value))}" if plain and value.endswith(",") else ""
        return f"argument {option}={value} cannot be read: {str(error).splitlines()[0]}{comma}"
    why = "needs quotes, for Hydra and for the shell" if right.startswith("'") else "cannot be read; a list is written"
    return f"argument {option}={value} {why}: {right}"


def _items(values: str) -> list[str]:
    """What stands between commas."""
    return [item for each in values.split(",") if (item := each.strip().strip("'\""))]


def _dotted(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from _dotted(value, f"{prefix}{key}.")


def literal(text: str) -> str:
    """The text as OmegaConf writes it where it is no reference to another option."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
