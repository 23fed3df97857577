"""Turns as a trace in Chrome's format, which Perfetto opens: phases of the loop, with the kernels inside them. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.core.ports import KernelSpan
from octavo.tools.turns import Turn

PROCESS, LOOP, KERNELS = 1, 1, 2
"""One process with two rows."""


def chrome_trace(turns: Sequence[Turn]) -> dict[str, Any]:
    """The JSON object format: complete events in microseconds since the first turn began."""
    zero_s = min((turn.began_s for turn in turns), default=0.0)
    events = [*_names(), *(event for turn in turns for event in _of_turn(turn, zero_s))]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names() -> Iterator[dict[str, Any]]:
    for thread, name in ((LOOP, "engine loop"), (KERNELS, "kernels, all threads")):
        yield {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": thread, "args": {"sort_index": thread}}
    yield {"ph": "M", "name": "process_name", "pid": PROCESS, "tid": LOOP, "args": {"name": "octavo"}}


def _of_turn(turn: Turn, zero_s: float) -> Iterator[dict[str, Any]]:
    about = {"works": turn.num_works, "tokens": turn.num_tokens}
    yield _complete("step", "step", LOOP, turn.began_s - zero_s, turn.ended_s - turn.began_s, about)
    yield _complete("execute", "phase", LOOP, turn.executed_s - zero_s, turn.returned_s - turn.executed_s, {})
    for name, began_s, ended_s in turn.phases:
        yield _complete(name, "phase", LOOP, began_s - zero_s, ended_s - began_s, {})
    for span in turn.spans:
        yield _complete(
            name_of(span), "kernel", KERNELS, span.began_s - zero_s, span.ended_s - span.began_s, _about(span)
        )


def name_of(span: KernelSpan) -> str:
    """The operation and its kernel, as one name."""
    return span.op if span.op == span.kernel else f"{span.op} {span.kernel}"


def _about(span: KernelSpan) -> dict[str, Any]:
    counts = {
        name: getattr(span, name) for name in ("rows", "streamed_bytes", "read_bytes", "written_bytes", "operations")
    }
    return counts if span.layer is None else {"layer": span.layer, **counts}


def _complete(
    name: str, category: str, thread: int, began_s: float, took_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": PROCESS,
        "tid": thread,
        "ts": began_s * 1e6,
        "dur": took_s * 1e6,
        "args": args,
    }
