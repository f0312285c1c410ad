"""The composition root: from a configuration to a trained model and its run folder."""

import importlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention
from lockstep.configuration import ConfigurationError, Node, TrainOptions, check_arguments, nearest, parse
from lockstep.data.batching import collate
from lockstep.data.module import DataModule
from lockstep.observe.attention_maps import AttentionMaps
from lockstep.observe.progress import Samples, ValidationLines
from lockstep.observe.throughput import Throughput
from lockstep.training.checkpoints import CheckpointRecord
from lockstep.training.module import TranslationModule
from lockstep.training.schedules import schedule
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
    try:
        task = make_task(**arguments)
    except ValueError as error:
        raise ConfigurationError(f"data: {error}") from error
    return DataModule(task, batch_tokens=options.batch_tokens, length_jitter=options.length_jitter, seed=options.seed)


def build_model(options: TrainOptions, data: DataModule) -> Transformer:
    """The model, initialised from the run's seed."""
    sizes = asdict(options.model)
    for name in ("num_heads", "bias", "attention_dropout"):  # the attention's own
        del sizes[name]
    vocabularies = (data.tokenizers.source.get_vocab_size(), data.tokenizers.target.get_vocab_size())
    model = Transformer(attention_factory(options), *vocabularies, **sizes)
    initialize(model, options.seed)
    return model


def build_module(options: TrainOptions, model: Transformer) -> TranslationModule:
    """The model with its loss and optimiser."""
    make_optimizer = locate(options.optimizer, "optimizer")
    arguments = check_arguments(make_optimizer, options.optimizer, "optimizer.", positional=1)
    try:
        make_optimizer([nn.Parameter()], **arguments)
    except ValueError as error:
        raise ConfigurationError(f"optimizer: {error}") from error
    factor = schedule(options.schedule.name, options.schedule.warmup_steps, options.trainer.max_steps)
    return TranslationModule(
        model, lambda parameters: make_optimizer(parameters, **arguments), factor, options.label_smoothing
    )


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


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def callbacks(options: TrainOptions, data: DataModule, folder: Path, config: Mapping[str, Any]) -> list[L.Callback]:
    """What watches and keeps a run; the throughput first, so that it does not time the others."""
    source, target = data.tokenizers.source, data.tokenizers.target
    example, samples = data.examples("validation", 1), data.examples("validation", 4)
    keep = ModelCheckpoint(
        folder / "checkpoints",
        filename="best",
        monitor="validation/loss",
        save_last=True,
        enable_version_counter=False,
    )
    watchers: list[L.Callback] = [
        Throughput(),
        ValidationLines(),
        Samples(collate(samples), source.decode, target.decode),
        CheckpointRecord(dict(config)),
        keep,
    ]
    if options.attention_maps_every:
        labels = [_labels(tokenizer, ids) for tokenizer, ids in zip((source, target), example[0], strict=True)]
        watchers.append(AttentionMaps(collate(example), labels[0], labels[1], options.attention_maps_every))
    if options.stop_at_exact_match is not None:
        watchers.append(
            EarlyStopping(
                "validation/exact_match", mode="max", patience=10**9, stopping_threshold=options.stop_at_exact_match
            )
        )
    if sys.stdout.isatty():
        watchers.append(RichProgressBar())
    return watchers


def _labels(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    return [tokenizer.id_to_token(index) or "" for index in ids.tolist()]


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train, test, and leave everything in a run folder.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        ConfigurationError: before any work, and before the folder is made.
    """
    quiet_libraries()
    options = parse(TrainOptions, config)
    try:
        attention_factory(options)()
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error
    data = build_data(options)
    try:
        model = build_model(options, data)
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error
    module = build_module(options, model)
    # Only now: constructors draw numbers, each variant's as many as it likes.
    L.seed_everything(options.seed, verbose=False)

    folder = new_run_folder(Path(options.output), options.name)
    log = logging.FileHandler(folder / "train.log", encoding="utf-8")
    log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(log)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    for side in ("source", "target"):
        getattr(data.tokenizers, side).save(str(folder / f"{side}_tokenizer.json"))
    parameters = sum(p.numel() for p in model.parameters())
    logger.info("training %s with %s parameters in %s", options.name, f"{parameters:,}", folder)

    board = TensorBoardLogger(folder, name="", version="", default_hp_metric=False)
    watchers = callbacks(options, data, folder, config)
    trainer = L.Trainer(
        **asdict(options.trainer),
        devices=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=board,
        callbacks=watchers,
        enable_progress_bar=sys.stdout.isatty(),
        enable_model_summary=False,
        enable_checkpointing=True,
    )
    started = time.perf_counter()
    trainer.fit(module, data)
    seconds = time.perf_counter() - started
    (results,) = trainer.test(module, data, verbose=False)
    throughput = next(w for w in watchers if isinstance(w, Throughput))
    metrics = {
        **results,
        "train/steps": trainer.global_step,
        "train/seconds": seconds,
        "train/target_tokens_per_second": throughput.target_tokens_per_second,
        "parameters": parameters,
        "weights_sha256": fingerprint(model),
    }
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    board.log_hyperparams(config, {name: value for name, value in metrics.items() if isinstance(value, float)})
    board.finalize("success")
    report(metrics, folder, options)
    logger.removeHandler(log)
    log.close()
    return metrics


def report(metrics: Mapping[str, Any], folder: Path, options: TrainOptions) -> None:
    """What was reached, where it is, and how to look at it."""
    logger.info(
        "test: exact match %.4f, loss %.4f; %d steps in %.0f s, %.0f target tokens/s",
        metrics["test/exact_match"],
        metrics["test/loss"],
        metrics["train/steps"],
        metrics["train/seconds"],
        metrics["train/target_tokens_per_second"],
    )
    logger.info("run folder: %s", folder)
    logger.info("look at it: tensorboard --logdir %s --samples_per_plugin images=0", options.output)


def quiet_libraries() -> None:
    """Lightning and datasets talk about themselves; a run's log is about the run."""
    datasets.disable_progress_bars()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
