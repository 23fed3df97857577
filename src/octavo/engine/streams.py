"""One request's events, from whoever receives them to whoever iterates."""

import asyncio
from collections import deque
from collections.abc import Callable

from octavo.core.events import Event, Finished, Refused
from octavo.core.request import Request
from octavo.engine.client import EngineDead


class Mailbox:
    """What has come for one request and was not taken yet. Held by the receiving side."""

    __slots__ = ("_choices_left", "_error", "_steps", "_waiter")

    def __init__(self, request: Request) -> None:
        self._choices_left = request.params.num_choices
        self._steps: deque[tuple[Event, ...]] = deque()
        self._error: EngineDead | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._choices_left == 0

    def put(self, events: tuple[Event, ...]) -> None:
        """Takes the request's events of one step."""
        for event in events:
            if type(event) is Finished:
                self._choices_left -= 1
            elif type(event) is Refused:
                self._choices_left = 0
        self._steps.append(events)
        self._wake()

    def fail(self, error: EngineDead) -> None:
        """Ends it at once: what was not taken yet is lost."""
        if not self.over:
            self._choices_left = 0
            self._error = error
            self._steps.clear()
            self._wake()

    async def take(self) -> tuple[Event, ...] | None:
        """The events of the next step; None after the last. Raises EngineDead where the engine died before that."""
        while not self._steps:
            if self._error is not None:
                raise self._error
            if self.over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._steps.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EventStream:
    """Iterates over a mailbox; closing or dropping it before the end calls `abandon`, from whatever thread drops it."""

    __slots__ = ("_abandon", "_mailbox", "_open")

    def __init__(self, mailbox: Mailbox, abandon: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._abandon = abandon
        self._open = True

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        events = await self._mailbox.take() if self._open else None
        if events is None:
            raise StopAsyncIteration
        return events

    async def aclose(self) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            if not self._mailbox.over:
                self._abandon()
