"""Answers: what an engine does between two steps for each kind of Ask. One small function each, found by the kind."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from octavo.core.events import Event
from octavo.core.pins import PinOutcome, room_for_pins
from octavo.core.scheduler import Scheduler
from octavo.core.snapshot import Snapshot, snapshot
from octavo.engine.asks import (
    AddPin,
    Ask,
    CacheReset,
    Explained,
    ExplainPrefix,
    ListPins,
    PinList,
    PinRemoved,
    RemovePin,
    ResetPrefixCache,
    TakeSnapshot,
)

R = TypeVar("R")
Answered = tuple[tuple[Event, ...], R]
"""What happened, and the reply."""


def _reset(scheduler: Scheduler, ask: ResetPrefixCache, now: float) -> Answered[CacheReset]:
    load = scheduler.load()
    events = scheduler.reset_prefix_cache(now)
    if events is None:
        return (), CacheReset(0, load.blocks_leased)
    return events, CacheReset(load.blocks_cached, 0)


def _pin(scheduler: Scheduler, ask: AddPin, now: float) -> Answered[PinOutcome]:
    over = scheduler.cache.expire_pins(now)
    events, outcome = scheduler.cache.pin(ask.wish, room_for_pins(scheduler.limits, scheduler.roster), now)
    return (*over, *events), outcome


def _unpin(scheduler: Scheduler, ask: RemovePin, now: float) -> Answered[PinRemoved]:
    events = scheduler.cache.unpin(ask.pin_id, ask.tenant, now)
    return events or (), PinRemoved(events is not None)


def _list_pins(scheduler: Scheduler, ask: ListPins, now: float) -> Answered[PinList]:
    events, pins = scheduler.cache.expire_pins(now), scheduler.cache.pins
    num_blocks = pins.num_blocks if ask.tenant is None else len(pins.blocks_of(ask.tenant))
    return events, PinList(pins.of(ask.tenant), num_blocks)


def _explain(scheduler: Scheduler, ask: ExplainPrefix, now: float) -> Answered[Explained]:
    return (), Explained(*scheduler.cache.explain(ask.tokens, ask.namespace, ask.tenant, now))


def _look(scheduler: Scheduler, ask: TakeSnapshot, now: float) -> Answered[Snapshot]:
    return (), snapshot(scheduler, ask.most_requests, ask.most_cells, now)


ANSWERS: Mapping[type, Callable[[Scheduler, Any, float], Answered[Any]]] = {
    ResetPrefixCache: _reset,
    AddPin: _pin,
    RemovePin: _unpin,
    ListPins: _list_pins,
    ExplainPrefix: _explain,
    TakeSnapshot: _look,
}


def answer(scheduler: Scheduler, ask: Ask[R], now: float) -> Answered[R]:
    """Does what is asked. No step is in flight."""
    return ANSWERS[type(ask)](scheduler, ask, now)
