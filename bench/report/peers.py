"""Section: throughput beside other engines, the same work on the same machine in one run."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.report.section import Cell, Column, Conditions, Section

SCRIPT = Path(__file__).resolve().parents[3] / "shared" / "peers" / "offline.py"
"""Beside the checkout. It prints one JSON object a line."""
KINDS = {"prefill_tok_s": "prefill", "decode_tok_s": "decode"}


def _measure(conditions: Conditions) -> list[list[Cell]]:
    command = [sys.executable, str(SCRIPT), "--dir", str(conditions.peers), "--batch", "1,4,8,16,32,64"]
    return rows_of(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines())


def rows_of(lines: Iterable[str]) -> list[list[Cell]]:
    """For each kind of work and batch size: ours, the best of all variants of other engines, and the ratio."""
    found = [json.loads(line) for line in lines if line.startswith('{"engine"')]
    sizes = sorted({each["batch"] for each in found})
    return [_row(found, kind, batch) for kind in KINDS for batch in sizes]


def _row(found: list[dict[str, Any]], kind: str, batch: int) -> list[Cell]:
    here = [each for each in found if each["batch"] == batch and each[kind]]
    ours = max((float(each[kind]) for each in here if each["engine"] == "octavo"), default=None)
    best = max((each for each in here if each["engine"] != "octavo"), key=lambda each: each[kind], default=None)
    if best is None:
        return [KINDS[kind], batch, ours, None, None, None]
    rate = float(best[kind])
    return [KINDS[kind], batch, ours, rate, f"{best['engine']} {best['variant']}", ours / rate if ours else None]


PEERS = Section(
    name="peers",
    title="Beside other engines",
    about=(
        "Prompts of 256 random tokens, 128 greedy tokens each, nothing shared, in tokens a second. The opponent is the "
        "best number format of the best other engine for that row."
    ),
    columns=(
        Column("work"),
        Column("requests", 0),
        Column("octavo", 0),
        Column("best other", 0),
        Column("which"),
        Column("ratio", 2),
    ),
    measure=_measure,
    needs_peers=True,
)
