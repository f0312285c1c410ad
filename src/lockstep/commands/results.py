"""What is left of a finished run: its metrics, its translations, and what its user is told."""

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.base.files import write_whole
from lockstep.base.terminal import counted
from lockstep.commands.run_folder import shown, tensorboard_command, with_trust
from lockstep.observe.scores import Score

logger = logging.getLogger("lockstep")

HYPOTHESES, REFERENCES = "test.hypotheses.txt", "test.references.txt"
SHOWN = {"bleu": "BLEU", "bleu_lowercased": "BLEU, lowercased", "chrf": "chrF"}


def write_metrics(metrics: Mapping[str, Any], folder: Path) -> None:
    """The last file of a run: with it, the run is complete."""
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")


def write_translations(hypotheses: Sequence[str], references: Sequence[str], folder: Path) -> None:
    """The test split's translations and references, a line each, so that anyone can score them again."""
    for name, lines in ((HYPOTHESES, hypotheses), (REFERENCES, references)):
        write_whole(folder / name, "".join(f"{line}\n" for line in lines))


def score_metrics(scores: Mapping[str, Score], tokenizer: str) -> dict[str, Any]:
    """Scores of the test, and under ``signatures`` and ``bleu_tokenizer`` what reproduces them."""
    values = {f"test/{name}": score.value for name, score in scores.items()}
    signatures = {f"test/{name}": score.signature for name, score in scores.items()}
    return {**values, "bleu_tokenizer": tokenizer, "signatures": signatures}


def scoring_command(folder: Path, tokenizer: str) -> str:
    """sacreBLEU's own command for the translations of a run."""
    hypotheses, references = (shlex.quote(shown(folder / name)) for name in (HYPOTHESES, REFERENCES))
    return f"sacrebleu {references} -i {hypotheses} -m bleu chrf -tok {tokenizer} -w 2"


def report(metrics: Mapping[str, Any], folder: Path, config: Mapping[str, Any]) -> None:
    """What was reached, where it is, and how to look at it."""
    translated = "signatures" in metrics
    logger.info(
        "test: %s, loss %.4f; %s in %.0f s, %.0f target tokens/s",
        f"BLEU {metrics['test/bleu']:.2f}" if translated else f"exact match {metrics['test/exact_match']:.4f}",
        metrics["test/loss"],
        counted(metrics["train/steps"], "step"),
        metrics["train/seconds"],
        metrics["train/target_tokens_per_second"],
    )
    if translated:
        for name, label in SHOWN.items():
            logger.info("%s %.2f   %s", label, metrics[f"test/{name}"], metrics["signatures"][f"test/{name}"])
        logger.info(
            "score it again, lowercased with --lowercase: %s", scoring_command(folder, metrics["bleu_tokenizer"])
        )
        checkpoint = with_trust("checkpoint", folder, config)
        logger.info("translate with it: python scripts/translate.py %s < source.txt > target.txt", checkpoint)
    logger.info("run folder: %s", shown(folder))
    logger.info("look at it: %s", tensorboard_command(Path(config["output"])))
