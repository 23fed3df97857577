"""Duty: may new work come in, who is working now, and what becomes of them when the server ends."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.server.openai.errors import unavailable


class Duty:
    """Counts the requests that generate, and refuses new ones while the server ends. On one event loop."""

    def __init__(self) -> None:
        self._flights: set[asyncio.Future[str]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Requests that generate now, each counted once whatever its n."""
        return len(self._flights)

    def drain(self) -> None:
        """From now on nothing new comes in; what runs goes on."""
        self.draining = True

    def stop_all(self, why: str) -> None:
        """Whatever runs ends now, and its client is told `why`."""
        for flight in self._flights:
            if not flight.done():
                flight.set_result(why)

    async def idle(self) -> None:
        """Returns once nothing runs."""
        await self._idle.wait()

    @contextmanager
    def flight(self) -> Iterator[asyncio.Future[str]]:
        """For the time of one request: a future that gets a reason when the request must not go on.

        Raises ApiError 503 where the server is about to end.
        """
        if self.draining:
            raise unavailable("the server is shutting down and takes no new requests", "shutting_down", 5)
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._flights.add(stopped)
        self._idle.clear()
        try:
            yield stopped
        finally:
            self._flights.discard(stopped)
            if not self._flights:
                self._idle.set()
