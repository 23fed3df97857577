"""Connection: the bytes of one client. What surrounds a body has a limit, all has its time, and nonsense is told so."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.exchange import STRAIGHT
from octavo.server.openai.errors import ApiError

access = logging.getLogger("octavo.server.access")

MAX_HEAD_BYTES = 64 << 10
"""Of a request line with its headers, or of trailers. The parser's time for one header grows with its square."""
LEAST_BYTES_S = 1024
"""A body that comes at least this fast may take any time."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a client may take."""

    head_s: float
    body_s: float
    idle_s: float


def patient(head_s: float, body_s: float, idle_s: float, refused: Callable[[ApiError], None]) -> type[asyncio.Protocol]:
    """What makes connections that wait so long, in the place of a class of connections.

    `refused` is told what was answered to what never became a request.
    """
    patience = Patience(head_s, body_s, idle_s)

    def connection(**about: Any) -> Connection:
        return Connection(patience, refused, **about)

    return cast(type[asyncio.Protocol], connection)


class Chunks:
    """The body of one answer, where it goes out in chunks (`exchange.Straight`): what `send` does with one of them."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def free(self) -> bool:
        cycle = self._cycle
        ended = cycle.response_complete or cycle.disconnected
        return cycle.chunked_encoding is True and not ended and not cycle.flow.write_paused

    def write(self, data: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class Connection(HttpToolsProtocol):
    """uvicorn's reader of HTTP/1.1, which calls `on_...` and, for what it cannot read, `send_400_response`."""

    def __init__(self, patience: Patience, refused: Callable[[ApiError], None], **about: Any) -> None:
        super().__init__(**about)
        self._refused = refused
        self.timeout_keep_alive = patience.idle_s  # pyright: ignore[reportAttributeAccessIssue]  # any number will do
        self._patience = patience
        self._deadline: _Deadline | None = None
        """Runs while a head or a body is awaited; not while nothing is, as when it is us who take long."""
        self._begun = False
        """Has a byte of the message come that is not complete yet?"""
        self._advanced = False
        self._stalled_bytes = 0
        """Read since a head was complete, a part of a body came, or a message ended."""
        self._refusal = _malformed()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._await_head()
        self._advanced = False
        super().data_received(data)
        self._stalled_bytes = 0 if self._advanced else self._stalled_bytes + len(data)
        if self._stalled_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_too_long())

    def part(self) -> None:
        """Makes the answer that is awaited the last one; not one that has begun without telling the client so."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._advanced = True
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refusal = _too_long()
            raise self._refusal
        if self.url.startswith(b"//"):  # whose first part would be taken for the name of a host, and left out
            self.url = b"http://host" + self.url
        self._await_body()
        super().on_headers_complete()
        self.cycle.scope["extensions"] = {STRAIGHT: {"body": Chunks(self.cycle)}}

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        if self._deadline is not None:
            self._deadline.extra_s += len(body) / LEAST_BYTES_S
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        self._begun = False
        self._await(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def _await_head(self) -> None:
        self._await(_Deadline(self.loop, self._patience.head_s, self._head_is_late))

    def _await_body(self) -> None:
        self._await(_Deadline(self.loop, self._patience.body_s, self._body_is_late))

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # while the answer before is still being given, nothing is missing
        elif self._begun:
            self._refuse(_slow_head(self._patience.head_s))
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        if self.flow.read_paused:
            self._await_body()  # it is not the client who keeps us waiting
        elif self.cycle.response_started:
            self.transport.close()  # it was answered without being read
        else:
            self._refuse(_slow_body(self._patience.body_s))

    def _await(self, deadline: "_Deadline | None") -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = deadline

    def _refuse(self, error: ApiError) -> None:
        """Says so, unless that would end up in the middle of an answer, and hangs up."""
        access.info("no request: %d %s", error.status, error.code)
        self._refused(error)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_written(error, self.server_state.default_headers))
        self.transport.close()


class _Deadline:
    """Calls `late` once the time is over, which may be prolonged meanwhile: cheaply, many times."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, late: Callable[[], None]) -> None:
        self.extra_s = 0.0
        self._loop = loop
        self._late = late
        self._timer = loop.call_later(limit_s, self._passed)

    def cancel(self) -> None:
        self._timer.cancel()

    def _passed(self) -> None:
        if self.extra_s:
            self._timer = self._loop.call_later(self.extra_s, self._passed)
            self.extra_s = 0.0
        else:
            self._late()


def _written(error: ApiError, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = error.body()
    own = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close"))
    lines = [b"%b: %b\r\n" % header for header in (*headers, *own)]
    status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n".encode()
    return b"".join((status, *lines, b"\r\n", body))


def _malformed() -> ApiError:
    message = "this is no HTTP/1.1 request that is understood here: its method, a header or its framing is not"
    return ApiError(400, message, code="malformed_request")


def _too_long() -> ApiError:
    message = f"the request line and headers, or the trailers, are longer than {MAX_HEAD_BYTES} bytes"
    return ApiError(431, message, code="headers_too_large")


def _slow_head(limit_s: float) -> ApiError:
    message = f"the request line and headers were not complete after {limit_s:g} s (--header-timeout)"
    return ApiError(408, message, code="request_timeout")


def _slow_body(limit_s: float) -> ApiError:
    message = f"the body was not complete after {limit_s:g} s, and a second for each KiB that came (--body-timeout)"
    return ApiError(408, message, code="request_timeout")
