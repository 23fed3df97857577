"""Listeners: who is told which kind of event. One look for each event, however many listen."""

import logging
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from octavo.core.events import Event

log = logging.getLogger(__name__)

Handler = Callable[[Any], None]


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
        """For every event, after those of its kind."""
        self._all = (*self._all, handler)

    def on_event(self, event: Event) -> None:
        for handler in chain(self._handlers.get(type(event), ()), self._all):
            try:
                handler(event)
            except Exception:
                log.exception("a listener failed on a %s", type(event).__name__)
