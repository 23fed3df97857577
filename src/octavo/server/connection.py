"""Connection: the bytes of one client. What surrounds a body has a limit, and what is no request is told so as JSON."""

import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.openai.errors import ApiError

access = logging.getLogger("octavo.server.access")

MAX_HEAD_BYTES = 64 << 10
"""Of a request line with its headers, or of trailers. The parser's time for one header grows with its square."""


class Connection(HttpToolsProtocol):
    """uvicorn's reader of HTTP/1.1, which calls `on_...` and, for what it cannot read, `send_400_response`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._advanced = False
        self._stalled_bytes = 0
        """Read since a head was complete, a part of a body came, or a message ended."""
        self._refusal = _malformed()

    def data_received(self, data: bytes) -> None:
        self._advanced = False
        super().data_received(data)
        self._stalled_bytes = 0 if self._advanced else self._stalled_bytes + len(data)
        if self._stalled_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_too_long())

    def on_headers_complete(self) -> None:
        self._advanced = True
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refusal = _too_long()
            raise self._refusal
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def _refuse(self, error: ApiError) -> None:
        """Says so, unless that would end up in the middle of an answer, and hangs up."""
        access.info("no request: %d %s", error.status, error.code)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_written(error, self.server_state.default_headers))
        self.transport.close()


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
