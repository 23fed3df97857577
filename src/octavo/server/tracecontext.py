"""Trace context: whose trace a request continues, as W3C's headers say, and whether it is one that is kept."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MOST_STATE = 512
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that spans belong to, and the span of somebody else that they are under."""

    trace_id: int
    span_id: int = 0
    """0: there is nobody above."""
    sampled: bool = True
    state: str = ""
    """`tracestate`, for whoever understands it: handed on as it is."""


def read_context(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """What a client's `traceparent` says; None where there is none, or none that the standard allows."""
    match = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = headers.get(b"tracestate", b"")
    told = state.decode("ascii", "ignore") if len(state) <= _MOST_STATE else ""
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), told)


def new_context(ratio: float, draw_bits: Callable[[int], int]) -> TraceContext:
    """A trace of its own, of which so large a share is kept, by its id: as everybody else would decide."""
    trace_id = draw_bits(128) or 1
    return TraceContext(trace_id, sampled=trace_id & (2**64 - 1) < ratio * 2**64)
