"""Section: what the scheduler and the allocator cost."""

from bench.policy import all_measures
from bench.report.section import Cell, Column, Conditions, Section


def _measure(_: Conditions) -> list[list[Cell]]:
    return [[each.what, each.best_ms, each.median_ms, each.target_ms] for each in all_measures()]


POLICY = Section(
    name="policy",
    title="Policy",
    about=(
        "Planning and committing a step, and matching prompts with the cache, in CPU time of one thread; no model runs."
    ),
    columns=(Column("what"), Column("best ms", 3), Column("median ms", 3), Column("target ms", 2)),
    measure=_measure,
)
