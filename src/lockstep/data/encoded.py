"""Token ids of many texts, in one array: as tensors of their own they would take several times the room."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

Array = NDArray[np.int32]


class Encoded:
    """The ids of each text.

    Args:
        ids: of all texts, in a row.
        lengths: of each text.
    """

    def __init__(self, ids: Array, lengths: Array) -> None:
        self.ids, self.lengths = ids, lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)

    def __getitem__(self, index: int) -> Tensor:
        end = self._ends[index]
        return torch.from_numpy(self.ids[end - self.lengths[index] : end].astype(np.int64))

    def where(self, kept: NDArray[np.bool_]) -> "Encoded":
        """Some of the texts, by one truth value for each."""
        return Encoded(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])

    def cut(self, most: int) -> "Encoded":
        """Texts of no more than so many ids; those cut keep their last."""
        place = np.arange(len(self.ids)) - np.repeat(self._ends - self.lengths, self.lengths)
        kept = (place < most - 1) | (place == np.repeat(self.lengths, self.lengths) - 1)
        return Encoded(self.ids[kept], np.minimum(self.lengths, most))


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """(source, target) ids of each pair."""

    def __init__(self, source: Encoded, target: Encoded) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.source[index], self.target[index]

    def lengths(self) -> list[tuple[int, int]]:
        """(source, target) length of each pair."""
        return list(zip(self.source.lengths.tolist(), self.target.lengths.tolist(), strict=True))
