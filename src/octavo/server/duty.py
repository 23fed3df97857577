"""Duty: may new work come in, who is working now, and what becomes of them when the server ends."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.server.openai.errors import ApiError, shutting_down, timed_out


class Duty:
    """Counts the requests that generate, and refuses new ones while the server ends. On one event loop."""

    def __init__(self) -> None:
        self._flights: set[asyncio.Future[ApiError]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.leaving = False
        """It is about to end, and says so to whoever asks whether to send requests; those that come are still taken."""
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Requests that generate now, each counted once whatever its n."""
        return len(self._flights)

    def leave(self) -> None:
        """From now on nobody should send anything here; what comes all the same is served."""
        self.leaving = True

    def drain(self) -> None:
        """From now on nothing new comes in; what runs goes on."""
        self.leaving = self.draining = True

    def stop_all(self, why: ApiError) -> None:
        """Whatever runs ends now, and its client is told `why`."""
        for flight in self._flights:
            if not flight.done():
                flight.set_result(why)

    async def idle(self) -> None:
        """Returns once nothing runs."""
        await self._idle.wait()

    @contextmanager
    def flight(self, began_s: float, limit_s: float | None = None) -> Iterator[asyncio.Future[ApiError]]:
        """For the time of one request: a future that gets a reason when the request must not go on.

        One reason is that `limit_s` have passed since `began_s`, on the clock of time.perf_counter.
        Raises ApiError 503 where the server is about to end.
        """
        if self.draining:
            raise shutting_down("the server is shutting down and takes no new requests")
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[ApiError] = loop.create_future()
        limit = None
        if limit_s is not None:
            limit = loop.call_later(began_s + limit_s - time.perf_counter(), _stop_late, stopped, limit_s)
        self._flights.add(stopped)
        self._idle.clear()
        try:
            yield stopped
        finally:
            if limit is not None:
                limit.cancel()
            self._flights.discard(stopped)
            if not self._flights:
                self._idle.set()


def _stop_late(stopped: asyncio.Future[ApiError], limit_s: float) -> None:
    if not stopped.done():
        stopped.set_result(timed_out(limit_s))
