"""EngineClient over a socket: to an engine in a child process, or to one in a thread of this process."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from octavo.core.events import EngineLost, EngineReady, Event, Refused
from octavo.core.request import Request
from octavo.core.types import RequestId
from octavo.engine.asks import Ask
from octavo.engine.client import AskFailed, CannotStart, EngineDead, EngineFacts, EngineState, Events
from octavo.engine.clock import now
from octavo.engine.streams import EventStream, Mailbox
from octavo.engine.wire import (
    Cancel,
    Command,
    Deframer,
    Failed,
    Happened,
    Progress,
    Ready,
    Replied,
    Setup,
    Submit,
    WireError,
    asked,
    frame,
    read_events,
    read_news,
    read_reply,
)

R = TypeVar("R")

log = logging.getLogger(__name__)


class RemoteClient:
    """An EngineClient at one end of a connected stream socket, with an engine at the other.

    All methods but the constructor belong to the thread of the event loop in which `wait_ready` was first awaited.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._state = EngineState.STARTING
        self._facts: EngineFacts | None = None
        self._progress = "starting"
        self._heard_s = now()
        self._last_ticket = 0
        self._tickets: dict[RequestId, int] = {}
        self._names: dict[int, RequestId] = {}
        self._mailboxes: dict[RequestId, Mailbox] = {}
        self._asked: dict[int, tuple[type[Ask[Any]], asyncio.Future[Any]]] = {}
        self._sinks: list[Callable[[Sequence[Event]], None]] = []
        self._failure: EngineDead | None = None
        self._error: EngineDead | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: _Link | None = None
        self._changed = asyncio.Event()

    def setup(self, payload: bytes) -> None:
        """Tells the engine what to load: before `wait_ready` is awaited, once. Until then it only gets ready to."""
        with contextlib.suppress(OSError):  # one that is dead already is noticed where the answer is awaited
            self._sock.sendall(frame(Setup(payload)))

    # -- what others see ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def facts(self) -> EngineFacts:
        if self._facts is None:
            raise self._error or EngineDead(f"the engine is not ready yet: {self._progress}")
        return self._facts

    @property
    def progress(self) -> str:
        return self._progress

    @property
    def heartbeat_age_s(self) -> float:
        return now() - self._heard_s

    async def wait_ready(self) -> EngineFacts:
        await self._attach()
        while self._facts is None and self._error is None:
            await self._change()
        if self._error is not None:
            raise self._error
        return self.facts

    async def wait_dead(self) -> EngineDead:
        await self._attach()
        while self._error is None:
            await self._change()
        return self._error

    def submit(self, request: Request) -> EventStream:
        mailbox = Mailbox(request)
        if self._error is not None:
            mailbox.fail(self._error)
        elif request.request_id in self._mailboxes:
            self._refuse_twin(mailbox, request.request_id)
        else:
            self._last_ticket += 1
            self._register(self._last_ticket, request.request_id, mailbox)
            self._send(Submit(self._last_ticket, request))
        return EventStream(mailbox, partial(self._abandon, self._last_ticket))

    def cancel(self, request_id: RequestId, choice: int | None = None) -> None:
        self._withdraw(self._tickets.get(request_id, 0), choice)

    async def ask(self, ask: Ask[R]) -> R:
        if self._error is not None:
            raise self._error
        self._last_ticket += 1
        number, reply = self._last_ticket, asyncio.get_running_loop().create_future()
        self._asked[number] = (type(ask), reply)
        self._send(asked(number, ask))
        try:
            return await reply
        finally:
            self._asked.pop(number, None)

    def listen(self, sink: Callable[[Sequence[Event]], None]) -> None:
        self._sinks.append(sink)

    async def close(self, why: EngineDead | None = None) -> None:
        """As the Protocol says; `why` is what those are told who still wait."""
        settles = why is None and self._settle_s > 0
        if settles and self._link is not None and not self._link.transport.is_closing():
            self._link.transport.write_eof()  # it hears that, and is not gone with us
        else:
            self._hang_up()
        self._die(why or EngineDead("the engine was closed"))

    @property
    def _settle_s(self) -> float:
        return 0.0 if self._facts is None else self._facts.settle_s

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.transport.close()
        else:
            self._sock.close()

    # -- what comes --------------------------------------------------------------------------------------------------

    def heard(self, body: bytes) -> None:
        """Takes one message of the engine."""
        self._heard_s = now()
        news = read_news(body)
        if isinstance(news, Happened):
            self._deliver(read_events(news, self._names))
        elif isinstance(news, Progress):
            self._progress = news.what
        elif isinstance(news, Ready):
            self._facts, self._state, self._progress = news.facts, EngineState.READY, "ready"
            self._changed.set()
            self._tell((EngineReady(now()),))
        elif isinstance(news, Replied):
            self._replied(news)
        elif isinstance(news, Failed):
            self._failure = (CannotStart if news.refused else EngineDead)(news.message)

    def lost(self, why: str) -> None:
        """Takes note that no more messages will come."""
        if self._error is None:
            self._die(self._failure or EngineDead(self.describe_end() or why))

    def describe_end(self) -> str | None:
        """How the engine ended, where that can be known."""
        return None

    def _deliver(self, events: list[Event]) -> None:
        of_request: dict[RequestId, Events] = {}
        for event in events:
            request_id = getattr(event, "request_id", None)
            if request_id is not None:
                own = of_request.get(request_id)
                of_request[request_id] = (event,) if own is None else (*own, event)
        self._tell(events)
        for request_id, own in of_request.items():
            mailbox = self._mailboxes[request_id]
            mailbox.put(own)
            if mailbox.over:
                del self._mailboxes[request_id], self._names[self._tickets.pop(request_id)]

    def _replied(self, news: Replied) -> None:
        """Whoever asked may have gone."""
        kind, reply = self._asked.get(news.number, (None, None))
        if kind is None or reply is None or reply.done():
            return
        if news.error is not None:
            reply.set_exception(AskFailed(news.error))
        else:
            reply.set_result(read_reply(news, kind))

    def _tell(self, events: Sequence[Event]) -> None:
        for sink in self._sinks:
            try:
                sink(events)
            except Exception:
                log.exception("a listener failed on what happened")

    def _register(self, ticket: int, request_id: RequestId, mailbox: Mailbox) -> None:
        self._tickets[request_id] = ticket
        self._names[ticket] = request_id
        self._mailboxes[request_id] = mailbox

    def _refuse_twin(self, mailbox: Mailbox, request_id: RequestId) -> None:
        message = f"request id {request_id!r} is in use by a request that is not over"
        refused = Refused(request_id, now(), "duplicate_id", message)
        mailbox.put((refused,))
        self._tell((refused,))

    # -- the connection ----------------------------------------------------------------------------------------------

    async def _attach(self) -> None:
        if self._loop is not None or self._error is not None:
            return
        self._loop = asyncio.get_running_loop()
        _, self._link = await self._loop.create_unix_connection(lambda: _Link(self), sock=self._sock)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _send(self, command: Command) -> None:
        if self._link is None:
            raise RuntimeError("await wait_ready() before submitting")
        self._link.transport.write(frame(command))

    def _withdraw(self, ticket: int, choice: int | None = None) -> None:
        if ticket in self._names:
            self._send(Cancel(ticket, choice))

    def _abandon(self, ticket: int) -> None:
        """Cancels for a dropped iterator, which may be collected in any thread, and after the event loop has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._withdraw, ticket)

    def _die(self, error: EngineDead) -> None:
        if self._error is None:
            self._state, self._error = EngineState.DEAD, error
            for mailbox in self._mailboxes.values():
                mailbox.fail(error)
            for _, reply in self._asked.values():
                if not reply.done():
                    reply.set_exception(error)
            self._mailboxes.clear()
            self._tickets.clear()
            self._names.clear()
            self._tell((EngineLost(now(), str(error)),))
            self._changed.set()


class _Link(asyncio.Protocol):
    """Cuts what arrives into messages for a RemoteClient."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self._deframer = Deframer()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._deframer.feed(data):
                self._client.heard(body)
        except WireError as error:
            log.exception("the engine cannot be understood")
            self._client.lost(str(error))
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(f"the connection to the engine broke: {exc}" if exc else "the engine closed its connection")
