"""Metric: a row of the catalogue, that is a name and all there is to know about it. And what rows read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from octavo.engine.client import EngineFacts, EngineState
from octavo.server.histogram import Histogram
from octavo.server.metrics import Meters
from octavo.server.visits import Visits


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All that metrics are read from, at the moment when somebody asks."""

    meters: Meters
    visits: Visits = field(default_factory=Visits)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """On each sample of an engine: `model_name` and `engine`."""
    cache_config: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of the KV cache."""
    facts: EngineFacts | None = None
    """What the engine is, once it is ready."""
    state: EngineState = EngineState.READY
    heartbeat_age_s: float = 0.0
    in_flight: int = 0
    """HTTP requests that generate."""
    draining: bool = False
    events_lost: int = 0
    """By those who follow events."""
    span_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """What became of spans: sent, dropped."""


Number = float | Histogram
Read = Callable[[Sources], Number | Mapping[Any, Number]]
"""One number; or, for a metric with labels of its own, their values -> number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Counters are named without the `_total` that their samples end in."""

    name: str
    kind: Kind
    text: str
    """What is counted, or measured."""
    unit: str
    read: Read
    by: tuple[str, ...] = ()
    """Labels of its own."""
    law: str = ""
    """What it adds up to, or never does."""
    of_engine: bool = True
    """It has the labels of its engine; else it is about the server."""

    def samples(self, sources: Sources) -> Iterator[tuple[tuple[str, ...], Any]]:
        """The values of its own labels, and the number."""
        got = self.read(sources)
        if not isinstance(got, Mapping):
            yield (), got
            return
        for key, number in got.items():
            yield key if isinstance(key, tuple) else (key,), number


def _row(kind: Kind, name: str, text: str, unit: str, read: Read, **about: Any) -> Metric:
    return Metric(name=name, kind=kind, text=text, unit=unit, read=read, **about)


def gauge(name: str, text: str, unit: str, read: Read, **about: Any) -> Metric:
    """A number that goes up and down."""
    return _row(Kind.GAUGE, name, text, unit, read, **about)


def counter(name: str, text: str, unit: str, read: Read, **about: Any) -> Metric:
    """A number that only grows, also when the engine is replaced. It begins at 0 with the server."""
    return _row(Kind.COUNTER, name, text, unit, read, **about)


def histogram(name: str, text: str, unit: str, read: Read, **about: Any) -> Metric:
    """How values are spread."""
    return _row(Kind.HISTOGRAM, name, text, unit, read, **about)
