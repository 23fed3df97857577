"""Answers: what an engine does between two steps for each kind of Ask. One small function each, found by the kind."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from octavo.core.events import Event
from octavo.core.scheduler import Scheduler
from octavo.engine.asks import Ask, CacheReset, ResetPrefixCache

R = TypeVar("R")
Answered = tuple[tuple[Event, ...], R]
"""What happened, and the reply."""


def _reset(scheduler: Scheduler, ask: ResetPrefixCache, now: float) -> Answered[CacheReset]:
    load = scheduler.load()
    events = scheduler.reset_prefix_cache(now)
    if events is None:
        return (), CacheReset(0, load.blocks_leased)
    return events, CacheReset(load.blocks_cached, 0)


ANSWERS: Mapping[type, Callable[[Scheduler, Any, float], Answered[Any]]] = {
    ResetPrefixCache: _reset,
}


def answer(scheduler: Scheduler, ask: Ask[R], now: float) -> Answered[R]:
    """Does what is asked. No step is in flight."""
    return ANSWERS[type(ask)](scheduler, ask, now)
