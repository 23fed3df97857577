"""Glance: the engine's last snapshot, however many look, and never waited for longer than one has patience."""

import asyncio

from octavo.core.snapshot import Snapshot
from octavo.engine.asks import TakeSnapshot
from octavo.engine.client import AskFailed, EngineClient, EngineDead, EngineState
from octavo.engine.clock import now

MOST_REQUESTS = 500
MOST_CELLS = 4096
FRESH_S = 0.2
"""A snapshot that is not older serves everybody: so many who look cost the engine no more than one."""
PATIENCE_S = 1.0
"""An engine answers between two steps, and a step may take long: then the last snapshot must do."""


class Glance:
    """Asks the engine what it looks like, once at a time."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._last: Snapshot | None = None
        self._asking: asyncio.Task[None] | None = None

    async def look(self) -> Snapshot | None:
        """How the engine is, or was when it last said so; None before that, and while there is none."""
        if self._client.state is not EngineState.READY:
            self._last = None
        elif self._last is None or now() - self._last.time_s > FRESH_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask())
            await asyncio.wait([self._asking], timeout=PATIENCE_S)
        return self._last

    async def _ask(self) -> None:
        try:
            self._last = await self._client.ask(TakeSnapshot(MOST_REQUESTS, MOST_CELLS))
        except (EngineDead, AskFailed):
            self._last = None
