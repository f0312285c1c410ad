"""What watches a run, as its options ask for: lines, pictures, samples, scores, checkpoints, and when to stop."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping

from lockstep.commands.options import ConfigurationError, Node, TrainOptions
from lockstep.commands.translator import Translator
from lockstep.data.batching import collate
from lockstep.data.datamodule import DataModule
from lockstep.observe.attention_maps import AttentionMaps, token_labels
from lockstep.observe.progress import NowAndThen, ProgressBar, Samples, ValidationLines
from lockstep.observe.scores import FinalScores, ValidationScores
from lockstep.observe.segmentation import BleuTokenizer, choose, how_to_install, installed
from lockstep.observe.throughput import Throughput
from lockstep.training.saving import Saving
from lockstep.training.signals import Signals
from lockstep.transformer import Transformer

logger = logging.getLogger("lockstep")


def check_scores(options: TrainOptions) -> None:
    """Refuse a tokenizer whose packages are not installed."""
    tokenizer = options.scores.tokenizer
    if tokenizer is not None and not installed(tokenizer):
        raise ConfigurationError(f"option scores.tokenizer={tokenizer} needs {how_to_install(tokenizer)}")


def callbacks(options: TrainOptions, data: DataModule, model: Transformer, signals: Signals) -> list[L.Callback]:
    """What watches a run; the throughput first, so that it does not time the others."""
    source, target = data.tokenizers.source, data.tokenizers.target
    example, samples = data.examples("validation", 1), data.examples("validation", 4)
    progress = ProgressBar() if sys.stdout.isatty() else NowAndThen()
    watchers: list[L.Callback] = [
        Throughput(),
        ValidationLines(data.natural_language),
        Samples(collate(samples), data.tokenizers),
        progress,
    ]
    if data.natural_language:
        plan, references = data.batches("validation").plan(), data.references("validation")
        tokenizer, reason = choose(options.scores.tokenizer, data.target_language, references)
        logger.info("BLEU by tokenizer %s: %s", tokenizer, reason)
        watchers.append(ValidationScores(references, plan, target, tokenizer))
        watchers.append(_final_scores(options, data, model, signals, progress, tokenizer))
    if options.attention_maps_every:
        labels = [token_labels(tokenizer, ids) for tokenizer, ids in zip((source, target), example[0], strict=True)]
        watchers.append(AttentionMaps(collate(example), labels[0], labels[1], options.attention_maps_every))
    if options.stop_at_exact_match is not None:
        threshold = options.stop_at_exact_match - 1e-6  # Lightning asks for more than this, not for as much
        # By the threshold alone: patience is Saving's, which knows several criteria and goes on with a run that ended.
        watchers.append(
            EarlyStopping("validation/exact_match", mode="max", patience=10**9, stopping_threshold=threshold)
        )
    return watchers


def _final_scores(
    options: TrainOptions,
    data: DataModule,
    model: Transformer,
    signals: Signals,
    progress: L.Callback,
    tokenizer: BleuTokenizer,
) -> FinalScores:
    """Scores of the test split's translations, for which a batch may be larger than in training."""
    translator = Translator(model, data.tokenizers, options.search, 4 * options.batch_tokens)

    def translate(texts: Sequence[str]) -> list[str]:
        def between_batches(done: int) -> None:
            signals.leave_test()
            if isinstance(progress, NowAndThen):
                progress.part_done("test: translated", done, len(texts))

        translations = [found[0].text for found in translator(texts, between_batches)]
        translator.say_doubts()
        return translations

    return FinalScores(data.sources("test"), data.references("test"), translate, tokenizer)


def build_saving(options: TrainOptions, config: Node, data: DataModule, folder: Path, signals: Signals) -> Saving:
    """Keeps checkpoints; the best is that of the highest BLEU, then chrF, then of the lowest loss, which is always."""
    return Saving(
        folder,
        options.checkpoint_every,
        dict(config),
        data.tokenizers.fingerprint(),
        signals,
        criteria=[*(("bleu", "max"), ("chrf", "max")) * data.natural_language, ("loss", "min")],
        patience=options.patience,
    )
