"""Listeners: who is told which kind of event. One look for all events of a kind in a row, however many listen."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from octavo.core.events import Event

log = logging.getLogger(__name__)

Handler = Callable[[Sequence[Any]], None]
"""Is given all events of one kind that came one after the other: tokens come by the dozen."""


class Listeners:
    """Each handler is called for its own kind of event, in the order of their coming. One that fails hurts no other."""

    def __init__(self) -> None:
        self._handlers: dict[type, tuple[Handler, ...]] = {}
        self._all: tuple[Handler, ...] = ()

    def add(self, handlers: Mapping[type, Handler]) -> None:
        """By kind of event."""
        for kind, handler in handlers.items():
            self._handlers[kind] = (*self._handlers.get(kind, ()), handler)

    def add_all(self, handler: Handler) -> None:
        """For all events that came together, after those who hear of their kinds."""
        self._all = (*self._all, handler)

    def on_events(self, events: Sequence[Event]) -> None:
        for kind, run in groupby(events, type):
            handlers = self._handlers.get(kind)
            if handlers is not None:
                together = tuple(run)
                for handler in handlers:
                    _call(handler, together, kind.__name__)
        for handler in self._all:
            _call(handler, events, "message")


def one_by_one(handlers: Mapping[type, Callable[[Any], None]]) -> dict[type, Handler]:
    """Handlers of single events as what listeners are: one that fails on an event hears of the next all the same."""
    return {kind: _in_turn(handler) for kind, handler in handlers.items()}


def _in_turn(handler: Callable[[Any], None]) -> Handler:
    def handle(run: Sequence[Any]) -> None:
        for event in run:
            _call(handler, event, type(event).__name__)

    return handle


def _call(handler: Callable[[Any], None], told: Any, name: str) -> None:
    try:
        handler(told)
    except Exception:
        log.exception("a listener failed on a %s", name)
