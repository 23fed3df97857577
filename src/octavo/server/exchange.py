"""Exchange: one HTTP request and its answer, straight on ASGI. And EventStream: an answer that goes on."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from octavo.config.tenants import NOBODY, Tenant
from octavo.server.manners import manner_of
from octavo.server.openai.errors import ApiError
from octavo.server.visits import NO_ROUTE

if TYPE_CHECKING:
    from octavo.server.tenancy import Spending

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

HEADERS: Mapping[str, str] = {
    "x-request-id": "the request's own, where it can be echoed as it is, or one that was drawn",
    "request-id": "the same, where Anthropic's clients look for it: below /v1/messages",
    "x-octavo-seed": "the seed that was used, also where none was given",
    "x-octavo-max-tokens": "the most tokens that could be generated, where the context had no room for what was asked",
    "x-octavo-unknown-fields": "names in the body that nobody knows, quoted as in a URL",
    "x-octavo-controls-as-text": "control tokens whose text is in the prompt, where it is not read as such",
    "x-octavo-cache-miss": "where the prefix cache's part of the prompt ends, and why",
    "x-ratelimit-limit-requests": "requests that the tenant has each minute",
    "x-ratelimit-remaining-requests": "requests that are left",
    "x-ratelimit-reset-requests": "the time until all are there again",
    "x-ratelimit-limit-tokens": "tokens that the tenant has each minute",
    "x-ratelimit-remaining-tokens": "tokens that are left",
    "x-ratelimit-reset-tokens": "the time until all are there again",
}
"""Headers of answers that are not HTTP's own, and what they say."""
JSON = b"application/json"
_ID_CHARACTERS = frozenset(range(0x21, 0x7F))


STRAIGHT = "octavo.straight"
"""The extension of ASGI, in the scope of a request, whose `body` is a `Straight`."""


class Straight(Protocol):
    """The way past ASGI for an answer that goes on: no coroutine, and no message, for each token."""

    @property
    def free(self) -> bool:
        """Has the answer begun, and does nothing keep the next part of it from being written now?"""
        ...

    def write(self, data: bytes) -> None:
        """The next part, which is not empty. Only while `free`."""
        ...


class ClientGone(Exception):
    """Nobody is there any more to read the answer."""


class Exchange:
    """Reads the request, writes the answer, and notices when the client is gone."""

    __slots__ = (
        "_receive",
        "_send",
        "began",
        "error",
        "headers",
        "id",
        "method",
        "num_bytes",
        "path",
        "query",
        "replied",
        "route",
        "spending",
        "status",
        "straight",
        "tenant",
        "tokens",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, root_path: str = "") -> None:
        """`root_path` may stand before the path, where a proxy did not take it off."""
        self._receive = receive
        self._send = send
        self.straight: Straight | None = scope.get("extensions", {}).get(STRAIGHT, {}).get("body")
        """For an answer that goes on, where whoever serves this app has it."""
        self.began = time.perf_counter()
        self.method: str = scope["method"]
        self.path: str = _own_path(scope["path"], root_path)
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """Of the request, names in lower case; the last of equal names."""
        self.id = _request_id(self.headers.get(b"x-request-id"))
        self.num_bytes = 0
        """Of the request's body, as far as it was read: what takes so long that it belongs into a thread?"""
        self.replied: list[Header] = [(b"x-request-id", self.id.encode())]
        """Headers of the answer that are known so far."""
        if (id_header := manner_of(self.path).id_header) != "x-request-id":
            self.header(id_header, self.id)
        self.route = NO_ROUTE
        """The path in the app's table that the request is for."""
        self.status = 0
        """Of the answer; 0: it has not begun."""
        self.error: ApiError | None = None
        """What the answer says went wrong, or the last event of a stream."""
        self.tenant: Tenant = NOBODY
        """Whose request it is: for whoever asks after the key was looked at."""
        self.spending: Spending | None = None
        """What it takes from its tenant's quotas, where it generates."""
        self.tokens = ""
        """For the log: how many the prompts have and how many were generated, as `37 + 8 tokens`."""

    def header(self, name: str, value: str) -> None:
        """Adds one of HEADERS to the answer, which must not have begun. Characters that cannot be in it become `?`."""
        assert name in HEADERS, name
        clean = "".join(character if character.isprintable() else "?" for character in value)
        self.replied.append((name.encode(), clean.encode("ascii", "replace")))

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises ApiError 413 above `limit`, 415 where it does not say that it is JSON."""
        self._check_media(limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            self.num_bytes = size
            parts.append(part)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_media(self, limit: int) -> None:
        media = self.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if media != JSON and not (media.startswith(b"application/") and media.endswith(b"+json")):
            shown = media.decode("latin-1") or "missing"
            raise ApiError(415, f"content-type must be application/json, it is {shown}", code="unsupported_media_type")
        coding = self.headers.get(b"content-encoding", b"identity").lower()
        if coding != b"identity":
            shown = coding.decode("latin-1")
            raise ApiError(415, f"content-encoding {shown} is not read here", code="unsupported_media_type")
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)

    async def reply(self, status: int, body: bytes, *, media: bytes = JSON, headers: tuple[Header, ...] = ()) -> None:
        """The whole answer."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(status, [(b"content-type", media), length, *headers])
        await self.write(body, more=False)

    async def refuse(self, error: ApiError) -> None:
        """The error as the whole answer."""
        self.error = error
        body = manner_of(self.path).error_body(error, self.id)
        await self.reply(error.status, body, headers=error.headers)

    async def start(self, status: int, headers: list[Header]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.replied]})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def while_connected(self, work: Coroutine[Any, Any, None], stopped: asyncio.Future[ApiError]) -> None:
        """Runs `work` until it ends, the client goes away, or `stopped` says why it must not go on.

        In the last two cases `work` is cancelled and has ended on return. Raises ClientGone, or what `stopped` says.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, gone, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            task.cancel()
            await asyncio.wait((task, gone))
        if not task.cancelled():
            return task.result()
        raise stopped.result() if stopped.done() else ClientGone

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class EventStream:
    """Server-sent events. The status line goes out with the first bytes, so that an early failure has its own."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._lock = asyncio.Lock()
        self._quiet = True
        self._straight = exchange.straight

    @property
    def started(self) -> bool:
        return self.exchange.status != 0

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Sends whole events, in one go."""
        self._quiet = False
        async with self._lock:
            if not self.exchange.status:
                await self.exchange.start(200, list(_STREAM_HEADERS))
            await self.exchange.write(data, more=more)

    @property
    def free(self) -> bool:
        """May `put` be called now? Not before something was written, nor while somebody waits for a slow client."""
        return self._straight is not None and self._straight.free and not self._lock.locked()

    def put(self, data: bytes) -> None:
        """Sends whole events at once. Only while `free`."""
        assert self._straight is not None
        self._quiet = False
        self._straight.write(data)

    @contextlib.asynccontextmanager
    async def kept_alive(self, every_s: float, words: bytes) -> AsyncIterator[None]:
        """`words` whenever nothing was sent for a while, as in a long prefill, so that nobody gives up."""
        task = asyncio.ensure_future(self._keep_alive(every_s, words))
        try:
            yield
        finally:
            task.cancel()

    async def _keep_alive(self, every_s: float, words: bytes) -> None:
        while True:
            self._quiet = True
            await asyncio.sleep(every_s)
            if self._quiet:
                await self.write(words)


_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def _own_path(path: str, root_path: str) -> str:
    return path[len(root_path) :] if root_path and path.startswith(f"{root_path}/") else path


def _request_id(given: bytes | None) -> str:
    """The client's X-Request-Id where it can be echoed as it is, or a new one."""
    if given and len(given) <= 128 and _ID_CHARACTERS.issuperset(given):
        return given.decode()
    return secrets.token_hex(12)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is longer than {limit:,} bytes (--max-body-bytes)", code="body_too_large")
