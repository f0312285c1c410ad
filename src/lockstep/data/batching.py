"""Batches of like length, by a budget of tokens, in an order that is a pure function of seed and epoch.

Training reads one endless stream of batches, epoch after epoch, which can begin anywhere.

Shapes: B batch, T_s and T_t source and target length.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler

from lockstep.base.terminal import counted
from lockstep.data.tokenization import PAD


class Batch(NamedTuple):
    """Token ids, padded at the end: ``source`` (B, T_s) and ``target`` (B, T_t), each from BOS to EOS."""

    source: Tensor
    target: Tensor

    @property
    def source_mask(self) -> Tensor:
        """(B, T_s), True at real tokens."""
        return self.source != PAD

    @property
    def prefix(self) -> Tensor:
        """The decoder's input (B, T_t - 1): every token but the last."""
        return self.target[:, :-1]

    @property
    def labels(self) -> Tensor:
        """What follows each prefix (B, T_t - 1): every token but BOS."""
        return self.target[:, 1:]


def collate(pairs: Sequence[tuple[Tensor, Tensor]]) -> Batch:
    """Pad pairs of id sequences to a batch."""
    return Batch(*(pad_sequence(list(side), batch_first=True, padding_value=PAD) for side in zip(*pairs, strict=True)))


def by_budget(
    order: Iterable[int], lengths: Sequence[int] | Mapping[int, int], budget: int, fewest: int = 1
) -> list[list[int]]:
    """Cut an order of texts into batches whose tokens, padding included, keep to a budget.

    Args:
        order: indices of texts.
        lengths: of each text, by its index.
        budget: most tokens in a batch, exceeded only by batches of ``fewest`` texts.
        fewest: texts to a batch; the last may have fewer.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        longest = max(longest, lengths[index])
        if not batches or (len(batches[-1]) >= fewest and longest * (len(batches[-1]) + 1) > budget):
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


class LengthGroupedBatches(Sampler[list[int]]):
    """Batches of examples of like length: sorted by the longer side, cut by a budget of padded target tokens.

    Without jitter, examples whose longer sides agree follow each other by which side that is and by how much, and the
    next length turns that order round: neighbours are alike on both sides. A draw worth two tokens mixes them.

    No batch holds one example alone: a batch of one takes other kernels, which round differently.

    Args:
        lengths: (source, target) length of each example, at least two.
        batch_tokens: most target tokens in a batch, padding included; two examples go together even above it.
        seed: of the order; None keeps one fixed order, for evaluation.
        jitter: mix lengths up to this many tokens apart. Where many examples share each length there would be no
            padding at all, and a mask that is wrong could not show.
    """

    def __init__(
        self, lengths: Sequence[tuple[int, int]], batch_tokens: int, *, seed: int | None, jitter: int = 0
    ) -> None:
        source, target = torch.tensor(lengths, dtype=torch.float64).unbind(1)
        self._longer = torch.maximum(source, target)
        self._excess = (source - target) * (1 - 2 * (self._longer % 2))
        self._lengths = lengths
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._jitter = jitter
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to plan."""
        self._epoch = epoch

    def plan(self) -> list[list[int]]:
        """All batches of the current epoch."""
        generator = torch.Generator().manual_seed(0 if self._seed is None else self._seed)
        if self._seed is not None:
            # One stream of seeds for the epochs: (seed, epoch) and (seed + 1, epoch - 1) share nothing.
            words = torch.empty(self._epoch + 1, dtype=torch.int64).random_(generator=generator)
            generator.manual_seed(int(words[-1]))
        draws = torch.rand(len(self._longer), generator=generator, dtype=torch.float64)
        # A millionth: no length is so large that it would change the order of the longer sides.
        ties = draws * self._jitter if self._jitter else (self._excess + 2 * draws) * 1e-6
        order = (self._longer + ties).argsort().tolist()
        batches = by_budget(order, [target for _, target in self._lengths], self._batch_tokens, fewest=2)
        if len(batches) > 1 and len(batches[-1]) == 1:
            if len(batches[-2]) > 2:
                batches[-1].append(batches[-2].pop())
            else:
                batches[-2:] = [batches[-2] + batches[-1]]
        if self._seed is None:
            return batches
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def summary(self) -> str:
        """Size of the current epoch, and the share of its positions, of both sides, that are padding."""
        plan = self.plan()
        count, tokens = len(self._lengths), [sum(pair[side] for pair in self._lengths) for side in (0, 1)]
        over = sum(len(b) * max(self._lengths[i][1] for i in b) > self._batch_tokens for b in plan)
        positions = sum(len(b) * max(self._lengths[i][side] for i in b) for b in plan for side in (0, 1))
        over_budget = (
            f"; {over:,} of them over batch_tokens={self._batch_tokens}, as none holds fewer than two" if over else ""
        )
        return (
            f"{counted(count, 'training pair')}, {counted(tokens[1] - count, 'target token')}, "
            f"{counted(len(plan), 'batch', 'batches')} an epoch, "
            f"padding {1 - sum(tokens) / positions:.1%}{over_budget}"
        )

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan())

    def __len__(self) -> int:
        return len(self.plan())


class EndlessBatches(Sampler[list[int]]):
    """The batches of all epochs, one epoch after the other, from a given place on.

    Args:
        epochs: plans each epoch.
        epoch: to begin in.
        batch: of that epoch, to begin with.
    """

    def __init__(self, epochs: LengthGroupedBatches, epoch: int = 0, batch: int = 0) -> None:
        self._epochs = epochs
        self._begin = (epoch, batch)
        self._first = [(epoch, -batch)]  # of each epoch begun: where its first batch lies in this stream

    def __iter__(self) -> Iterator[list[int]]:
        epoch, batch = self._begin
        self._first = [(epoch, -batch)]
        while True:
            self._epochs.set_epoch(epoch)
            plan = self._epochs.plan()
            yield from plan[batch:]
            self._first.append((epoch + 1, self._first[-1][1] + len(plan)))
            epoch, batch = epoch + 1, 0

    def place(self, count: int) -> tuple[int, int]:
        """The (epoch, batch) that follows the first ``count`` batches of this stream, of those already drawn."""
        epoch, first = next(place for place in reversed(self._first) if place[1] <= count)
        return epoch, count - first
