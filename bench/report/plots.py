"""Plots as PNG files. The only module that knows matplotlib, and it is imported where something is drawn."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.report.shown import Plot

SIZE = (7.5, 4.2)
DPI = 120
OURS = "octavo"
"""The series whose name begins so stands out."""


class CannotDraw(ValueError):
    """matplotlib is not installed; the message says how to get it."""


def draw_all(plots: Iterable[Plot], folder: Path) -> None:
    """Writes `folder`/NAME.png for each. Raises CannotDraw."""
    for plot in plots:
        folder.mkdir(parents=True, exist_ok=True)
        _draw(plot, folder / f"{plot.name}.png")


def _draw(plot: Plot, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CannotDraw("plots need matplotlib: pip install 'octavo[bench]'") from error
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    (_bars if plot.bars else _lines)(axes, plot)
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.set_xticks(range(len(plot.ticks)), plot.ticks)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Software": None})


def _lines(axes: Any, plot: Plot) -> None:
    for name, values in plot.series.items():
        places = [(i, value) for i, value in enumerate(values) if value is not None]
        width = 2.5 if name.startswith(OURS) else 1.2
        axes.plot([i for i, _ in places], [value for _, value in places], marker="o", linewidth=width, label=name)


def _bars(axes: Any, plot: Plot) -> None:
    """Those of one tick side by side."""
    width = 0.8 / len(plot.series)
    for number, (name, values) in enumerate(plot.series.items()):
        left = (number - (len(plot.series) - 1) / 2) * width
        bars = axes.bar([i + left for i in range(len(values))], [value or 0 for value in values], width, label=name)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
