"""Roofline: what each phase and kernel of some steps took, beside what it would take at the machine's limits. Pure.

A kernel's limit is the larger of two times: its streamed bytes at the measured bandwidth, and its operations at the
measured peak. Bytes that stay in caches cost nothing there, so a kernel that only moves those has no limit to show.
Where weights or KV fit into a cache, the time may be shorter than the limit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from octavo.core.ports import KernelSpan, MachineRates
from octavo.tools.chrome_trace import name_of
from octavo.tools.turns import Turn


@dataclass(slots=True)
class Row:
    """A phase, or a kernel over all layers: means of the steps, which add up to the mean step."""

    name: str
    is_kernel: bool
    calls: float = 0.0
    time_s: float = 0.0
    streamed_bytes: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    operations: float = 0.0
    limit_s: float = 0.0
    """What it would take at the limit; 0 where nothing is counted that has one."""
    by_memory_s: float = 0.0
    """The part of `limit_s` that is the time of streaming."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Some steps of one kind of work."""

    name: str
    num_steps: int
    num_works: float
    num_tokens: float
    """Of a step, on average."""
    step_s: float
    best_step_s: float
    limit_s: float
    rows: list[Row] = field(default_factory=list[Row])
    """The longest first."""


def limits_of(span: KernelSpan, rates: MachineRates) -> tuple[float, float]:
    """Seconds at the measured bandwidth, and at the measured peak."""
    peak = rates.operations_per_s.get(span.arithmetic, float("inf"))
    return span.streamed_bytes / rates.bytes_per_s, span.operations / peak


def summarise(name: str, turns: Sequence[Turn], rates: MachineRates) -> Profile:
    """The means of at least one turn."""
    rows: dict[str, Row] = {}
    share = 1 / len(turns)
    for turn in turns:
        for phase, began_s, ended_s in turn.phases:
            row = rows.setdefault(phase, Row(phase, is_kernel=False))
            row.calls += share
            row.time_s += share * (ended_s - began_s)
        for span in turn.spans:
            _add(rows.setdefault(name_of(span), Row(name_of(span), is_kernel=True)), span, rates, share)
    whole = [turn.ended_s - turn.began_s for turn in turns]
    return Profile(
        name=name,
        num_steps=len(turns),
        num_works=sum(turn.num_works for turn in turns) * share,
        num_tokens=sum(turn.num_tokens for turn in turns) * share,
        step_s=sum(whole) * share,
        best_step_s=min(whole),
        limit_s=sum(row.limit_s for row in rows.values()),
        rows=sorted(rows.values(), key=lambda row: -row.time_s),
    )


def _add(row: Row, span: KernelSpan, rates: MachineRates, share: float) -> None:
    memory_s, compute_s = limits_of(span, rates)
    row.calls += share
    row.time_s += share * (span.ended_s - span.began_s)
    row.streamed_bytes += share * span.streamed_bytes
    row.read_bytes += share * span.read_bytes
    row.written_bytes += share * span.written_bytes
    row.operations += share * span.operations
    row.limit_s += share * max(memory_s, compute_s)
    row.by_memory_s += share * (memory_s if memory_s >= compute_s else 0.0)


# -- for people ------------------------------------------------------------------------------------------------------

_HEAD = ("", "ms", "of step", "calls", "MB memory", "MB read", "MB written", "GOP", "ms at limit", "of limit", "bound")


def lines(profile: Profile) -> Iterator[str]:
    """A table, with a line about the steps as a whole before it."""
    rate = profile.num_tokens / profile.step_s
    yield (
        f"{profile.name}: {profile.num_steps} steps of {profile.num_works:.1f} requests and {profile.num_tokens:.1f} "
        f"tokens; {profile.step_s * 1e3:.3f} ms each (best {profile.best_step_s * 1e3:.3f}), {rate:,.0f} tokens/s; "
        f"{profile.limit_s * 1e3:.3f} ms at the limit"
    )
    yield from _columns([_HEAD, *(_cells(row, profile.step_s) for row in profile.rows)])


def _cells(row: Row, step_s: float) -> tuple[str, ...]:
    cells = (row.name, f"{row.time_s * 1e3:.3f}", f"{100 * row.time_s / step_s:.1f} %", f"{row.calls:.0f}")
    if not row.is_kernel:
        return (*cells, *[""] * 7)
    counts = (row.streamed_bytes / 1e6, row.read_bytes / 1e6, row.written_bytes / 1e6, row.operations / 1e9)
    cells += tuple(f"{count:.2f}" if count else "-" for count in counts)
    if not row.limit_s:
        return (*cells, "-", "-", "-")
    bound = "memory" if row.by_memory_s > row.limit_s / 2 else "compute"
    return (*cells, f"{row.limit_s * 1e3:.3f}", f"{100 * row.limit_s / row.time_s:.0f} %", bound)


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    table = list(rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for first, *others in table:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
