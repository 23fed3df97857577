"""What a section shows, as values: tables, claims beside their targets, and plots. Nothing here is drawn or written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Cell = str | float | int | None
"""None: not measured."""


@dataclass(frozen=True, slots=True)
class Column:
    """`digits`: after the point, for numbers that are not whole."""

    title: str
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as long as `columns`. Raises ValueError for others."""

    columns: tuple[Column, ...]
    rows: list[list[Cell]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells for {len(self.columns)} columns: {row}")


class Work(NamedTuple):
    """What one step does: the model by its name in `subjects`, `prefill` or `decode`, requests, tokens before them."""

    model: str
    kind: str
    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Target:
    """What docs/performance.md is measured against."""

    bound: float
    unit: str = ""
    at_most: bool = False

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        return "met" if (value <= self.bound if self.at_most else value >= self.bound) else "missed"

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that has a target. `work` finds what this machine's limits say about it; or `note` says it."""

    what: str
    value: float | None
    target: Target
    work: Work | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture: a value of each series at each tick; None leaves a gap. Bars where ticks have no order."""

    name: str
    """Of its file, without the ending."""
    title: str
    x: str
    y: str
    ticks: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    plots: tuple[Plot, ...] = ()
    limits: Mapping[Work, str] = field(default_factory=dict[Work, str])
    """How far a work is from what the machine allows, in words."""
