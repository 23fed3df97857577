"""Section: what the scheduler and the allocator cost."""

from collections.abc import Iterator
from dataclasses import asdict

from bench.policy import all_measures
from bench.report.section import Conditions, Figure, Section
from bench.report.shown import Claim, Column, Shown, Table, Target


def _measure(_: Conditions) -> Iterator[Figure]:
    return (asdict(each) for each in all_measures())


def show(figures: list[Figure]) -> Shown:
    columns = (Column("what"), Column("best ms", 3), Column("median ms", 3))
    rows = [[each["what"], each["best_ms"], each["median_ms"]] for each in figures]
    return Shown((Table(columns, rows),), tuple(_claim(each) for each in figures))


def _claim(each: Figure) -> Claim:
    """The best is what the code costs, the median what this machine made of it."""
    return Claim(f"{each['what']}, best", each["best_ms"], Target(each["target_ms"], " ms", at_most=True))


POLICY = Section(
    name="policy",
    title="Policy",
    about=(
        "Planning and committing a step, and matching prompts with the cache, in CPU time of one thread; no model runs."
    ),
    measure=_measure,
    show=show,
)
