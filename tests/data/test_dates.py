"""Dates: a function of the source text, no day twice, any locale."""

import dataclasses
from datetime import date

import pytest
from babel import Locale

from lockstep.data.dates import STYLES, DatesTask, _write

TASK = DatesTask(
    source_locale="en",
    target_locale="hu",
    first_year=1900,
    last_year=2099,
    train_size=300,
    validation_size=50,
    test_size=100,
    vocabulary_size=400,
    joint_vocabulary=True,
)


def test_styles_of_a_day_written_by_hand() -> None:
    day, en, hu = date(2026, 11, 29), Locale("en"), Locale("hu")
    full = "2026. november 29., vasárnap"
    assert [_write(day, style, en, hu) for style in STYLES] == [
        ("Sunday, November 29, 2026", full),
        ("Sun, Nov 29, 2026", full),
        ("November 29, 2026", "2026. november 29."),
        ("Nov 29, 2026", "2026. november 29."),
    ]


def test_no_day_twice_and_the_seed_fixes_all() -> None:
    splits = TASK.splits(3)
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "validation": 50, "test": 100}
    sources = [text for split in splits.values() for text in split["source"]]
    assert len(set(sources)) == len(sources)
    assert TASK.splits(3)["test"]["source"] == splits["test"]["source"] != TASK.splits(4)["test"]["source"]
    whole = dataclasses.replace(TASK, first_year=2026, last_year=2026, train_size=300, validation_size=5, test_size=60)
    targets = [text for split in whole.splits(0).values() for text in split["target"]]
    assert len({target.split(",")[0] for target in targets}) == 365  # without the weekday, which some styles lack


@pytest.mark.parametrize("locale", ["ar", "zh", "ja", "hi", "el", "hu", "de", "zh_Hant", "pt-BR", "fa"])
def test_a_source_text_means_one_day(locale: str) -> None:
    task = dataclasses.replace(TASK, source_locale=locale)
    parsed = Locale.parse(locale.replace("-", "_"))
    days = [date(year, month, day) for year in (1926, 2026) for month in range(1, 13) for day in (1, 5, 11, 12)]
    texts = {_write(day, style, parsed, Locale("en"))[0]: day for style in STYLES for day in days}
    assert set(texts.values()) == set(days)
    assert all(day == texts[_write(day, style, parsed, Locale("en"))[0]] for style in STYLES for day in days)
    splits = task.splits(0)
    tokenizer = task.prepare(splits).tokenizers.source
    assert all(tokenizer.decode(tokenizer.encode(text).ids) == text for text in splits["test"]["source"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_locale": "hu_Hu_x"}, "source_locale=hu_Hu_x is not a locale that Babel knows; did you mean hu_HU"),
        ({"source_locale": "hungarian"}, "did you mean hu"),
        ({"target_locale": ""}, "target_locale= is not a locale"),
        ({"last_year": 1899}, "got 1900 and 1899"),
        ({"last_year": 1901, "train_size": 1000}, "730 days from 1900 to 1901 are too few for 1150"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TASK, **change)  # type: ignore[arg-type]
