"""Run folders, and going on with a run: what is there already, and which options may differ."""

import copy
import logging
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep.base.errors import CheckpointError
from lockstep.base.files import read_record, to_append
from lockstep.base.terminal import PrintableFormatter
from lockstep.commands.options import ConfigurationError, Node, TrainOptions, as_argument
from lockstep.commands.renames import up_to_date
from lockstep.commands.trust import is_known, refuse_unknown
from lockstep.training.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint
from lockstep.training.saving import same_goal

logger = logging.getLogger("lockstep")

NODES = ("attention", "data", "optimizer")  # options that name a class, and its arguments
DATA_FILES = ("path", "train", "validation", "test")  # options of a corpus
# What a run may be told anew when it goes on; its attention, too, into which it is converted.
MAY_CHANGE = {
    *(f"data.{name}" for name in DATA_FILES),  # files may move; the tokenizers' hash tells other texts
    "trainer.max_steps",
    "trainer.accelerator",
    "trainer.precision",
    "trainer.log_every_n_steps",
    "checkpoint_every",
    "attention_maps_every",
    "stop_at_exact_match",
    "patience",
}


def with_absolute_paths(config: Node) -> dict[str, Any]:
    """The configuration of a run that can be gone on with from anywhere."""

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(each) for each in value]
        return os.path.abspath(value) if isinstance(value, str) and Path(value).exists() else value

    data = {key: absolute(value) if key in DATA_FILES else value for key, value in config["data"].items()}
    return {**config, "data": data, "output": os.path.abspath(config["output"])}


def new_run_folder(output: Path, name: str) -> Path:
    """Make ``output/name-time``; runs that start in the same second get folders of their own."""
    stem = f"{name}-{datetime.now():%Y-%m-%d-%H-%M-%S}"
    for attempt in range(1, 1000):
        folder = output / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigurationError(f"option output={output}: no free run folder")


@contextmanager
def log_file(folder: Path, name: str = "train.log") -> Iterator[None]:
    """Write the project's log to a file of the run, after what is there."""
    log = logging.StreamHandler(to_append(folder / name))
    log.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
    logger.addHandler(log)
    try:
        yield
    finally:
        logger.removeHandler(log)
        log.stream.close()


def shown(path: Path) -> str:
    """A path as short as can be from where the user stands."""
    path, relative = Path(os.path.abspath(path)), os.path.relpath(path)
    return relative if len(relative) + 1 < len(str(path)) else str(path)  # a / is worth a letter


def how_to_go_on(folder: Path, config: Node) -> str:
    """The command that takes a run up again, or that there is nothing to take up."""
    try:
        newest_checkpoint(folder)
    except CheckpointError:
        return "nothing was saved yet"
    return f"go on with: python scripts/train.py {with_trust('resume', folder, config)}"


def with_trust(option: str, path: Path, config: Node) -> str:
    """The option that opens a run of the user's own; its classes, where they are the user's, are trusted."""
    known = all(is_known(config.get(node)) for node in NODES)
    return as_argument(option, shown(path)) + ("" if known else " trust=true")


def tensorboard_command(output: Path) -> str:
    """The command that shows all runs, and all pictures: of each kind TensorBoard would keep ten.

    Not ``images=0``, which one of TensorBoard's two readers takes for all, and the other for none.
    """
    return f"tensorboard --logdir {shlex.quote(shown(output))} --samples_per_plugin images=1000"


@dataclass(frozen=True)
class Resumed:
    """A run to go on with.

    Args:
        path: of the checkpoint.
        checkpoint: what it holds.
        folder: of the run it lies in; None for a checkpoint that lies elsewhere, which begins a new folder.
        changes: options that differ from the run's, as sentences.
    """

    path: Path
    checkpoint: Checkpoint
    folder: Path | None
    changes: tuple[str, ...]

    @property
    def step(self) -> int:
        return int(self.checkpoint["global_step"])

    @property
    def config(self) -> dict[str, Any]:
        """The run's own configuration."""
        return saved_config(self.checkpoint)

    def results(self, options: TrainOptions) -> dict[str, Any] | None:
        """What ``metrics.json`` holds, if the run came to its end at this step and is asked for nothing more."""
        if self.folder is None:
            return None
        metrics = read_record(self.folder / "metrics.json")  # it is written once the run has ended
        ended_early = self.checkpoint["lockstep"]["stopped_early"] and same_goal(self.config, asdict(options))
        done = isinstance(metrics, dict) and metrics.get("train/steps") == self.step
        return metrics if done and (self.step >= options.trainer.max_steps or ended_early) else None

    def end(self, options: TrainOptions) -> str:
        """At which step a complete run ended; before its last, also why, and what makes it go on."""
        end = f"step {self.step} of {options.trainer.max_steps}"
        if self.step >= options.trainer.max_steps:
            return end
        waited = self.checkpoint["callbacks"].get("Saving", {}).get("waited")
        patient = options.patience is not None and waited == options.patience
        option = f"patience={options.patience}" if patient else f"stop_at_exact_match={options.stop_at_exact_match}"
        return f"{end}, where {option} ended it; it goes on with {option.partition('=')[0]}=null"


def options_of_run(config: Node, told: Collection[str]) -> dict[str, Any]:
    """The options of the run that ``config["resume"]`` names, but for those told anew.

    Where a run folder lies is known from where it was found; a checkpoint that lies alone does not decide where
    anything is written.

    Args:
        config: as composed, with defaults for all that was not told.
        told: dotted names of the options that were.

    Raises:
        CheckpointError: there is no usable checkpoint, or it names a class that is neither known here, nor told, nor
            trusted.
    """
    path = checkpoint_of(Path(config["resume"]))
    place = f"checkpoint {shown(path)}"
    options = copy.deepcopy(saved_config(read_checkpoint(path)))
    for key, value in config.items():
        if isinstance(value, Mapping) and not isinstance(options.get(key), dict):
            raise CheckpointError(f"{place} holds no configuration of a run: {key} is {options.get(key)!r}"[:300])
    options |= {"resume": config["resume"], "trust": config.get("trust", False)}
    folder = _folder_of(path)
    options |= {o: config[o] for o in ("output", "name")} if folder is None else {"output": str(folder.parent)}
    for option in told:
        *parents, key = option.split(".")
        source, target = config, options
        for name in parents:
            source, target = source[name], target.setdefault(name, {})
        if key in source:
            target[key] = source[key]
    for option in DATA_FILES:
        stored = None if {"data", f"data.{option}"} & set(told) else options["data"].get(option)
        for file in stored if isinstance(stored, list) else [stored]:
            if isinstance(file, str) and os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
                raise CheckpointError(
                    f"{place} reads its data from {file[:100]}, which is no file; name it by data.{option}"
                )
    if "attention" in told:
        options = with_attention(options, options["attention"])
    if folder is None and "name" not in told and all(is_known(options[node]) for node in ("data", "attention")):
        # The default is made of choices, which are those of the checkpoint.
        options["name"] = "-".join(options[node]["_target_"].split(".")[-2] for node in ("data", "attention"))
    if not options["trust"]:
        remedy = "name it on the command line, such as attention=NAME, or say trust=true"
        refuse_unknown(options, [node for node in NODES if node not in told], place, remedy)
    return options


def checkpoint_of(run: Path) -> Path:
    """The newest checkpoint of a run folder; or the file itself.

    Raises:
        CheckpointError: the folder has none.
    """
    return newest_checkpoint(run) if run.is_dir() else run


def _folder_of(path: Path) -> Path | None:
    """The run folder that a checkpoint lies in; None where it lies elsewhere.

    Raises:
        CheckpointError: the run's checkpoints would be written elsewhere.
    """
    path = Path(os.path.abspath(path))
    folder = path.parent.parent
    if path.parent.name != "checkpoints" or not (folder / "config.yaml").exists():
        return None
    if path.parent.is_symlink():
        raise CheckpointError(
            f"{shown(path.parent)} is a link, and a run writes in its own folder alone: put the folder itself there"
        )
    return folder


def resume(run: Path, config: Node) -> Resumed:
    """Find what a run folder or a checkpoint file holds, and compare the run's options with these.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigurationError: an option that would make it another experiment.
    """
    path = checkpoint_of(run)
    checkpoint = read_checkpoint(path)
    folder = _folder_of(path)
    saved = saved_config(checkpoint)
    if folder is not None:  # wherever it lay before
        saved = {**saved, "output": str(folder.parent)}
    ignored = {"resume", "trust", "name"} if folder else {"resume", "trust", "name", "output"}
    changes = []
    for option, before, now in _differences(saved, config):
        if option in MAY_CHANGE or option == "attention":
            changes.append(f"{option} was {_short(before)}, is {_short(now)}")
        elif option not in ignored:
            raise ConfigurationError(
                f"option {option} is {_short(before)} in {shown(path)}, and cannot become {_short(now)} on the way; "
                "leave it out, or begin a new run"
            )
    return Resumed(path, in_its_place(checkpoint, config["attention"]), folder, tuple(changes))


def saved_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The plain configuration of the run that wrote a checkpoint, with what older ones did and did not yet say."""
    config = up_to_date(checkpoint["lockstep"]["config"])
    search = config.get("search")
    return {
        "trust": False,
        "scores": {"tokenizer": "13a"},
        **config,
        "search": {"early_stopping": True, **search} if isinstance(search, dict) else search,
    }


def in_its_place(checkpoint: Checkpoint, attention: Node) -> Checkpoint:
    """The checkpoint as one of the attention that the user names, where that is its own and only its file has moved."""
    stored = saved_config(checkpoint).get("attention")
    if is_known(stored) or is_known(attention) or _wherever(stored) != _wherever(attention):
        return checkpoint
    saved = checkpoint["lockstep"]
    return {**checkpoint, "lockstep": {**saved, "config": {**saved["config"], "attention": attention}}}


def _wherever(attention: Any) -> Any:
    """What an attention is, apart from the folder or the package that its file lies in."""
    if not isinstance(attention, Mapping):
        return attention
    named = [str(attention.get("_target_")).split(".")[-2:], Path(str(attention.get("target"))).name]
    return named, {key: value for key, value in attention.items() if key not in ("_target_", "target", "folder")}


def with_attention(config: Node, attention: Node) -> dict[str, Any]:
    """The configuration with another attention, whose arithmetic is the run's."""
    arithmetic = {"arithmetic": config["arithmetic"]} if "arithmetic" in attention else {}
    return {**config, "attention": {**attention, **arithmetic}}


def _differences(before: Node, now: Node, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*before, *now]):
        old, new, name = before.get(key), now.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping) and name != "attention":
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield name, old, new


def _short(value: Any) -> str:
    """A value in a sentence; of an attention, its class."""
    if isinstance(value, Mapping) and "target" in value:
        return str(value["target"])
    return (
        str(value["_target_"]).rpartition(".")[2] if isinstance(value, Mapping) and "_target_" in value else str(value)
    )
