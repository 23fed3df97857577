"""Supervisor: an EngineClient whose engine is replaced by a new one when it dies, or shows no more sign of life."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.core.events import Event
from octavo.core.request import Request
from octavo.core.types import RequestId
from octavo.engine.asks import Ask
from octavo.engine.client import EngineDead, EngineFacts, EngineState
from octavo.engine.clock import now
from octavo.engine.remote import RemoteClient
from octavo.engine.streams import EventStream, Mailbox

log = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When an engine is given up, and how soon the next one comes."""

    silence_s: float = 20.0
    """Without a sign of life for so long it is taken for dead: longer than `/health` waits, which is told first."""
    pauses_s: Sequence[float] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    """Before the first, second, ... new engine of a row; the last holds for all that follow."""
    steady_s: float = 60.0
    """An engine that lived for so long ends a row."""
    failed_starts: int = 5
    """So many in a row that never became ready, and there is no further one."""


class Supervisor:
    """Starts another engine, with pauses that grow, as long as engines can be started at all.

    Whoever waits for an answer of the dead one is told; while there is none, the state is STARTING. Only a first engine
    that never becomes ready, or several later ones in a row, end it for good.
    """

    def __init__(
        self, first: RemoteClient, another: Callable[[], RemoteClient], patience: Patience | None = None
    ) -> None:
        """`another` starts an engine like the first, which has been told what to load; it may raise OSError."""
        self._client = first
        self._another = another
        self._patience = patience or Patience()
        self._sinks: list[Callable[[Sequence[Event]], None]] = []
        self._lost: EngineDead | None = None
        """How the last one ended, while there is no other."""
        self._end: EngineDead | None = None
        """Why there will be none any more."""
        self._num_ready = 0
        self._changed = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    # -- what others see ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        if self._end is not None:
            return EngineState.DEAD
        return EngineState.READY if self._client.state is EngineState.READY else EngineState.STARTING

    @property
    def facts(self) -> EngineFacts:
        return self._client.facts

    @property
    def progress(self) -> str:
        if self._lost is None:
            return "the engine has died" if self._client.state is EngineState.DEAD else self._client.progress
        return f"another engine is started ({self._client.progress}), since {_first_line(self._lost)}"

    @property
    def heartbeat_age_s(self) -> float:
        return self._client.heartbeat_age_s

    async def wait_ready(self) -> EngineFacts:
        self._begin()
        while self.state is EngineState.STARTING:
            await self._change()
        if self._end is not None:
            raise self._end
        return self.facts

    async def wait_dead(self) -> EngineDead:
        self._begin()
        while self._end is None:
            await self._change()
        return self._end

    def submit(self, request: Request) -> EventStream:
        if self.state is EngineState.READY:
            return self._client.submit(request)
        mailbox = Mailbox(request)
        mailbox.fail(self._absent())
        return EventStream(mailbox, lambda: None)

    def cancel(self, request_id: RequestId, choice: int | None = None) -> None:
        self._client.cancel(request_id, choice)

    async def ask(self, ask: Ask[R]) -> R:
        if self.state is not EngineState.READY:
            raise self._absent()
        return await self._client.ask(ask)

    def listen(self, sink: Callable[[Sequence[Event]], None]) -> None:
        self._sinks.append(sink)
        self._client.listen(sink)

    async def close(self) -> None:
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        await self._client.close()
        self._give_up(EngineDead("the engine was closed"))

    # -- lives -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._life is None:
            self._life = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        try:
            self._give_up(await self._lives())
        except Exception as error:
            log.exception("the engine is watched no more")
            self._give_up(EngineDead(f"its supervisor failed: {error}"))

    async def _lives(self) -> EngineDead:
        """One engine after the other; returns why there is no further one."""
        in_row = failed_starts = 0
        while True:
            began_s, before = now(), self._num_ready
            error = await self._one_life()
            became_ready = self._num_ready > before
            failed_starts = 0 if became_ready else failed_starts + 1
            if not self._num_ready:
                return error
            if failed_starts >= self._patience.failed_starts:
                return EngineDead(f"{failed_starts} engines in a row did not become ready, the last one since {error}")
            in_row = 0 if became_ready and now() - began_s >= self._patience.steady_s else in_row
            await self._replace(error, self._pause_s(in_row))
            in_row += 1

    def _pause_s(self, in_row: int) -> float:
        pauses = self._patience.pauses_s
        return pauses[min(in_row, len(pauses) - 1)]

    async def _one_life(self) -> EngineDead:
        """How this engine ends: before it was ready, or after."""
        try:
            await self._client.wait_ready()
        except EngineDead as error:
            return error
        if self._num_ready:
            log.warning("the engine is ready again")
        self._num_ready += 1
        self._lost = None
        self._tell_change()
        return await self._death()

    async def _death(self) -> EngineDead:
        """Waits for the death of the engine, and brings it about where it has been silent at two looks."""
        dead = asyncio.ensure_future(self._client.wait_dead())
        silent = False
        try:
            while not dead.done():
                was_silent, silent = silent, self._client.heartbeat_age_s > self._patience.silence_s
                if silent and was_silent:
                    age_s = self._client.heartbeat_age_s
                    await self._client.close(EngineDead(f"the engine has shown no sign of life for {age_s:.0f} s"))
                await asyncio.wait([dead], timeout=self._patience.silence_s / 4)
            return dead.result()
        finally:
            dead.cancel()

    async def _replace(self, error: EngineDead, pause_s: float) -> None:
        """After a pause, another engine is there, which loads; or the last one still, where none can be started."""
        self._lost = error
        self._tell_change()
        log.critical("the engine has died, and another one is started in %g s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        await self._client.close()
        try:
            self._client = self._another()
        except OSError as failure:
            log.critical("no engine can be started: %s", failure)
            return
        for sink in self._sinks:
            self._client.listen(sink)

    def _absent(self) -> EngineDead:
        return self._end or self._lost or EngineDead(f"the engine is not ready yet: {self._client.progress}")

    def _give_up(self, error: EngineDead) -> None:
        if self._end is None:
            self._end = error
            self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        await self._changed.wait()


def _first_line(error: EngineDead) -> str:
    return str(error).split("\n", 1)[0]
