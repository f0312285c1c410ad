"""BLEU and chrF of translations, by sacreBLEU (Post, 2018), on detokenised text: the corpus's own lines, never tokens.

A score without its signature means little, so each carries one: it names the tokenisation, the case and the version.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from sacrebleu import BLEU, CHRF
from tokenizers import Tokenizer

from lockstep.data.batching import Batch
from lockstep.data.tokenization import to_line
from lockstep.observe.segmentation import BleuTokenizer

logger = logging.getLogger("lockstep")


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100, and what reproduces it."""

    value: float
    signature: str


def score(hypotheses: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer) -> dict[str, Score]:
    """Corpus scores ``bleu``, ``bleu_lowercased`` and ``chrf``.

    Args:
        hypotheses: one translation of each sentence, detokenised.
        references: in the same order; one stream, as a file is, not a list for each sentence.
        tokenizer: of BLEU; chrF counts characters in any language.

    Raises:
        ValueError: not as many references as hypotheses, which sacreBLEU would cut to the shorter.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} translations cannot be scored by {len(references)} references")
    scores = {}
    bleu = {f"bleu{end}": BLEU(tokenize=tokenizer, lowercase=bool(end)) for end in ("", "_lowercased")}
    for name, metric in {**bleu, "chrf": CHRF()}.items():
        value = metric.corpus_score(hypotheses, [references]).score
        scores[name] = Score(float(value), str(metric.get_signature()))
    return scores


class ValidationScores(L.Callback):
    """Scores what a validation step returns, its greedy translations, as ``validation/bleu`` and so on.

    Args:
        references: of the validation split, in its order.
        plan: the split's indices in each batch: batches hold sentences of like length, not neighbours.
        tokenizer: of the target.
        bleu_tokenizer: see :func:`score`.
    """

    def __init__(
        self,
        references: Sequence[str],
        plan: Sequence[Sequence[int]],
        tokenizer: Tokenizer,
        bleu_tokenizer: BleuTokenizer,
    ) -> None:
        self._references = references
        self._plan = plan
        self._tokenizer = tokenizer
        self._bleu_tokenizer = bleu_tokenizer
        self._hypotheses: dict[int, str] = {}
        self._zeros = 0

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._hypotheses = {}

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        for index, ids in zip(self._plan[batch_idx], outputs, strict=True):
            self._hypotheses[index] = to_line(self._tokenizer, ids.tolist())

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        hypotheses = [self._hypotheses[index] for index in sorted(self._hypotheses)]
        results = score(hypotheses, self._references, self._bleu_tokenizer)
        for name, result in results.items():
            pl_module.log(f"validation/{name}", result.value)
        self._zeros += results["bleu"].value < 0.005
        if self._zeros == 2:
            logger.warning(
                "validation BLEU stays 0 by the words that tokenizer %s finds: meanwhile chrF, then the loss, tell "
                "which weights are best. If the target language writes no spaces, use scores.tokenizer=char",
                self._bleu_tokenizer,
            )


class FinalScores(L.Callback):
    """Translates the test split by its own search once Lightning has tested, and keeps texts and scores.

    Args:
        sources: of the test split, in its order.
        references: likewise.
        translate: each source's best translation, as a line of text.
        bleu_tokenizer: see :func:`score`.
    """

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        translate: Callable[[Sequence[str]], list[str]],
        bleu_tokenizer: BleuTokenizer,
    ) -> None:
        self._sources = sources
        self.references = references
        self.bleu_tokenizer = bleu_tokenizer
        self._translate = translate
        self.hypotheses: list[str] = []
        self.scores: dict[str, Score] = {}

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Here the model is on its device, in evaluation mode, and holds the weights that are judged.
        self.hypotheses = self._translate(self._sources)
        self.scores = score(self.hypotheses, self.references, self.bleu_tokenizer)
