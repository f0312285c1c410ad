"""What a comparison leaves behind: a table, a file of all figures, and scalars for TensorBoard."""

import math
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from lockstep.base.terminal import cell, counted
from lockstep.comparison.record import Record
from lockstep.comparison.resync import CONTROLS, Excess
from lockstep.comparison.verdict import Verdict

FORMAT_VERSION = 1


class ScalarWriter(Protocol):
    """The part of TensorBoard's ``SummaryWriter`` that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...

    def add_custom_scalars(self, layout: dict[str, dict[str, list[Any]]]) -> None: ...


def show(record: Record, verdicts: dict[str, Verdict], console: Console) -> None:
    """Print a table of figures, then each verdict in a sentence."""
    title = cell(f"compared with {record.reference}, {counted(len(record.losses), 'step')}")
    table = Table(title=title, title_justify="left")
    for heading in ("", "verdict", "check", "resync", "key bias", "drift"):
        table.add_column(heading, justify="left" if heading in ("", "verdict") else "right", no_wrap=True)
    for name, found in record.variants.items():
        drift = f"{found.drift[-1].weights:.1e}" if found.drift else ""
        steps = [resync.variants[name] for resync in record.resyncs]
        checks = [check.variants[name] for check in record.checks.values()]
        table.add_row(cell(name), str(verdicts[name].kind), *_figures(checks, steps, max), drift)
    table.add_section()
    nulls = [null for resync in record.resyncs for null in resync.nulls]
    checks = [null for check in record.checks.values() for null in check.nulls]
    table.add_row("nulls", "weights moved by one ulp", *_figures(checks, nulls, median))
    for error in CONTROLS:
        checks = [check.controls[error] for check in record.checks.values()]
        steps = [resync.controls[error] for resync in record.resyncs]
        table.add_row(f"control {error:.0e}", "scores scaled", *_figures(checks, steps, median))
    console.print(table)
    console.print(
        "check: gradients on random weights in float64; resync and key bias: recorded steps of training; all in units "
        "of the noise, the largest for variants, the median for nulls and controls. drift: weights at the end of free "
        "training, relative to how far the reference moved.",
        style="dim",
    )
    for name, verdict in verdicts.items():
        console.print(cell(f"{name}: {verdict}"))
    console.print(cell(f"Not exercised: {'; '.join(record.not_exercised)}."))


def _figures(check: list[Excess], steps: list[Excess], one: Callable[[list[float]], float]) -> list[str]:
    key_bias = [excess.key_bias.noise for excess in steps]
    columns = ([excess.noise for excess in check], [excess.noise for excess in steps], key_bias)
    return [_short(one(column)) if column else "" for column in columns]


def _short(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 1e4 else f"{value:.0e}"


def to_json(record: Record, verdicts: dict[str, Verdict]) -> dict[str, Any]:
    """Plain values, the verdicts first; numbers that are not finite, which JSON lacks, become texts."""
    return {
        "format_version": FORMAT_VERSION,
        "verdicts": {name: str(verdict) for name, verdict in verdicts.items()},
        "figures": _plain(asdict(record)),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"{key:.0e}" if isinstance(key, float) else key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_scalars(record: Record, writer: ScalarWriter) -> None:
    """The recorded figures as scalars, and a page ("Custom scalars") that lays the variants over one another.

    Logarithms, since TensorBoard's axes start linear. The losses ``loss/NAME`` were logged in training.
    """
    for resync in record.resyncs:
        named = {**resync.variants, **{f"control {error:.0e}": e for error, e in resync.controls.items()}}
        named |= {f"null {index}": null for index, null in enumerate(resync.nulls, start=1)}
        for name, excess in named.items():
            writer.add_scalar(f"resync/{name}", _log10(excess.noise, 1e-3), resync.step)
    for name, found in record.variants.items():
        for drift in found.drift:
            writer.add_scalar(f"drift/{name}", _log10(drift.weights, 1e-9), drift.step)
            writer.add_scalar(f"key_bias_drift/{name}", _log10(drift.key_bias, 1e-9), drift.step)
    charts = {
        "training loss, nats": ["Multiline", ["loss/.*"]],
        "log10 of the resynchronised difference in units of the noise (limit 1; 0 as -3)": ["Multiline", ["resync/.*"]],
        "log10 of the free drift of the weights (0 as -9)": ["Multiline", ["drift/.*"]],
    }
    writer.add_custom_scalars({"Lockstep": charts})


def _log10(value: float, smallest: float) -> float:
    return math.log10(min(max(value, smallest), 1e18))
