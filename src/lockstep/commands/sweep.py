"""A sweep's results: one row a job, sorted, as a table and as a file."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from lockstep.base.files import write_whole
from lockstep.base.hints import as_argument
from lockstep.base.terminal import cell, console, counted, say
from lockstep.commands.run_folder import new_run_folder, shown

# Metrics by the heads of their columns; a task has the first or the second.
COLUMNS = {
    "exact match": ("test/exact_match", "{:.4f}"),
    "BLEU": ("test/bleu", "{:.2f}"),
    "loss": ("test/loss", "{:.4f}"),
    "steps": ("train/steps", "{:d}"),
    "tokens/s": ("train/target_tokens_per_second", "{:.0f}"),
}


@dataclass
class Sweep:
    """Collects what became of each job.

    Args:
        folder: of the sweep, with a folder of each job in it.
        jobs: for each that is to run, the words of a command line that makes it alone.
    """

    folder: Path
    jobs: Sequence[Sequence[str]]
    _rows: list[tuple[dict[str, str], Mapping[str, Any] | str]] = field(default_factory=list)

    def add(self, choices: dict[str, str], outcome: Mapping[str, Any] | str) -> None:
        """Note a job's swept options, and its metrics or what went wrong."""
        self._rows.append((choices, outcome))

    @property
    def failed(self) -> int:
        """How many jobs went wrong."""
        return sum(isinstance(outcome, str) for _, outcome in self._rows)

    @classmethod
    def begin(cls, output: Path, jobs: Sequence[Sequence[str]]) -> "Sweep":
        """Make a folder for a sweep.

        Raises:
            OSError: it cannot be made.
        """
        return cls(new_run_folder(output, "sweep"), jobs)

    def report(self) -> None:
        """Write the table, the best BLEU or exact match first, to ``results.csv``, and print it."""
        options = list(dict.fromkeys(option for choices, _ in self._rows for option in choices))
        results = [outcome for _, outcome in self._rows if not isinstance(outcome, str)]
        columns = [head for head, (name, _) in COLUMNS.items() if any(name in outcome for outcome in results)]
        header = [*options, *columns, "error"]
        rows = [
            [*(choices.get(option, "") for option in options), *_cells(outcome, columns)]
            for choices, outcome in sorted(self._rows, key=lambda row: _rank(row[1]))
        ]
        text = io.StringIO()
        csv.writer(text).writerows([header, *rows])
        write_whole(self.folder / "results.csv", text.getvalue())
        table = Table()
        for head in header:
            table.add_column(cell(head))
        for row in rows:
            table.add_row(*map(cell, row))
        console().print(table)
        ended = f"{len(rows)} of {counted(len(self.jobs), 'job')} ran, {self.failed} failed"
        say(f"{ended}: {shown(self.folder / 'results.csv')}")
        place = as_argument("output", shown(self.folder))
        for words in self.jobs[len(rows) :]:
            say(f"not run: python scripts/train.py {shlex.join(words)} {place}")


def _rank(outcome: Mapping[str, Any] | str) -> tuple[bool, float, float]:
    if isinstance(outcome, str):
        return True, 0.0, 0.0
    return False, -outcome["test/bleu" if "test/bleu" in outcome else "test/exact_match"], outcome["test/loss"]


def _cells(outcome: Mapping[str, Any] | str, columns: Sequence[str]) -> list[str]:
    if isinstance(outcome, str):
        return [*[""] * len(columns), outcome]
    shown_as = [COLUMNS[head] for head in columns]
    return [*(form.format(outcome[name]) if name in outcome else "" for name, form in shown_as), ""]
