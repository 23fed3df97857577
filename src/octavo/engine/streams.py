"""One request's events, from whoever receives them to whoever iterates."""

import asyncio
from collections import deque
from collections.abc import Callable

from octavo.core.events import Finished, Refused
from octavo.core.request import Request
from octavo.engine.client import AtOnce, EngineDead, Events


class Mailbox:
    """What has come for one request and was not taken yet. Held by the receiving side."""

    __slots__ = ("_choices_left", "_error", "_steps", "_waiter", "at_once")

    def __init__(self, request: Request) -> None:
        self._choices_left = request.params.num_choices
        self._steps: deque[Events] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.at_once: AtOnce | None = None
        """Who may take a step while the one who iterates waits for it."""

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._choices_left == 0

    def put(self, events: Events) -> None:
        """Takes the request's events of one step."""
        for event in events:
            if type(event) is Finished:
                self._choices_left -= 1
            elif type(event) is Refused:
                self._choices_left = 0
        if self.at_once is None or self._waiter is None or self._waiter.done():
            self._keep(events)
        else:
            self._hand_on(events, self.at_once)

    def fail(self, error: EngineDead) -> None:
        """Ends it at once: what was not taken yet is lost."""
        if not self.over:
            self._choices_left = 0
            self._error = error
            self._steps.clear()
            self._wake()

    async def take(self) -> Events | None:
        """The events of the next step; None after the last.

        Raises EngineDead where the engine died before that, and what `at_once` raised.
        """
        while not self._steps:
            if self._error is not None:
                raise self._error
            if self.over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._steps.popleft()

    def _hand_on(self, events: Events, at_once: AtOnce) -> None:
        try:
            left = at_once(events)
        except Exception as error:  # noqa: BLE001 - whoever iterates gets it
            self._error = error
            self._wake()
            return
        if left is not None:
            self._keep(left)

    def _keep(self, events: Events) -> None:
        if self._error is None:
            self._steps.append(events)
            self._wake()

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

    async def __anext__(self) -> Events:
        events = await self._mailbox.take() if self._open else None
        if events is None:
            raise StopAsyncIteration
        return events

    def at_once(self, take: AtOnce) -> None:
        if self._open:
            self._mailbox.at_once = take

    async def aclose(self) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._mailbox.at_once = None
            if not self._mailbox.over:
                self._abandon()
