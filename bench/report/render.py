"""A report as Markdown, and as JSON and back. Pure: the same report gives the same page."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from bench.report.section import Measured, Report, Section
from bench.report.shown import Cell, Claim, Column, Plot, Shown, Table, Work

HEAD = """# Performance

Made by `make bench` (`python -m bench.report render`); do not edit. Each section says where and when it was measured.
Machines differ and are shared, so what counts is a ratio of two figures of one run, never a figure alone."""
_LIMITS = (
    "Targets are ratios to the best number format of the best other engine for that row, where nothing else is said. "
    "The last column is the arithmetic that the machine's limits allow, in a run of its own: what share of them is "
    "reached, how many tokens a second they would give, and which kernel is furthest from its own in time. "
    "What was tried, and was not faster, is in [kernels](kernels.md) and [decisions](decisions/README.md)."
)


def to_json(report: Report) -> str:
    return json.dumps({"sections": [asdict(each) for each in report.values()]}, indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> Report:
    """Raises ValueError for what is no report."""
    try:
        return {section["name"]: Measured(**section) for section in json.loads(text)["sections"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no report: {error}") from error


def shown(report: Report, sections: Iterable[Section]) -> dict[str, Shown]:
    """What each section that was measured shows, in the order of `sections`."""
    return {each.name: each.show(report[each.name].successes) for each in sections if each.name in report}


def page(report: Report, sections: Sequence[Section], pictures: str) -> str:
    """`pictures`: the folder of the plots, beside the page."""
    seen = shown(report, sections)
    blocks = [HEAD, *_targets(seen.values())]
    for section in sections:
        if section.name in seen:
            blocks += _blocks(section, report[section.name], seen[section.name], pictures)
    return "\n\n".join(blocks) + "\n"


def plots(report: Report, sections: Iterable[Section]) -> list[Plot]:
    """Those that have something to draw."""
    return [plot for each in shown(report, sections).values() for plot in each.plots if plot.series]


def _targets(seen: Iterable[Shown]) -> Iterator[str]:
    """All claims of all sections beside their targets."""
    every = list(seen)
    claims = [claim for each in every for claim in each.claims]
    limits = {work: words for each in every for work, words in each.limits.items()}
    if claims:
        verdicts = [claim.target.verdict(claim.value) for claim in claims]
        rows = [_claim(claim, limits) for claim in claims]
        columns = tuple(map(Column, ("what", "reached", "target", "verdict", "at this machine's limits")))
        yield "## Targets"
        yield f"{verdicts.count('met')} of {len(claims)} are met, {verdicts.count('missed')} missed. {_LIMITS}"
        yield _table(Table(columns, rows))


def _claim(claim: Claim, limits: dict[Work, str]) -> list[Cell]:
    reached = None if claim.value is None else f"{claim.value:,.2f}{claim.target.unit}"
    limit = claim.note if claim.work is None else limits.get(claim.work)
    return [claim.what, reached, str(claim.target), claim.target.verdict(claim.value), limit]


def _blocks(section: Section, measured: Measured, seen: Shown, pictures: str) -> Iterator[str]:
    yield f"## {section.title}"
    yield section.about
    for table in seen.tables:
        if table.caption:
            yield f"{table.caption}:"
        yield _table(table)
    for plot in filter(lambda plot: plot.series, seen.plots):
        yield f"![{plot.title}]({pictures}/{plot.name}.png)"
    if measured.failures:
        rows: list[list[Cell]] = [[each["failed"], each["why"]] for each in measured.failures]
        yield _table(Table((Column("not measured"), Column("why")), rows))
    machine = "; ".join(f"{name}: {value}" for name, value in measured.machine.items())
    yield f"`{measured.command}`, {measured.took_s:,.0f} s. {machine}."


def _table(table: Table) -> str:
    """The first column to the left, the others to the right."""
    lines = [_line(column.title for column in table.columns)]
    lines.append(_line("---" if i == 0 else "---:" for i in range(len(table.columns))))
    lines += [_line(map(_text, row, table.columns)) for row in table.rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _text(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    return f"{cell:,.{column.digits}f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
