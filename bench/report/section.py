"""Section: a part of the report, in two steps. One measures, and gives figures; the other shows them, and is pure."""

import http.client
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.shown import Shown

Figure = dict[str, Any]
"""What one measurement gave, raw, as a JSON object. One with `why` says what (`failed`) could not be measured."""

FAILURES = (OSError, RuntimeError, ValueError, LookupError, http.client.HTTPException, subprocess.SubprocessError)
"""How it ends where an engine is not there, does not start, or says something else than what was expected."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run was given."""

    peers: Path | None = None
    """Where other engines are installed; None: nowhere."""
    model: str | None = None
    """None: the default model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`measure` gives figures as they come; what it raises of FAILURES ends it, and what came before stays."""

    name: str
    title: str
    about: str
    """What was measured and how: a paragraph for who has never seen it."""
    measure: Callable[[Conditions], Iterator[Figure]]
    show: Callable[[list[Figure]], Shown]
    """Is never given a failure."""
    needs_peers: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A section that ran: all that the page needs, so that it can be made again without running anything."""

    name: str
    figures: list[Figure]
    machine: dict[str, str]
    """Of this section: others in the same file may be from another day."""
    command: str
    took_s: float

    @property
    def failures(self) -> list[Figure]:
        return [figure for figure in self.figures if "why" in figure]

    @property
    def successes(self) -> list[Figure]:
        return [figure for figure in self.figures if "why" not in figure]


Report = dict[str, Measured]
"""By the names of sections."""


def run(section: Section, conditions: Conditions, machine: dict[str, str], command: str) -> Measured:
    began = time.perf_counter()
    figures = list(attempted(section.title, lambda: section.measure(conditions)))
    return Measured(section.name, figures, machine, command, round(time.perf_counter() - began, 1))


def attempted(what: str, measure: Callable[[], Iterable[Figure]]) -> Iterator[Figure]:
    """The figures of a measurement, and after them a failure where it did not come to its end."""
    try:
        yield from measure()
    except FAILURES as error:
        yield {"failed": what, "why": _why(error)}


def _end(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


def _why(error: Exception) -> str:
    """In one line: what a program said last, where it was one that ended."""
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or "").strip().splitlines() or ["it said nothing"]
        return f"{Path(error.cmd[0]).name} {_end(error.returncode)}: {said[-1]}"
    return f"{type(error).__name__}: {error}"
