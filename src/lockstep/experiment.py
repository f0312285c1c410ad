"""The composition root: from a configuration to a trained model and its run folder."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer

from lockstep import machine
from lockstep.allocation import keep_freed_memory
from lockstep.attention import MultiHeadAttention
from lockstep.attention.trial import ContractError, try_out
from lockstep.configuration import (
    ConfigurationError,
    ConvertOptions,
    Node,
    TrainOptions,
    as_argument,
    check_arguments,
    parse,
    say_doubts,
)
from lockstep.data.module import DataModule
from lockstep.errors import Interrupted, NonFiniteError
from lockstep.files import write_whole
from lockstep.observe.board import Board
from lockstep.observe.scores import FinalScores
from lockstep.observe.throughput import Throughput
from lockstep.results import report, score_metrics, write_metrics, write_translations
from lockstep.runs import (
    Resumed,
    how_to_go_on,
    log_file,
    new_run_folder,
    resume,
    saved_config,
    shown,
    with_absolute_paths,
    with_attention,
)
from lockstep.targets import attention_class, locate
from lockstep.trainer import build_trainer, quiet_libraries
from lockstep.training.checkpoints import BEST, Checkpoint, CheckpointFiles, read_checkpoint, write_checkpoint
from lockstep.training.conversion import ConversionError, convert_checkpoint
from lockstep.training.module import TranslationModule
from lockstep.training.schedules import schedule
from lockstep.training.signals import Signals
from lockstep.transformer import Transformer
from lockstep.transformer.canonical import fingerprint
from lockstep.transformer.initialization import initialize
from lockstep.watching import build_saving, callbacks, check_scores

logger = logging.getLogger("lockstep")


def attention_factory(options: TrainOptions) -> Callable[[], MultiHeadAttention]:
    """Makes one attention module of the run's size; its arguments are checked here, once."""
    cls = attention_class(options.attention, "attention")
    model = options.model
    arguments = check_arguments(
        cls, {**options.attention, "bias": model.bias, "dropout": model.attention_dropout}, "attention.", positional=2
    )
    return lambda: cls(model.d_model, model.num_heads, **arguments)


def try_attention(options: TrainOptions) -> None:
    """Refuse, before any work, an attention that no model can be made of.

    Raises:
        ConfigurationError: what it does or refuses, in one line.
    """
    try:
        try_out(attention_factory(options))
    except ContractError as error:
        name = options.attention.get("target", options.attention["_target_"])
        raise ConfigurationError(f"option attention: {name} cannot serve: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error


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
    if options.model.tied_embeddings == "all" and not data.tokenizers.joint:
        # Two vocabularies may well be of one size; their ids mean other texts all the same.
        raise ConfigurationError(
            "option model.tied_embeddings=all takes one vocabulary for both sides: data.joint_vocabulary=true; where "
            "each side has its own, model.tied_embeddings=output or none"
        )
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
    _try(optimizer)
    factor = schedule(options.schedule.name, options.schedule.warmup_steps, options.trainer.max_steps)
    return TranslationModule(
        model,
        optimizer,
        factor,
        options.label_smoothing,
        average_decay=options.average_decay,
        natural_language=natural_language,
    )


def _try(optimizer: Callable[[Any], Optimizer]) -> None:
    """Refuse an optimiser that cannot be made, or takes no step on a vector and a matrix with dense gradients."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2,), (2, 2))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer(parameters).step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
    except (ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(f"optimizer: {str(error).splitlines()[0]}") from error


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
    machine.require(options.trainer)
    config = {**with_absolute_paths(config), "resume": None}
    resumed = None if options.resume is None else resume(Path(options.resume), config)
    if resumed and (complete := resumed.results(options)):
        logger.info("already complete: %s, step %d of %d", shown(resumed.path), resumed.step, options.trainer.max_steps)
        return complete

    check_scores(options)
    try_attention(options)
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
        machine.say_if_slow(options.trainer, options.model.d_model, options.model.d_ff)
        say_doubts(options)
        saving = build_saving(options, config, data, folder / "checkpoints", signals)
        watchers = [*callbacks(options, data, module.judged, signals), signals, saving]
        trainer = build_trainer(options.trainer, board, watchers, CheckpointFiles(checkpoint))
        try:
            trainer.fit(module, data, ckpt_path=str(resumed.path) if resumed else None)
            metrics: dict[str, Any] = {"train/steps": trainer.global_step, "weights_sha256": fingerprint(module.model)}
            if data.natural_language:
                metrics["test/step"] = _load_best(module, folder, config) or trainer.global_step
                logger.info("test: translating with the weights of step %d", metrics["test/step"])
            trainer.loggers = []  # the test's results are written once, with the hyperparameters
            (results,) = trainer.test(module, data, verbose=False)
        except NonFiniteError as error:
            advice = "a new run with a lower optimizer.lr or more schedule.warmup_steps may keep it finite"
            raise NonFiniteError(f"{error}; {advice}; {how_to_go_on(folder)}") from None
        except Interrupted as interrupted:
            logger.info("%s; %s", interrupted, how_to_go_on(folder))
            raise
        metrics |= {
            **results,
            **next(w.totals() for w in watchers if isinstance(w, Throughput)),
            "parameters": parameters,
            "seed": options.seed,
        }
        for scorer in (w for w in watchers if isinstance(w, FinalScores)):
            write_translations(scorer.hypotheses, scorer.references, folder)
            metrics |= score_metrics(scorer.scores, scorer.bleu_tokenizer)
        tested = {name: value for name, value in metrics.items() if name.startswith("test/")}
        board.log_results(config, tested, trainer.global_step)
        write_metrics(metrics, folder)
        report(metrics, folder, Path(config["output"]))
    return metrics


def _continued(resumed: Resumed, config: Node, data: DataModule) -> Checkpoint:
    """The checkpoint to go on with, converted where another attention is asked for."""
    if resumed.checkpoint["lockstep"]["tokenizers"] != data.tokenizers.fingerprint():
        raise ConfigurationError(
            f"checkpoint {shown(resumed.path)} belongs to another vocabulary than the one made here: its token ids "
            "mean other texts. The data, or the tokenizers library, has changed since"
        )
    if resumed.config["attention"] != config["attention"]:
        logger.info("converted %s to %s", shown(resumed.path), config["attention"]["_target_"])
    return _in_attention(resumed.checkpoint, config["attention"])


def _in_attention(checkpoint: Checkpoint, attention: Node) -> Checkpoint:
    """The checkpoint as it is, or converted where it is of another attention."""
    return checkpoint if saved_config(checkpoint)["attention"] == attention else convert_to(checkpoint, attention)


def _load_best(module: TranslationModule, folder: Path, config: Node) -> int | None:
    """Take the weights that were best on validation; their step, or None where there was no validation."""
    path = folder / "checkpoints" / BEST
    if not path.exists():
        return None
    best = _in_attention(read_checkpoint(path), config["attention"])
    module.load_state_dict(best["state_dict"])
    return int(best["global_step"])


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
