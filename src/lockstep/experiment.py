"""The composition root: from a configuration to a trained model and its run folder."""

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.allocation import keep_freed_memory
from lockstep.attention import MultiHeadAttention
from lockstep.configuration import (
    ConfigurationError,
    ConvertOptions,
    Node,
    TrainOptions,
    as_argument,
    check_arguments,
    nearest,
    parse,
)
from lockstep.data.batching import collate
from lockstep.data.module import DataModule
from lockstep.observe.attention_maps import AttentionMaps
from lockstep.observe.board import Board
from lockstep.observe.progress import ProgressBar, Samples, ValidationLines
from lockstep.observe.scores import ValidationScores
from lockstep.observe.throughput import Throughput
from lockstep.runs import (
    Resumed,
    how_to_go_on,
    log_file,
    new_run_folder,
    report,
    resume,
    saved_config,
    shown,
    with_attention,
    write_whole,
)
from lockstep.training.checkpoints import Checkpoint, CheckpointFiles, read_checkpoint, write_checkpoint
from lockstep.training.conversion import ConversionError, convert_checkpoint
from lockstep.training.errors import Interrupted, NonFiniteError
from lockstep.training.module import TranslationModule
from lockstep.training.saving import Saving
from lockstep.training.schedules import schedule
from lockstep.training.signals import Signals
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import fingerprint
from lockstep.transformer.initialization import initialize

logger = logging.getLogger("lockstep")


def locate(node: Node, path: str) -> Callable[..., Any]:
    """The class or function that a node's ``_target_`` names.

    Raises:
        ConfigurationError: there is no such name. What goes wrong inside an imported file is raised as it is.
    """
    target = node.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise ConfigurationError(f"option {path}._target_ must be a dotted name of a class, got {target!r}")
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the file was found; something it imports was not
        raise ConfigurationError(
            f"option {path}._target_={target}: no module named {error.name}, neither installed nor here"
        ) from None
    if not hasattr(module, name):
        classes = [
            n for n, value in vars(module).items() if isinstance(value, type) and value.__module__ == module_name
        ]
        raise ConfigurationError(f"option {path}._target_={target}: no {name} in {module_name}{nearest(name, classes)}")
    return getattr(module, name)


def attention_factory(options: TrainOptions) -> Callable[[], MultiHeadAttention]:
    """Makes one attention module of the run's size; its arguments are checked here, once."""
    cls = locate(options.attention, "attention")
    if not (isinstance(cls, type) and issubclass(cls, MultiHeadAttention)):
        raise ConfigurationError(
            f"option attention._target_={options.attention['_target_']} is not a lockstep.attention.MultiHeadAttention"
        )
    model = options.model
    arguments = check_arguments(
        cls, {**options.attention, "bias": model.bias, "dropout": model.attention_dropout}, "attention.", positional=2
    )
    return lambda: cls(model.d_model, model.num_heads, **arguments)


def build_data(options: TrainOptions) -> DataModule:
    """The task's data, tokenised."""
    make_task = locate(options.data, "data")
    arguments = check_arguments(make_task, options.data, "data.")
    batches = {"batch_tokens": options.batch_tokens, "length_jitter": options.length_jitter}
    try:
        return DataModule(make_task(**arguments), **batches, seed=options.seed)
    except ValueError as error:
        raise ConfigurationError(f"data: {error}") from error


def build_model(options: TrainOptions, data: DataModule) -> Transformer:
    """The model, initialised from the run's seed."""
    model = transformer(options, data.tokenizers.source.get_vocab_size(), data.tokenizers.target.get_vocab_size())
    initialize(model, options.seed)
    return model


def transformer(options: TrainOptions, source_vocabulary: int, target_vocabulary: int) -> Transformer:
    """The model without its initial weights."""
    sizes = asdict(options.model)
    for name in ("num_heads", "bias", "attention_dropout"):  # the attention's own
        del sizes[name]
    try:
        return Transformer(attention_factory(options), source_vocabulary, target_vocabulary, **sizes)
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error


def optimizer_factory(options: TrainOptions) -> Callable[[Any], Optimizer]:
    """Makes the optimiser of named parameters or parameter groups; its arguments are checked here, once."""
    cls = locate(options.optimizer, "optimizer")
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise ConfigurationError(
            f"option optimizer._target_={options.optimizer['_target_']} is not a torch.optim.Optimizer"
        )
    arguments = check_arguments(cls, options.optimizer, "optimizer.", positional=1)
    return lambda parameters: cls(parameters, **arguments)


def build_module(options: TrainOptions, model: Transformer, natural_language: bool = False) -> TranslationModule:
    """The model with its loss and optimiser."""
    optimizer = optimizer_factory(options)
    if options.average_decay is not None and options.trainer.precision == "bf16-true":
        raise ConfigurationError(
            "option average_decay: an average in bfloat16 stands still; trainer.precision=bf16-mixed keeps float32"
        )
    try:
        optimizer([nn.Parameter()])
    except ValueError as error:
        raise ConfigurationError(f"optimizer: {error}") from error
    factor = schedule(options.schedule.name, options.schedule.warmup_steps, options.trainer.max_steps)
    return TranslationModule(
        model,
        optimizer,
        factor,
        options.label_smoothing,
        average_decay=options.average_decay,
        natural_language=natural_language,
    )


def callbacks(options: TrainOptions, data: DataModule) -> list[L.Callback]:
    """What watches a run; the throughput first, so that it does not time the others."""
    source, target = data.tokenizers.source, data.tokenizers.target
    example, samples = data.examples("validation", 1), data.examples("validation", 4)
    watchers: list[L.Callback] = [
        Throughput(),
        ValidationLines(data.natural_language),
        Samples(collate(samples), source.decode, target.decode),
    ]
    if data.natural_language:
        plan = data.batches("validation").plan()
        watchers.append(ValidationScores(data.references("validation"), plan, target.decode))
    if options.attention_maps_every:
        labels = [token_labels(tokenizer, ids) for tokenizer, ids in zip((source, target), example[0], strict=True)]
        watchers.append(AttentionMaps(collate(example), labels[0], labels[1], options.attention_maps_every))
    if options.stop_at_exact_match is not None:
        threshold = options.stop_at_exact_match - 1e-6  # Lightning asks for more than this, not for as much
        watchers.append(
            EarlyStopping("validation/exact_match", mode="max", patience=10**9, stopping_threshold=threshold)
        )
    if sys.stdout.isatty():
        watchers.append(ProgressBar())
    return watchers


def token_labels(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    """Each token by itself, special ones too."""
    return [tokenizer.decode([index], skip_special_tokens=False) for index in ids.tolist()]


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train, test, and leave everything in a run folder; or go on with a run, in its own folder.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        ConfigurationError: before any work, and before the folder is made.
        CheckpointError: likewise, where the run to go on with cannot be read.
        NonFiniteError: the loss or the gradient is not finite any more; the message names the last good checkpoint.
        Interrupted: a signal came; the run is saved.
    """
    quiet_libraries()
    keep_freed_memory()
    options = parse(TrainOptions, config)
    config = {**config, "output": str(Path(options.output).absolute()), "resume": None}
    resumed = None if options.resume is None else resume(Path(options.resume), config)
    if resumed and (complete := resumed.results(options)):
        logger.info("already complete: %s, step %d of %d", shown(resumed.path), resumed.step, options.trainer.max_steps)
        return complete

    try:
        attention_factory(options)()
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error
    data = build_data(options)
    module = build_module(options, build_model(options, data), data.natural_language)
    checkpoint = None if resumed is None else _continued(resumed, config, data)
    # Only now: constructors draw numbers, each variant's as many as it likes.
    L.seed_everything(options.seed, verbose=False)

    folder = (resumed and resumed.folder) or new_run_folder(Path(config["output"]), options.name)
    board = Board(folder, None if resumed is None else resumed.step)
    with log_file(folder), closing(board), Signals() as signals:
        _write_inputs(folder, config, data)
        parameters = sum(p.numel() for p in module.model.parameters())
        if resumed is None:
            logger.info("training %s with %s parameters in %s", options.name, f"{parameters:,}", shown(folder))
        else:
            logger.info("going on from step %d of %s, in %s", resumed.step, shown(resumed.path), shown(folder))
            for change in resumed.changes:
                logger.info("changed: %s", change)
        saving = Saving(
            folder / "checkpoints",
            options.checkpoint_every,
            config,
            data.tokenizers.fingerprint(),
            signals,
            monitor="validation/bleu" if data.natural_language else "validation/loss",
            mode="max" if data.natural_language else "min",
            patience=options.patience,
        )
        watchers = [*callbacks(options, data), signals, saving]
        trainer = build_trainer(options, board, watchers, CheckpointFiles(checkpoint))
        try:
            trainer.fit(module, data, ckpt_path=str(resumed.path) if resumed else None)
            trainer.loggers = []  # the test's results are written once, with the hyperparameters
            (results,) = trainer.test(module, data, verbose=False)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {how_to_go_on(folder)}") from None
        except Interrupted as interrupted:
            logger.info("%s; %s", interrupted, how_to_go_on(folder))
            raise
        metrics = {
            **results,
            "train/steps": trainer.global_step,
            **next(w.totals() for w in watchers if isinstance(w, Throughput)),
            "parameters": parameters,
            "weights_sha256": fingerprint(module.model),
        }
        board.log_results(config, dict(results), trainer.global_step)
        write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        report(metrics, folder, Path(config["output"]))
    return metrics


def build_trainer(options: TrainOptions, board: Board, watchers: list[L.Callback], files: CheckpointFiles) -> L.Trainer:
    """Lightning's Trainer; its one epoch is the endless stream of batches."""
    chosen = asdict(options.trainer)
    chosen["val_check_interval"] *= options.trainer.accumulate_grad_batches  # Lightning counts batches
    return L.Trainer(
        **chosen,
        devices=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=board,
        callbacks=watchers,
        plugins=[files],
        enable_progress_bar=sys.stdout.isatty(),
        enable_model_summary=False,
        enable_checkpointing=False,  # by Saving
    )


def _continued(resumed: Resumed, config: Node, data: DataModule) -> Checkpoint:
    """The checkpoint to go on with, converted where another attention is asked for."""
    if resumed.checkpoint["lockstep"]["tokenizers"] != data.tokenizers.fingerprint():
        raise ConfigurationError(
            f"checkpoint {shown(resumed.path)} belongs to another vocabulary than the one made here: its token ids "
            "mean other texts. The data, or the tokenizers library, has changed since"
        )
    if resumed.config["attention"] == config["attention"]:
        return resumed.checkpoint
    converted = convert_to(resumed.checkpoint, config["attention"])
    logger.info("converted %s to %s", shown(resumed.path), config["attention"]["_target_"])
    return converted


def convert_to(checkpoint: Checkpoint, attention: Node) -> Checkpoint:
    """The checkpoint of a run as one of the same run with another attention.

    Raises:
        ConfigurationError: there is no way between the two, or the optimiser's state cannot move.
    """
    saved = saved_config(checkpoint)
    config = with_attention(saved, attention)
    weights = checkpoint["state_dict"]
    sizes = len(weights["model.source_embedding.weight"]), len(weights["model.output.weight"])
    old, new = (transformer(parse(TrainOptions, c), *sizes) for c in (saved, config))
    try:
        converted = convert_checkpoint(checkpoint, old, new, saved["optimizer"]["_target_"])
    except ConversionError as error:
        raise ConfigurationError(f"option attention={attention['_target_']}: {error}") from error
    return {**converted, "lockstep": {**checkpoint["lockstep"], "config": config}}


def convert(config: dict[str, Any]) -> None:
    """Read a checkpoint, convert it to another attention, and write it, once both models were found to agree.

    Raises:
        ConfigurationError: there is no way between the two.
        CheckpointError: the checkpoint cannot be read.
    """
    quiet_libraries()
    options = parse(ConvertOptions, config)
    path, output = Path(options.checkpoint), Path(options.output)
    checkpoint = read_checkpoint(path)
    if output.is_dir():
        raise ConfigurationError(f"option output={options.output} is a folder; name a file")
    write_checkpoint(convert_to(checkpoint, options.attention), output)
    logger.info(
        "converted step %d of %s to %s: outputs agree, optimiser state moved; %s",
        checkpoint["global_step"],
        shown(path),
        options.attention["_target_"],
        f"go on with: python scripts/train.py {as_argument('resume', shown(output))}",
    )


def _write_inputs(folder: Path, config: Mapping[str, Any], data: DataModule) -> None:
    """What the run was made of: its configuration and tokenizers."""
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(config))))
    for side in ("source", "target"):
        write_whole(folder / f"{side}_tokenizer.json", getattr(data.tokenizers, side).to_str(pretty=True))


def quiet_libraries() -> None:
    """Lightning and datasets talk about themselves; a run's log is about the run."""
    logger.setLevel(logging.INFO)
    datasets.disable_progress_bars()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
