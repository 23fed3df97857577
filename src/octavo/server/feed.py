"""Feed: events on their way to those who follow them. Who reads slowly loses some, is told how many, and delays nobody.

An event costs nothing but a number while nobody follows; what it looks like as JSON, `telling.py` knows.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from octavo.core.events import Event
from octavo.server.openai.errors import unavailable

MOST_WAITING = 4096
"""Events that one reader may be behind."""
MOST_READERS = 32

Numbered = tuple[int, Event]


class Reader:
    """One who follows: the events of some kinds, in order, and how many of them were lost before these."""

    def __init__(self, kinds: Collection[type], request_id: str | None, most: int) -> None:
        self._kinds = frozenset(kinds)
        self._request_id = request_id
        self._most = most
        self._events: deque[Numbered] = deque()
        self._num_dropped = 0
        self.num_lost = 0
        """How many it lost in all."""
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, numbered: Numbered) -> None:
        """Takes it, in the place of the oldest one where too many wait."""
        event = numbered[1]
        if type(event) not in self._kinds or self._request_id not in (None, getattr(event, "request_id", None)):
            return
        if len(self._events) >= self._most:
            self._events.popleft()
            self._num_dropped += 1
            self.num_lost += 1
        self._events.append(numbered)
        self._changed.set()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._changed.set()

    async def take(self) -> tuple[int, list[Numbered]] | None:
        """How many were lost, and those that have come since the last call, once there are any; None after the end."""
        while not self._events and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._events:
            return None
        taken = self._num_dropped, list(self._events)
        self._num_dropped = 0
        self._events.clear()
        return taken


class Feed:
    """Numbers each event of the engine, and gives it to all readers. On one event loop."""

    def __init__(self) -> None:
        self._readers: set[Reader] = set()
        self._closed = False
        self._num_lost = 0
        self.seq = 0
        """Events so far."""

    def on_events(self, events: Sequence[Event]) -> None:
        first, self.seq = self.seq + 1, self.seq + len(events)
        for reader in self._readers:
            for numbered in enumerate(events, first):
                reader.put(numbered)

    @property
    def num_lost(self) -> int:
        """Events that readers lost so far."""
        return self._num_lost + sum(reader.num_lost for reader in self._readers)

    def close(self) -> None:
        """The server ends: so does every reader, once it has read what there is."""
        self._closed = True
        for reader in self._readers:
            reader.close()

    @contextmanager
    def reader(
        self, kinds: Collection[type], request_id: str | None = None, most: int = MOST_WAITING
    ) -> Iterator[Reader]:
        """Follows from now on, until the end of the block. Raises ApiError 503 where too many do."""
        if len(self._readers) >= MOST_READERS:
            message = f"{MOST_READERS} readers follow the events already, and no more may"
            raise unavailable(message, "too_many_readers", 10)
        reader = Reader(kinds, request_id, most)
        if self._closed:
            reader.close()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            self._num_lost += reader.num_lost
