"""The composition root of comparisons: from a configuration to trained copies, a verdict and a report."""

import json
import logging
import platform
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.optim import Optimizer

from lockstep.base.files import write_whole
from lockstep.base.terminal import console, counted
from lockstep.commands import building, machine
from lockstep.commands.environment import add_session
from lockstep.commands.options import (
    ConfigurationError,
    Node,
    Positive,
    TrainOptions,
    check_arguments,
    nearest,
    parse,
    say_doubts,
)
from lockstep.commands.renames import up_to_date
from lockstep.commands.run_folder import log_file, new_run_folder, shown, tensorboard_command
from lockstep.commands.targets import attention_class, locate
from lockstep.commands.trainer import build_trainer, quiet_libraries
from lockstep.comparison.figure import draw
from lockstep.comparison.module import LockstepModule
from lockstep.comparison.record import Record
from lockstep.comparison.recorder import Recorder, log_spaced
from lockstep.comparison.report import show, to_json, write_scalars
from lockstep.comparison.variant import Learner, ParameterGroup, Variant, identity
from lockstep.comparison.verdict import exit_status, judge
from lockstep.data.batching import Batch
from lockstep.data.datamodule import DataModule
from lockstep.observe.board import Board
from lockstep.observe.progress import NowAndThen
from lockstep.training.allocation import keep_freed_memory
from lockstep.training.schedules import schedule
from lockstep.transformer.canonical import has_canonical_layout
from lockstep.transformer.search import GREEDY

logger = logging.getLogger("lockstep")

_PRECISION = {"32-true": "float32", "64-true": "float64"}
# Of single runs, and without a meaning here.
OFF = {
    "average_decay": None,
    "stop_at_exact_match": None,
    "patience": None,
    "search": asdict(GREEDY),
    "scores": {"tokenizer": None},
    "attention_maps_every": 0,
    "checkpoint_every": 1,
    "resume": None,
    "trust": False,
}


@dataclass(frozen=True)
class CompareOptions:
    """What ``scripts/compare.py`` can be told beside the options of training.

    Attributes:
        variants: at least two, the first the reference: a name in ``conf/attention``, the dotted name of a class, or
            a mapping with ``attention`` (one of these), and optionally ``name`` and ``learner`` (a ``_target_``).
        recorded_steps: how many steps are resynchronised, spaced evenly on a logarithmic scale.
        swap_at: step at which one more copy, until then the reference, becomes the second variant.
    """

    variants: tuple[Any, ...]
    recorded_steps: Positive
    swap_at: Positive | None


def _attention_node(config: Node, choice: Any, conf: Path) -> Node:
    """The configuration of one attention."""
    if not isinstance(choice, str) or not choice:
        raise ConfigurationError(f"option compare.variants names attentions, it cannot hold {choice!r}")
    if "." in choice:
        return {"_target_": choice}
    path = conf / "attention" / f"{choice}.yaml"
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ConfigurationError(f"compare.variants: attention {choice} does not exist{nearest(choice, known)}")
    # The file may refer to options of the run.
    whole = OmegaConf.create({**config, "attention": OmegaConf.load(path)})
    node = OmegaConf.to_container(whole, resolve=True)
    assert isinstance(node, dict)
    return dict(up_to_date(node["attention"]))


def _variant(config: Node, entry: Any, conf: Path, data: DataModule) -> Variant:
    """One entry of ``compare.variants``."""
    node = dict(entry) if isinstance(entry, dict) else {"attention": entry}
    unknown = set(node) - {"attention", "name", "learner"}
    if unknown or "attention" not in node:
        raise ConfigurationError(f"option compare.variants: {node} must have attention, and may have name and learner")
    if node.get("learner") is None:
        node.pop("learner", None)
    attention = _attention_node(config, node["attention"], conf)
    name = str(node.get("name", str(node["attention"]).rpartition(".")[2]))
    options = parse(TrainOptions, {**config, "attention": attention})
    learner: Learner = Learner()
    if "learner" in node:
        make_learner = locate(node["learner"], "learner")
        if not (isinstance(make_learner, type) and issubclass(make_learner, Learner)):
            raise ConfigurationError(
                f"option learner._target_={node['learner']['_target_']} is not a lockstep.comparison.variant.Learner"
            )
        learner = make_learner(**check_arguments(make_learner, node["learner"], "learner."))
    cls = attention_class(attention, "attention")

    building.try_attention(options.attention, options.model, masks=False)
    sizes = options.model
    dry = replace(options, model=replace(sizes, dropout=0.0, attention_dropout=0.0))
    try:
        models = [building.build_model(o, data) for o in (options, dry)]
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error
    arguments = {key: value for key, value in attention.items() if key != "_target_"}
    made_of = (identity(cls, arguments), identity(type(learner), vars(learner)))
    # Copying is faster than building, and draws nothing.
    return Variant(name, partial(deepcopy, models[0]), partial(deepcopy, models[1]), learner, made_of)


def build_variants(config: Node, options: CompareOptions, conf: Path, data: DataModule) -> list[Variant]:
    """The participants, the reference first, under different names.

    Raises:
        ConfigurationError: fewer than two, or a reference without a canonical layout.
    """
    if len(options.variants) < 2:
        raise ConfigurationError("option compare.variants needs a reference and at least one more")
    variants: list[Variant] = []
    for entry in options.variants:
        variant = _variant(config, entry, conf, data)
        same = sum(v.name.split(" #")[0] == variant.name for v in variants)
        variants.append(replace(variant, name=f"{variant.name} #{same + 1}") if same else variant)
    reference, second = variants[:2]
    if not has_canonical_layout(reference.build()):
        raise ConfigurationError(f"option compare.variants: {reference.name} has no canonical layout to compare with")
    if options.swap_at is not None:
        if not has_canonical_layout(second.build()):
            raise ConfigurationError(f"option compare.swap_at: {second.name} has no canonical layout to continue in")
        made_of = second.identity if second.identity == reference.identity else (reference.identity, second.identity)
        swapped = f"{reference.name}, {second.name} from step {options.swap_at}"
        variants.append(replace(reference, name=swapped, identity=made_of, successor=second))
    return variants


def build_optimizer(options: TrainOptions, variants: list[Variant]) -> Callable[[list[ParameterGroup]], Optimizer]:
    """Makes the optimiser of parameter groups; tried here on every variant.

    Raises:
        ConfigurationError: the optimiser refuses its arguments, or how a variant stores its weights.
    """
    optimizer = building.optimizer_factory(options)
    for variant in variants:
        try:
            optimizer(variant.learner.groups(variant.build()))
        except ValueError as error:
            raise ConfigurationError(f"optimizer, for {variant.name}: {error}") from error
    return optimizer


def most_padded(data: DataModule, count: int = 20) -> Batch:
    """Of the first training batches the one with the largest part of padding, to check functions on."""
    return max(islice(data.train_dataloader(), count), key=lambda batch: 1 - float(batch.source_mask.float().mean()))


def setting(options: TrainOptions) -> dict[str, str]:
    """What a verdict's reader must know of the run."""
    device = "CUDA" if options.trainer.accelerator != "cpu" and torch.cuda.is_available() else "CPU"
    kind = torch.cuda.get_device_name() if device == "CUDA" else torch.backends.cpu.get_cpu_capability()
    return {
        "precision": _PRECISION.get(options.trainer.precision, f"{options.trainer.precision}, steps judged in float32"),
        "optimizer": str(options.optimizer["_target_"]).rpartition(".")[2],
        "arithmetic": f"{options.arithmetic} arithmetic",
        "seed": f"seed {options.seed}",
        "machine": f"{device} {platform.machine()} {kind} with {counted(torch.get_num_threads(), 'thread')}",
        "torch": f"torch {torch.__version__}",
    }


def not_exercised(options: TrainOptions) -> list[str]:
    """What the run cannot contain, and its verdict says nothing of."""
    model = options.model
    absent = {
        "attention dropout": model.attention_dropout == 0,
        "residual dropout": model.dropout == 0,
        "gradient clipping": options.trainer.gradient_clip_val is None,
        "biases": not model.bias,
        "more than one head": model.num_heads == 1,
        "queries that may see nothing": True,
        "masks that differ between heads or queries, beside the causal one": True,
        "causal attention with T_q != T_k": True,
        "cached decoding": True,
    }
    return [what for what, missing in absent.items() if missing]


def compare(config: dict[str, Any], conf: Path) -> int:
    """Train all variants side by side, judge each against the first, and leave everything in a run folder.

    Args:
        config: of ``conf/compare.yaml``.
        conf: the folder of configurations, in whose ``attention`` the variants are found.

    Returns:
        The exit status: 0 all agree, 1 any differs, 2 inconclusive.

    Raises:
        ConfigurationError: before any work, and before the folder is made.
    """
    quiet_libraries()
    keep_freed_memory()
    config = {**config, **OFF}
    compared = parse(CompareOptions, config.pop("compare"), "compare.")
    options = parse(TrainOptions, {**config, "attention": {}})
    machine.require(options.trainer)
    if options.trainer.accumulate_grad_batches != 1:
        raise ConfigurationError("option trainer.accumulate_grad_batches must be 1 here: every batch is a step")
    max_steps = options.trainer.max_steps
    if compared.swap_at is not None and compared.swap_at >= max_steps:
        raise ConfigurationError(f"option compare.swap_at={compared.swap_at} must be less than {max_steps} steps")
    data = building.build_data(options)
    variants = build_variants(config, compared, conf, data)
    module = LockstepModule(
        variants,
        options.seed,
        build_optimizer(options, variants),
        schedule(options.schedule.name, options.schedule.warmup_steps, max_steps),
        options.label_smoothing,
        compared.swap_at,
    )
    folder = new_run_folder(Path(options.output), options.name)
    add_session(folder)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create({**config, "compare": asdict(compared)})))
    with log_file(folder, "compare.log"):
        logger.info(
            "comparing %s with %s in %s", ", ".join(v.name for v in variants[1:]), variants[0].name, shown(folder)
        )
        say_doubts(options)
        machine.say_if_slow(options.trainer, options.model.d_model, options.model.d_ff)
        at = log_spaced(compared.recorded_steps, max_steps)
        recorder = Recorder(most_padded(data), at, setting(options), not_exercised(options))
        record = _train(options, data, module, recorder, folder)
        verdicts = {name: judge(record, name) for name in record.variants}
        write_whole(folder / "comparison.json", json.dumps(to_json(record, verdicts), indent=1) + "\n")
        draw(record, folder / "comparison.png")
        show(record, verdicts, console(width=max(console().width, 100)))
        logger.info("figures, and a picture: %s", shown(folder))
        logger.info("look at it: %s", tensorboard_command(Path(options.output)))
    return exit_status(verdicts.values())


def _train(options: TrainOptions, data: DataModule, module: LockstepModule, recorder: Recorder, folder: Path) -> Record:
    """Train the copies; curves and differences go to TensorBoard."""
    with closing(Board(folder)) as board:
        trainer = build_trainer(options.trainer, board, [recorder, NowAndThen(f"loss/{module.reference.name}")])
        trainer.fit(module, data)
        write_scalars(recorder.record, board.experiment)
    return recorder.record
