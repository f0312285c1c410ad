"""The composition root: from a configuration to a trained model and its run folder."""

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import lightning as L
from omegaconf import OmegaConf

from lockstep.base.errors import CheckpointError, InputError, Interrupted, NonFiniteError
from lockstep.base.files import remove_partial, write_whole
from lockstep.commands import machine
from lockstep.commands.building import build_data, build_model, build_module, transformer, try_attention
from lockstep.commands.callbacks import build_saving, callbacks, check_scores
from lockstep.commands.composition import literal
from lockstep.commands.environment import add_session
from lockstep.commands.options import (
    ConfigurationError,
    ConvertOptions,
    ModelOptions,
    Node,
    TrainOptions,
    parse,
    say_doubts,
)
from lockstep.commands.results import report, score_metrics, write_metrics, write_translations
from lockstep.commands.run_folder import (
    DATA_FILES,
    Resumed,
    checkpoint_of,
    how_to_go_on,
    in_its_place,
    log_file,
    new_run_folder,
    resume,
    saved_config,
    shown,
    with_absolute_paths,
    with_attention,
    with_trust,
)
from lockstep.commands.trained_model import check_weights, described_model
from lockstep.commands.trainer import build_trainer, quiet_libraries
from lockstep.commands.trust import refuse_unknown
from lockstep.data.datamodule import DataModule
from lockstep.observe.board import Board
from lockstep.observe.scores import FinalScores
from lockstep.observe.throughput import Throughput
from lockstep.training.allocation import keep_freed_memory
from lockstep.training.checkpoints import BEST, Checkpoint, CheckpointFiles, read_checkpoint, write_checkpoint
from lockstep.training.conversion import ConversionError, convert_checkpoint
from lockstep.training.module import TranslationModule
from lockstep.training.saving import Saving
from lockstep.training.signals import Signals
from lockstep.transformer.canonical import fingerprint

logger = logging.getLogger("lockstep")


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
    config = {**with_absolute_paths(config), "resume": None, "trust": False}
    resumed = None if options.resume is None else resume(Path(options.resume), config)
    if resumed is not None:
        converts = resumed.config["attention"] != config["attention"]
        if complete := resumed.results(options):
            if converts:
                raise ConfigurationError(
                    f"option attention: {shown(resumed.path)} is complete, {resumed.end(options)}, so that nothing is "
                    "left to do with another attention; raise trainer.max_steps, or use scripts/convert.py"
                )
            logger.info("already complete: %s, %s", shown(resumed.path), resumed.end(options))
            return complete
        if converts:
            _judge_conversion(resumed.checkpoint, resumed.path, options.trust)
        check_weights(resumed.checkpoint, resumed.path)

    check_scores(options)
    try_attention(options.attention, options.model)
    data = _data(options, resumed)
    module = build_module(options, build_model(options, data), data.natural_language)
    checkpoint = None if resumed is None else _continued(resumed, config, data, options.trust)
    # Only now: constructors draw numbers, each variant's as many as it likes.
    L.seed_everything(options.seed, verbose=False)

    folder = (resumed and resumed.folder) or new_run_folder(Path(config["output"]), options.name)
    board = Board(folder, None if resumed is None else resumed.step)
    with log_file(folder), closing(board), Signals() as signals:
        remove_partial(folder)
        remove_partial(folder / "checkpoints")
        _write_inputs(folder, config, data)
        add_session(folder)
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
        watchers = [*callbacks(options, data, module.evaluated, signals), signals, saving]
        trainer = build_trainer(options.trainer, board, watchers, CheckpointFiles(checkpoint))
        try:
            _fit(trainer, module, data, saving, resumed)
            metrics: dict[str, Any] = {"train/steps": trainer.global_step, "weights_sha256": fingerprint(module.model)}
            if data.natural_language:
                metrics["test/step"] = _load_best(module, folder, config, options.trust) or trainer.global_step
                logger.info("test: translating with the weights of step %d", metrics["test/step"])
            trainer.loggers = []  # the test's results are written once, with the hyperparameters
            (results,) = trainer.test(module, data, verbose=False)
        except NonFiniteError as error:
            advice = "a new run with a lower optimizer.lr or more schedule.warmup_steps may keep it finite"
            raise NonFiniteError(f"{error}; {advice}; {how_to_go_on(folder, config)}") from None
        except Interrupted as interrupted:
            logger.info("%s; %s", interrupted, how_to_go_on(folder, config))
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
        report(metrics, folder, config)
    return metrics


def _data(options: TrainOptions, resumed: Resumed | None) -> DataModule:
    """The task's data; a run may be gone on with where its corpus lies no more."""
    try:
        return build_data(options)
    except OSError as error:
        if resumed is None or not (moved := [name for name in DATA_FILES if options.data.get(name)]):
            raise
        task = str(options.data["_target_"]).split(".")[-2]
        raise InputError(
            f"{error}; if the corpus lies elsewhere now, say where beside resume=: data={task} data.{moved[0]}=..."
        ) from error


def _fit(
    trainer: L.Trainer, module: L.LightningModule, data: DataModule, saving: Saving, resumed: Resumed | None
) -> None:
    """Train; what goes wrong before a first step with what a checkpoint held is the checkpoint's fault."""
    try:
        trainer.fit(module, data, ckpt_path=str(resumed.path) if resumed else None)
    except (NonFiniteError, CheckpointError, OSError):
        raise
    except Exception as error:
        if resumed is None or saving.under_way:
            raise
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(f"checkpoint {shown(resumed.path)} cannot be gone on with: {problem}") from error


def _continued(resumed: Resumed, config: Node, data: DataModule, trust: bool) -> Checkpoint:
    """The checkpoint to go on with, converted where another attention is asked for."""
    if resumed.checkpoint["lockstep"]["tokenizers"] != data.tokenizers.fingerprint():
        raise ConfigurationError(
            f"checkpoint {shown(resumed.path)} belongs to another vocabulary than the one made here: its token ids "
            "mean other texts. The data, or the tokenizers library, has changed since"
        )
    checkpoint = _in_attention(resumed.checkpoint, config["attention"], resumed.path, trust)
    if resumed.config["attention"] != config["attention"]:
        logger.info("converted %s to %s", shown(resumed.path), config["attention"]["_target_"])
    return checkpoint


def _in_attention(checkpoint: Checkpoint, attention: Node, path: Path, trust: bool) -> Checkpoint:
    """The checkpoint as it is, or converted where it is of another attention."""
    checkpoint = in_its_place(checkpoint, attention)
    same = saved_config(checkpoint).get("attention") == attention
    return checkpoint if same else convert_to(checkpoint, attention, path, trust)


def _load_best(module: TranslationModule, folder: Path, config: Node, trust: bool) -> int | None:
    """Take the weights that were best on validation; their step, or None where there was no validation."""
    path = folder / "checkpoints" / BEST
    if not path.exists():
        return None
    best = read_checkpoint(path)
    check_weights(best, path)
    best = _in_attention(best, config["attention"], path, trust)
    try:
        module.load_state_dict(best["state_dict"])
    except RuntimeError as error:
        raise CheckpointError(
            f"checkpoint {shown(path)} is of another model: {error!s:.300}".replace("\n", " ")
        ) from None
    return int(best["global_step"])


def _judge_conversion(checkpoint: Checkpoint, path: Path, trust: bool) -> None:
    """A conversion makes both models: the new attention is the user's word, the stored one is not."""
    if not trust:
        remedy = "say trust=true: a conversion runs both attentions"
        refuse_unknown(saved_config(checkpoint), ["attention"], f"checkpoint {shown(path)}", remedy)


def convert_to(checkpoint: Checkpoint, attention: Node, path: Path, trust: bool = False) -> Checkpoint:
    """The checkpoint of a run as one of the same run with another attention.

    Args:
        checkpoint: as read.
        attention: to convert to, which the user has named.
        path: where the checkpoint was read, for messages.
        trust: its own attention may be run, whatever it is.

    Raises:
        CheckpointError: its attention is not known, or it is not what its configuration says.
        ConfigurationError: there is no way between the two, or the optimiser's state cannot move.
    """
    checkpoint = in_its_place(checkpoint, attention)
    _judge_conversion(checkpoint, path, trust or saved_config(checkpoint).get("attention") == attention)
    old = described_model(checkpoint, path)
    config = with_attention(saved_config(checkpoint), attention)
    sizes = (part.num_embeddings for part in (old.source_embedding, old.target_embedding))
    options = parse(ModelOptions, config["model"], "model.")
    try_attention(config["attention"], options)
    new = transformer(config["attention"], options, *sizes)
    optimizer = config.get("optimizer", {}).get("_target_")
    try:
        converted = convert_checkpoint(checkpoint, old, new, str(optimizer))
    except ConversionError as error:
        raise ConfigurationError(f"option attention={attention['_target_']}: {error}") from error
    return {**converted, "lockstep": {**checkpoint["lockstep"], "config": config}}


def convert(config: dict[str, Any]) -> None:
    """Read a checkpoint, convert it to another attention, and write it, once both models were found to agree.

    Raises:
        ConfigurationError: there is no way between the two.
        CheckpointError: the checkpoint cannot be read, or its attention is not trusted.
    """
    quiet_libraries()
    options = parse(ConvertOptions, config)
    path, output = checkpoint_of(Path(options.checkpoint)), Path(options.output)
    checkpoint = read_checkpoint(path)
    if output.is_dir():
        raise ConfigurationError(f"option output={options.output} is a folder; name a file")
    if output.is_file() and not options.overwrite:
        raise ConfigurationError(f"option output={options.output} exists; take another name, or say overwrite=true")
    converted = convert_to(checkpoint, options.attention, path, options.trust)
    write_checkpoint(converted, output, follow=True)
    logger.info(
        "converted step %d of %s to %s: outputs agree, optimiser state moved; %s",
        checkpoint["global_step"],
        shown(path),
        options.attention["_target_"],
        f"go on with: python scripts/train.py {with_trust('resume', output, saved_config(converted))}",
    )
    if not any((folder / "target_tokenizer.json").exists() for folder in output.absolute().parents[:2]):
        logger.info("to translate with it, put source_tokenizer.json and target_tokenizer.json of its run beside it")


def _write_inputs(folder: Path, config: Mapping[str, Any], data: DataModule) -> None:
    """What the run was made of: its configuration and tokenizers."""
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(_literal(config))))
    for side in ("source", "target"):
        write_whole(folder / f"{side}_tokenizer.json", getattr(data.tokenizers, side).to_str(pretty=True))


def _literal(value: Any) -> Any:
    """Plain values whose texts refer to no other option, whatever is in them: so YAML says what the run was told."""
    if isinstance(value, Mapping):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(each) for each in value]
    return literal(value) if isinstance(value, str) else value
