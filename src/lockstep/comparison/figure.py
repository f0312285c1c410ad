"""The figure of a comparison: what one sees, and below it what can be judged."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.ticker import FormatStrFormatter

from lockstep.base.files import whole_file
from lockstep.comparison.record import Record
from lockstep.comparison.resync import CONTROLS, LIMIT, NULLS

GREY = "0.55"
MARKERS = "osD^vP*X"


def draw(record: Record, path: Path) -> None:
    """Losses overlaid; the resynchronised difference against nulls and controls; the free drift.

    Args:
        record: of a finished run.
        path: of the PNG.
    """
    # A name with a $ is no formula, and a letter that the font has not got is a box; what a matplotlibrc in the working
    # folder says, such as to run LaTeX, counts for nothing.
    with context(["default", {"text.parse_math": False}]), warnings.catch_warnings(), whole_file(path) as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        _draw(record).savefig(file, format="png", dpi=100)


def _draw(record: Record) -> Figure:
    figure = Figure(figsize=(10, 9.5), layout="constrained")
    losses, resync, drift = figure.subplots(3, 1, height_ratios=[1, 1.3, 1])
    _losses(losses, record)
    _resync(resync, record)
    _drift(drift, record)
    for axes in (losses, resync, drift):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    drift.set_xlabel("optimisation step")
    return figure


def _losses(axes: Axes, record: Record) -> None:
    """The first curves wide and pale, the later ones narrow, so that those underneath stay visible."""
    curves = {record.reference: record.losses} | {name: found.losses for name, found in record.variants.items()}
    for index, (name, values) in enumerate(curves.items()):
        width = 1 + 4 * (len(curves) - 1 - index) / max(1, len(curves) - 1)
        axes.plot(
            range(1, len(values) + 1),
            values,
            label=name,
            linewidth=width,
            color=f"C{index % 10}",
            alpha=0.45 if width > 1 else 1,
        )
    axes.set_title("What one sees: training loss (nats)", loc="left")


def _resync(axes: Axes, record: Record) -> None:
    steps = [resync.step for resync in record.resyncs]
    for error, line in zip(CONTROLS, ("-", "--", ":"), strict=True):
        values = [resync.controls[error].noise for resync in record.resyncs]
        axes.plot(steps, values, line, color=GREY, label=f"control: scores × (1 + {error:.0e})")
    axes.axhline(LIMIT, color="C3", linewidth=1, label="limit of rounding")
    for index in range(NULLS):
        values = [resync.nulls[index].noise for resync in record.resyncs]
        axes.plot(steps, values, "_", color="0.3", markersize=9, label=None if index else "nulls: moved by one ulp")
    _points(axes, steps, {name: [r.variants[name].noise for r in record.resyncs] for name in record.variants}, 0.01)
    axes.set_title("What is judged: one step from the same state, difference in units of the noise", loc="left")


def _drift(axes: Axes, record: Record) -> None:
    steps = [resync.step for resync in record.resyncs]
    curves = {name: [drift.weights for drift in found.drift] for name, found in record.variants.items()}
    _points(axes, steps, curves, 1e-8)
    axes.set_ylim(top=10)
    axes.set_title("What proves nothing: drift of the weights in free training, relative to the way gone", loc="left")


def _points(axes: Axes, steps: Sequence[int], curves: dict[str, list[float]], smallest: float) -> None:
    """Values on logarithmic axes; exact zeros, which have no place there, stand on the bottom line."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    # The powers of ten that are usual on these axes are formulas, which are switched off for the sake of names.
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter(FormatStrFormatter("%.0e"))
    axes.yaxis.set_minor_formatter("")
    bottom = min([smallest, *(value for values in curves.values() for value in values if value > 0)]) / 2
    for index, (name, values) in enumerate(curves.items(), start=1):
        label = name if any(values) else f"{name}: exactly 0"
        shown = [value or bottom for value in values]
        style = f"-{MARKERS[index % len(MARKERS)]}"
        axes.plot(steps, shown, style, color=f"C{index % 10}", markersize=5, label=label, clip_on=False)
    axes.set_ylim(bottom=bottom)
