"""A report as Markdown, and as JSON and back. Pure: the same report gives the same page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from bench.report.section import Cell, Column, Measured, Report

HEAD = """# Performance

Made by `python -m bench.report render`; do not edit. Each table says where and when it was measured. Machines differ
and are shared, so what counts is a ratio of two figures of one run, never a figure alone."""


def to_json(report: Report) -> str:
    return json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> Report:
    """Raises ValueError for what is no report."""
    try:
        return Report([_measured(**section) for section in json.loads(text)["sections"]])
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no report: {error}") from error


def _measured(*, columns: list[dict[str, str | int]], **others: object) -> Measured:
    return Measured(columns=[Column(**column) for column in columns], **others)  # type: ignore[arg-type]


def page(report: Report) -> str:
    return "\n\n".join([HEAD, *(block for section in report.sections for block in _blocks(section))]) + "\n"


def _blocks(section: Measured) -> Iterator[str]:
    yield f"## {section.title}"
    yield section.about
    yield "\n".join(_table(section.columns, section.rows))
    machine = "; ".join(f"{name}: {value}" for name, value in section.machine.items())
    yield f"`{section.command}`. {machine}."


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    yield _line(column.title for column in columns)
    yield _line("---" if i == 0 else "---:" for i in range(len(columns)))
    for row in rows:
        yield _line(_text(cell, column) for cell, column in zip(row, columns, strict=True))


def _line(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _text(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    return f"{cell:,.{column.digits}f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
