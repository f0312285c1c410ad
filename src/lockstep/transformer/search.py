"""Beam search: the likeliest translations of a batch of sentences.

Shapes: B sentences still searched, k hypotheses kept of each, t tokens so far, V vocabulary size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lockstep.transformer.decoding import Decoder

LARGEST_BEAM = 1000  # far beyond any use; each hypothesis takes a copy of its sentence
Tokens = TypeVar("Tokens", int, Tensor)  # a number of them, or one for each sentence


@dataclass(frozen=True)
class SearchOptions:
    """How to search. Every length counts a hypothesis's tokens: EOS is one, BOS and padding are not.

    Args:
        beam_size: hypotheses kept of each sentence; 1 is greedy search, which ends with the first EOS.
        length_penalty: alpha of the score, log-probability / length^alpha, by which ended hypotheses are compared; 0
            compares log-probabilities, which favours short ones, and 1 the mean of a token. (The form of fairseq,
            Marian and Hugging Face; the ((5 + length) / 6)^alpha of Wu et al., 2016, prefers others.)
        min_length: fewest tokens; 1 lets a translation be empty.
        max_length: most tokens, at which a hypothesis is cut, without EOS; None for twice the sentence's own source
            tokens, BOS and EOS among them, and ten more.
        n_best: translations to return of each sentence.
        early_stopping: end a sentence once ``beam_size`` hypotheses have ended, though another could still win (Hugging
            Face's option of this name; false is its "never").

    Raises:
        ValueError: a number out of range.
    """

    beam_size: int
    length_penalty: float
    min_length: int
    max_length: int | None
    n_best: int
    early_stopping: bool

    def __post_init__(self) -> None:
        for name in ("beam_size", "min_length", "n_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is less than 1")
        if self.beam_size > LARGEST_BEAM:
            raise ValueError(f"beam_size={self.beam_size} is over {LARGEST_BEAM}")
        if not 0 <= self.length_penalty <= 10:  # far beyond any use, and no length to that power overflows
            raise ValueError(f"length_penalty={self.length_penalty} is not a number from 0 to 10")
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best={self.n_best} is more than the beam_size={self.beam_size} hypotheses kept")
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"max_length={self.max_length} is less than min_length={self.min_length}")

    def limit(self, source_tokens: int) -> int:
        """Most tokens of the translation of a sentence of so many tokens."""
        return max(own_limit(source_tokens), self.min_length) if self.max_length is None else self.max_length

    def score(self, log_probability: float, length: int) -> float:
        """What hypotheses are compared by."""
        return log_probability / length**self.length_penalty


GREEDY = SearchOptions(beam_size=1, length_penalty=0.0, min_length=1, max_length=None, n_best=1, early_stopping=True)


def own_limit(source_tokens: Tokens) -> Tokens:
    """Most tokens of a translation where no option says: ample, and a function of its source alone."""
    return 2 * source_tokens + 10


class Hypothesis(NamedTuple):
    """A translation: its token ids up to EOS (or cut before), BOS left out, and its score."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def beam_search(
    decoder: Decoder,
    limits: Sequence[int],
    options: SearchOptions,
    *,
    bos: int,
    eos: int,
    never: Sequence[int],
    device: torch.device,
) -> list[list[Hypothesis]]:
    """The best hypotheses found of each sentence, best first.

    At each step the ``beam_size`` likeliest continuations of a sentence are looked at: those by EOS have ended, and
    the likeliest others are kept, to make up ``beam_size``. A sentence's search ends at its limit, or once none that
    is kept could still come among the ``n_best``, however surely it went on; a beam of one, and any with
    ``early_stopping``, ends once ``beam_size`` have ended. Sentences do not influence each other; of equal candidates
    the one from the better hypothesis comes first, then the lower token id, and of equal translations the one that
    ended first.

    Args:
        decoder: of the batch of sentences.
        limits: most tokens of each sentence's translation.
        options: of the search.
        bos: id of the token that every hypothesis begins with.
        eos: id of the token that ends one.
        never: ids that no hypothesis may hold.
        device: of the decoder's tensors.
    """
    ended: list[list[Hypothesis]] = [[] for _ in limits]
    active = list(range(len(limits)))  # sentences still searched, B
    tokens = torch.full((len(limits), 1, 1), bos, device=device)  # (B, k, t)
    totals = torch.zeros(len(limits), 1, dtype=torch.float64, device=device)  # log-probabilities (B, k)
    length = 0
    while active:
        length += 1
        B, k = totals.shape
        logits = decoder(tokens.flatten(0, 1))  # (B·k, V)
        log_probabilities = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        forbidden = {*never, eos} if length < options.min_length else {*never}
        log_probabilities[:, list(forbidden)] = float("-inf")
        # One more than a beam, since EOS may be among them.
        values, ids = largest(log_probabilities, min(options.beam_size + 1, logits.size(1) - len(forbidden)))
        order = (totals[..., None] + values.view(B, k, -1)).flatten(1).sort(dim=-1, descending=True, stable=True)
        parents = order.indices // values.size(1)  # (B, candidates), of k
        following = ids.view(B, -1).gather(1, order.indices)
        is_end = following == eos

        at_limit = torch.tensor([limits[sentence] <= length for sentence in active], device=device)
        ending = is_end | at_limit[:, None]
        ending[:, options.beam_size :] = False
        for row, rank in ending.nonzero().tolist():
            path = [*tokens[row, parents[row, rank], 1:].tolist(), int(following[row, rank])]
            ended[active[row]].append(Hypothesis(path, options.score(float(order.values[row, rank]), length)))

        kept = min(options.beam_size, k * (logits.size(1) - len({*never, eos})))
        going_on = is_end.sort(dim=-1, stable=True).indices[:, :kept]  # (B, k), those that do not end first
        totals = order.values.gather(1, going_on)
        parents, following = parents.gather(1, going_on), following.gather(1, going_on)
        best = totals[:, 0].tolist()
        searched = [
            row
            for row, sentence in enumerate(active)
            if limits[sentence] > length
            and not _over(ended[sentence], options, options.score(best[row], limits[sentence]))
        ]
        active = [active[row] for row in searched]
        rows = torch.tensor(searched, device=device, dtype=torch.long)
        totals, parents, following = totals[rows], parents[rows], following[rows]
        tokens = torch.cat([tokens[rows[:, None], parents], following[..., None]], dim=-1)
        if len(searched) < B or options.beam_size > 1:  # else every hypothesis stays where it is
            decoder.select(rows, (rows[:, None] * k + parents).flatten())
    return [sorted(hypotheses, key=lambda h: -h.score)[: options.n_best] for hypotheses in ended]


def _over(ended: list[Hypothesis], options: SearchOptions, bound: float) -> bool:
    """Whether a sentence has its translations, given the best score that a hypothesis going on could reach."""
    if len(ended) >= options.beam_size and (options.early_stopping or options.beam_size == 1):
        return True
    return sum(hypothesis.score >= bound for hypothesis in ended) >= options.n_best


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest values of each row (R, V) and their indices, of equal ones the lower index first."""
    found, indices = values.topk(min(count + 1, values.size(1)))
    if count < values.size(1) and (found[:, count - 1] == found[:, count]).any():
        # torch leaves open which of equal values it finds.
        indices = values.sort(dim=-1, descending=True, stable=True).indices
    indices = indices[:, :count].sort(dim=-1).values
    order = values.gather(1, indices).sort(dim=-1, descending=True, stable=True)
    return order.values, indices.gather(1, order.indices)
