"""Vitals: what a server's processes take of the machine, moment by moment, and whether that grows."""

import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Vitals:
    """One process at one moment, as Linux tells it."""

    rss_bytes: int
    anon_bytes: int
    """Of these, what is the process's own: not files that it has mapped, which the system may take back."""
    num_fds: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of the series."""

    time_s: float
    phase: int
    process: str
    vitals: Vitals


def vitals_of(pid: int) -> Vitals:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return Vitals(
        rss_bytes=int(told["VmRSS"][0]) << 10,
        anon_bytes=int(told["RssAnon"][0]) << 10,
        num_fds=len(os.listdir(f"/proc/{pid}/fd")),
        num_threads=int(told["Threads"][0]),
    )


def growth(samples: Sequence[Sample], process: str, what: str, first: int, last: int) -> float:
    """How much more there is in phase `last` than in phase `first`, as a share of the memory that was resident then.

    Medians, so that no moment decides.
    """
    before, after = (typical(samples, process, what, phase) for phase in (first, last))
    return (after - before) / typical(samples, process, "rss_bytes", first)


def typical(samples: Sequence[Sample], process: str, what: str, phase: int) -> float:
    """The median over one phase."""
    return median(getattr(each.vitals, what) for each in samples if (each.process, each.phase) == (process, phase))


def write(samples: Sequence[Sample], file: Path) -> None:
    """The series as a table, for people and plots."""
    names = [each.name for each in fields(Vitals)]
    with file.open("w", encoding="utf-8", newline="") as text:
        table = csv.DictWriter(text, ["time_s", "phase", "process", *names])
        table.writeheader()
        for each in samples:
            row = {"time_s": round(each.time_s, 1), "phase": each.phase, "process": each.process}
            table.writerow(row | asdict(each.vitals))
