"""Translating texts with a trained model.

Shapes: B sentences, T_s source length.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from lockstep.data.batching import by_budget
from lockstep.data.tokenization import BOS, EOS, NEVER, PAD, SPECIAL_TOKENS, UNK, Tokenizers, to_line
from lockstep.transformer import Transformer
from lockstep.transformer.decoding import RecomputedDecoder, next_token
from lockstep.transformer.search import Hypothesis, SearchOptions, beam_search

logger = logging.getLogger("lockstep")

LONGEST = 1024  # source tokens: attention takes memory by their square, and no sentence is as long
MOST_CHARACTERS = 64 * LONGEST  # of a text, which is encoded whole: more than as many tokens of any language have


class Translation(NamedTuple):
    """A text without line breaks, what it was preferred by (see :class:`SearchOptions`), and both sides' token ids.

    The source's are from BOS to EOS, the target's from the first on; a blank text has none.
    """

    text: str
    score: float
    source: Sequence[int] = ()
    target: Sequence[int] = ()


class Translator:
    """Translates texts, whatever else is translated with them.

    Args:
        model: trained; in whatever mode it is, it translates without dropout, and is left in that mode.
        tokenizers: those it was trained with.
        search: how translations are found.
        batch_tokens: most source tokens in a batch, padding included, each counted ``beam_size`` times; a longer text
            is a batch of its own.
        cached: remember attention's keys and values, where it has canonical weights; else every step runs the
            attention's own forward on all tokens so far.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: Tokenizers,
        search: SearchOptions,
        batch_tokens: int,
        cached: bool = True,
    ) -> None:
        self._model = model
        self._tokenizers = tokenizers
        self._search = search
        self._batch_tokens = batch_tokens
        self._decoder = next_token if cached else RecomputedDecoder
        self._cut = self._unknown = self._translated = 0

    def __call__(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None, first_line: int = 1
    ) -> list[list[Translation]]:
        """The best translations of each text, best first; a blank text has one, which is empty.

        Args:
            texts: to translate; one of more than 65,536 characters, or 1,024 tokens, is cut, which the log says.
            progress: told after each batch how many texts are done.
            first_line: number of the first text, for the log.
        """
        target = self._tokenizers.target
        translations = [[Translation("", 0.0)] for _ in texts]
        real = [index for index, text in enumerate(texts) if text.strip()]
        encodings = self._tokenizers.source.encode_batch([texts[index][:MOST_CHARACTERS] for index in real])
        sources = {index: encoding.ids for index, encoding in zip(real, encodings, strict=True)}
        for index, ids in sources.items():
            if len(texts[index]) > MOST_CHARACTERS:
                logger.warning("line %d is cut: it has over %d characters", first_line + index, MOST_CHARACTERS)
            elif len(ids) > LONGEST:
                logger.warning("line %d is cut: %d tokens are over %d", first_line + index, len(ids), LONGEST)
            self._unknown += set(ids) <= {BOS, UNK, EOS}
            sources[index] = ids if len(ids) <= LONGEST else [*ids[: LONGEST - 1], EOS]
        done = len(texts) - len(real)
        lengths = {index: len(ids) * self._search.beam_size for index, ids in sources.items()}
        longest_first = sorted(lengths, key=lambda index: -lengths[index])  # what does not fit in memory shows at once
        for batch in by_budget(longest_first, lengths, self._batch_tokens):
            found = self.hypotheses([sources[index] for index in batch])
            self._cut += sum(best[0].tokens[-1] != EOS for best in found)
            self._translated += len(batch)
            for index, hypotheses in zip(batch, found, strict=True):
                translations[index] = [
                    Translation(to_line(target, h.tokens), h.score, sources[index], h.tokens) for h in hypotheses
                ]
            done += len(batch)
            if progress is not None:
                progress(done)
        return translations

    def say_doubts(self) -> None:
        """Warn, if it is so, that some of the texts so far had no known word, or their translations no end."""
        if self._unknown:
            words = [token for token in self._tokenizers.source.get_vocab() if token not in SPECIAL_TOKENS]
            known = f"{len(words)} words such as {', '.join(sorted(words)[:5])}"
            unknown = "%d of %d lines hold no word that this model knows: it has %s"
            logger.warning(unknown, self._unknown, self._translated, known)
        if self._cut:
            logger.warning(
                "%d of %d translations are cut: they reached their limit without an end; see search.max_length",
                self._cut,
                self._translated,
            )

    @torch.inference_mode()
    def hypotheses(self, sources: Sequence[list[int]]) -> list[list[Hypothesis]]:
        """The best translations of one batch of sources, each from BOS to EOS, as token ids."""
        device = self._model.source_embedding.weight.device
        source = pad_sequence([torch.tensor(ids) for ids in sources], batch_first=True, padding_value=PAD).to(device)
        was_training = self._model.training
        self._model.eval()
        try:
            return beam_search(
                self._decoder(self._model, source, source != PAD),
                [self._search.limit(len(ids)) for ids in sources],
                self._search,
                bos=BOS,
                eos=EOS,
                never=NEVER,
                device=device,
            )
        finally:
            self._model.train(was_training)
