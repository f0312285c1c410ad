"""The copy task: say again what you heard."""

import math
import random
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from datasets import Dataset, DatasetDict

from lockstep.data.preparation import Prepared, SplitSize, prepare
from lockstep.data.tokenization import MOST, SPECIAL_TOKENS, Tokenizers, word_tokenizer

MOST_SYMBOLS = 100_000_000  # of all sequences together: some minutes of drawing, and a few gigabytes


@dataclass(frozen=True)
class CopyTask:
    """Random sequences of symbols; the target is the source.

    No sequence occurs twice, within a split or across splits: what is measured on the test split is not memory.

    Args:
        symbols: number of different symbols.
        min_length: symbols in the shortest sequence.
        max_length: symbols in the longest; each length is equally likely.
        train_size: sequences in the training split.
        validation_size: sequences in the validation split.
        test_size: sequences in the test split.

    Raises:
        ValueError: there are not twice as many different sequences as asked for.
    """

    symbols: Annotated[int, Ge(1), Le(MOST - len(SPECIAL_TOKENS))]
    min_length: int
    max_length: int
    train_size: SplitSize
    validation_size: SplitSize
    test_size: SplitSize
    natural_language: ClassVar[bool] = False
    target_language: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise ValueError(f"1 <= min_length <= max_length, got {self.min_length} and {self.max_length}")
        wanted = self.train_size + self.validation_size + self.test_size
        if (total := wanted * (self.min_length + self.max_length) // 2) > MOST_SYMBOLS:
            raise ValueError(f"{total:,} symbols in all are over {MOST_SYMBOLS:,}; lower train_size or max_length")
        # Twice, so that drawing until all differ ends soon; the shortest lengths run out first.
        per_length = wanted / (self.max_length - self.min_length + 1)
        if self.min_length * math.log(self.symbols) < math.log(2 * per_length):
            raise ValueError(
                f"{self.symbols} symbols give too few different sequences of {self.min_length} for {wanted} in all; "
                "raise symbols or min_length, or lower train_size"
            )

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test."""
        draw = random.Random(seed)
        sizes = {"train": self.train_size, "validation": self.validation_size, "test": self.test_size}
        texts: dict[str, None] = {}
        while len(texts) < sum(sizes.values()):
            length = draw.randint(self.min_length, self.max_length)
            texts[" ".join(str(draw.randrange(self.symbols)) for _ in range(length))] = None
        remaining = iter(texts)
        splits = {}
        for name, size in sizes.items():
            sequences = [next(remaining) for _ in range(size)]
            splits[name] = Dataset.from_dict({"source": sequences, "target": sequences})
        return DatasetDict(splits)

    def prepare(self, texts: DatasetDict) -> Prepared:
        """Token ids by one joint tokenizer, of one token a symbol."""
        tokenizer = word_tokenizer(map(str, range(self.symbols)))
        return prepare(texts, Tokenizers(tokenizer, tokenizer))
