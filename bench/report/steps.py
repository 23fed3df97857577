"""Section: whole steps beside the machine's limits, from `octavo profile step`."""

import json
import subprocess
import sys
from typing import Any

from bench.report.section import Cell, Column, Conditions, Section

WORK = ((1, 256), (8, 256), (32, 256), (1, 4096), (8, 4096))
"""Requests at once, and tokens before the first decode step."""


def _measure(conditions: Conditions) -> list[list[Cell]]:
    return [row for batch, context in WORK for row in rows_of(_profile(conditions, batch, context))]


def _profile(conditions: Conditions, batch: int, context: int) -> dict[str, Any]:
    words = ["--batch", str(batch), "--prompt-len", "256", "--context", str(context), "--json"]
    model = [] if conditions.model is None else [conditions.model]
    command = [sys.executable, "-m", "octavo", "profile", "step", *model, *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def rows_of(profile: dict[str, Any]) -> list[list[Cell]]:
    """A row for prompts and one for decode steps, each with the kernel that is furthest from its limit, in time."""
    rows: list[list[Cell]] = []
    for steps in profile["profiles"]:
        kernels = [row for row in steps["rows"] if row["is_kernel"]]
        outside_s = sum(row["time_s"] for row in steps["rows"] if not row["is_kernel"])
        worst = max(kernels, key=lambda row: row["time_s"] - row["limit_s"])
        before = profile["context"] if steps["name"] == "decode" else 0
        rows.append(
            [
                f"{steps['name']} behind {before:,}",
                profile["batch"],
                1e3 * steps["step_s"],
                steps["num_tokens"] / steps["step_s"],
                100 * steps["limit_s"] / steps["step_s"],
                100 * outside_s / steps["step_s"],
                worst["name"],
            ]
        )
    return rows


STEPS = Section(
    name="steps",
    title="Steps and the machine's limits",
    about=(
        "A step's time at the limit is what its bytes take at the bandwidth, and its operations at the peak, that are "
        "measured in the same run. `octavo profile step` shows it kernel by kernel."
    ),
    columns=(
        Column("steps"),
        Column("requests", 0),
        Column("ms a step", 2),
        Column("tokens/s", 0),
        Column("% of the limit", 0),
        Column("% outside kernels", 1),
        Column("loses most in"),
    ),
    measure=_measure,
)
