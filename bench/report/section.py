"""Section: what a part of the report is, before it has run and afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Cell = str | float | int | None
"""None: not measured."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run was given."""

    peers: Path | None = None
    """Where other engines are installed; None: nowhere."""
    model: str | None = None
    """None: the default model."""


@dataclass(frozen=True, slots=True)
class Column:
    """`digits`: after the point, for numbers that are not whole."""

    title: str
    digits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table. `measure` gives its rows, as long as `columns`."""

    name: str
    title: str
    about: str
    """What was measured and how: a paragraph for who has never seen it."""
    columns: tuple[Column, ...]
    measure: Callable[[Conditions], list[list[Cell]]]
    needs_peers: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A section that ran: all that the page needs, so that it can be rendered again without running anything."""

    name: str
    title: str
    about: str
    columns: list[Column]
    rows: list[list[Cell]]
    machine: dict[str, str]
    """Of this section: others in the same file may be from another day."""
    command: str


@dataclass(frozen=True, slots=True)
class Report:
    sections: list[Measured] = field(default_factory=list[Measured])

    def with_section(self, section: Measured) -> "Report":
        """The same report, in which this section is new; it stays where it was, or comes last."""
        names = [each.name for each in self.sections]
        if section.name not in names:
            return Report([*self.sections, section])
        return Report([section if each.name == section.name else each for each in self.sections])


def run(section: Section, conditions: Conditions, machine: dict[str, str], command: str) -> Measured:
    """Raises ValueError where a row is not as long as the columns."""
    rows = section.measure(conditions)
    for row in rows:
        if len(row) != len(section.columns):
            raise ValueError(f"section {section.name}: a row of {len(row)} cells for {len(section.columns)} columns")
    return Measured(section.name, section.title, section.about, list(section.columns), rows, machine, command)
