"""Dates from one language into another: real words, whose order crosses."""

import difflib
import random
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_skeleton
from babel.localedata import locale_identifiers
from datasets import Dataset, DatasetDict

from lockstep.data.preparation import Prepared, SplitSize, prepare
from lockstep.data.tokenization import VocabularySize, subword_tokenizers

# In English "Sunday, November 29, 2026", "Sun, Nov 29, 2026", "November 29, 2026" and "Nov 29, 2026".
STYLES = ("full", "abbreviated", "long", "medium")


@dataclass(frozen=True)
class DatesTask:
    """A date as one locale writes it, to be written as another does (CLDR, through Babel).

    The source is in one of four styles; the target is full where the source names the weekday, else long. All four
    give the year in full, so that a source text means one day and has one target. No day occurs twice, within a split
    or across splits.

    Args:
        source_locale: any that Babel knows, such as en, pt_BR or zh_Hant.
        target_locale: likewise.
        first_year: of the days drawn, at least 1.
        last_year: of the days drawn, inclusive, at most 9999.
        train_size: dates in the training split.
        validation_size: dates in the validation split.
        test_size: dates in the test split.
        vocabulary_size: most tokens of a tokenizer.
        joint_vocabulary: one tokenizer for both sides.

    Raises:
        ValueError: an unknown locale, or too few days in the years for the splits.
    """

    source_locale: str
    target_locale: str
    first_year: int
    last_year: int
    train_size: SplitSize
    validation_size: SplitSize
    test_size: SplitSize
    vocabulary_size: VocabularySize
    joint_vocabulary: bool
    natural_language: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for option in ("source_locale", "target_locale"):
            _locale(option, getattr(self, option))
        if not 1 <= self.first_year <= self.last_year <= 9999:
            raise ValueError(f"1 <= first_year <= last_year <= 9999, got {self.first_year} and {self.last_year}")
        wanted = self.train_size + self.validation_size + self.test_size
        days = len(self._days())
        if days < wanted:
            raise ValueError(
                f"{days} days from {self.first_year} to {self.last_year} are too few for {wanted} different dates; "
                "widen the years or lower train_size"
            )

    @property
    def target_language(self) -> str:
        return self.target_locale

    def _days(self) -> range:
        """Proleptic Gregorian ordinals."""
        return range(date(self.first_year, 1, 1).toordinal(), date(self.last_year, 12, 31).toordinal() + 1)

    def splits(self, seed: int) -> DatasetDict:
        """Text columns ``source`` and ``target`` of the splits train, validation and test."""
        draw = random.Random(seed)
        source = _locale("source_locale", self.source_locale)
        target = _locale("target_locale", self.target_locale)
        sizes = {"train": self.train_size, "validation": self.validation_size, "test": self.test_size}
        days = iter(draw.sample(self._days(), sum(sizes.values())))
        splits = {}
        for name, size in sizes.items():
            pairs = [_write(date.fromordinal(next(days)), draw.choice(STYLES), source, target) for _ in range(size)]
            splits[name] = Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})
        return DatasetDict(splits)

    def prepare(self, texts: DatasetDict) -> Prepared:
        """Token ids by byte-level subwords, trained on the training split."""
        tokenizers = subword_tokenizers(
            texts["train"], vocabulary_size=self.vocabulary_size, joint=self.joint_vocabulary
        )
        return prepare(texts, tokenizers)


def _write(day: date, style: str, source: Locale, target: Locale) -> tuple[str, str]:
    """One day as source and target text."""
    if style == "abbreviated":
        return format_skeleton("yMMMEd", day, locale=source), format_date(day, "full", target)
    return format_date(day, style, source), format_date(day, "full" if style == "full" else "long", target)


def _locale(option: str, name: str) -> Locale:
    try:
        return Locale.parse(name, sep="-" if "-" in name else "_")
    except (UnknownLocaleError, ValueError):
        known = {identifier: identifier for identifier in locale_identifiers()}
        known |= {language.lower(): code for code, language in Locale("en").languages.items() if code in known}
        (near,) = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0)
        raise ValueError(f"{option}={name} is not a locale that Babel knows; did you mean {known[near]}?") from None
