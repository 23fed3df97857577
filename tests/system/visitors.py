"""Visitors: clients of a server, of all kinds, each of which does what it does until it is told to stop.

What they are told they write into a Book, of which the server's counters must be the sums.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from tests.server.effects import Answered
from tests.server.site import as_
from tests.system.wishes import Wish, careful_wish, spoiled, wild_wish

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]

FULL = frozenset({"queue_full", "queue_tokens_full", "no_room_to_pin"})
"""What a server may say with a 503 while it is well."""
BURST = 40
LONGEST_BODY = 60_000


@dataclass
class Book:
    """What clients were told, in sum."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(route, status) -> how many answers."""
    left: Counter[str] = field(default_factory=Counter)
    """Route -> requests whose client was gone before it could know the status."""
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    """By key, of those who read all to the end: requests that were taken in, and their tokens."""
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    completion_tokens: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    """Answers that no well server gives."""

    def note(self, route: str, response: httpx.Response) -> None:
        """An answer that has been read."""
        self.statuses[route, response.status_code] += 1
        if response.status_code >= 400:
            code = _code(response)
            self.codes[code, response.status_code] += 1
            if response.status_code >= 500 and not (response.status_code == 503 and _is_overload(code, response)):
                self.unexpected.append(f"{route}: {response.status_code} {response.text[:500]}")

    def leave(self, route: str, data: bytes) -> None:
        """An answer of which only so much was read."""
        if data:
            self.statuses[route, int(data.split()[1])] += 1
        else:
            self.left[route] += 1

    def take(self, key: str, answered: Answered) -> None:
        """An answer of which all was read, of whoever reads all."""
        usage = answered.body["usage"]
        self.requests[key] += 1
        self.prompt_tokens[key] += answered.num_prompt
        self.completion_tokens[key] += (
            answered.num_tokens if usage.keys() & {"output_tokens", "completion_tokens"} else 0
        )


def _code(response: httpx.Response) -> str:
    """Messages has types where the others have codes."""
    error = response.json()["error"]
    return error.get("code") or error["type"]


def _is_overload(code: str, response: httpx.Response) -> bool:
    return (code in FULL or code == "overloaded_error") and "retry-after" in response.headers


@dataclass
class Visit:
    """What a visitor needs: whom it asks, what is drawn, where it writes, and when it ends."""

    http: httpx.AsyncClient
    port: int
    rng: random.Random
    book: Book
    stop: asyncio.Event
    key: str

    async def ask(self, wish: Wish) -> httpx.Response:
        """One request, read to its end."""
        response = await self.http.request(wish.method, wish.path, content=wish.body, headers=_headers(self.key))
        self.book.note(wish.route, response)
        return response


def _headers(key: str) -> dict[str, str]:
    return {**as_(key)["headers"], "content-type": "application/json"}


Visitor = Callable[[Visit], Awaitable[None]]
"""One thing that one of them does. Each is done again and again."""


async def careful(visit: Visit) -> None:
    """Reads each answer to its end, checks its form, and knows what was generated for it."""
    response = await visit.ask(careful_wish(visit.rng))
    if response.status_code != 200:
        assert response.status_code == 503, response.text
        await _pause(visit, visit.rng.random())
        return
    assert "error" not in response.text[-300:], (response.request.content, response.text[-1000:])
    visit.book.take(visit.key, Answered.of(response))


async def wild(visit: Visit) -> None:
    """Asks for whatever there is to be asked for; an answer is right, or it says what is wrong."""
    await visit.ask(wild_wish(visit.rng))


async def limited(visit: Visit) -> None:
    """Has a quota, and takes no notice of it."""
    response = await visit.ask(careful_wish(visit.rng))
    assert response.status_code in (200, 400, 429, 503), response.text
    await _pause(visit, 0.2 * visit.rng.random())


async def leaving(visit: Visit) -> None:
    """Goes away: before there is an answer, within it, or just at its end."""
    wish = careful_wish(visit.rng) if visit.rng.random() < 0.7 else wild_wish(visit.rng, generates=True)
    enough = visit.rng.randint(1, 4000)
    data = b""
    async with connected(visit.port) as (reader, writer):
        writer.write(raw_request(wish.path, visit.key, wish.body))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(visit.rng.random() ** 3 * 4):
                while len(data) < enough and (more := await reader.read(1000)):
                    data += more
    visit.book.leave(wish.route, data)
    await _pause(visit, 0.3 * visit.rng.random())


async def slow(visit: Visit) -> None:
    """Asks for much, and reads it through a straw; sometimes it has enough of that."""
    body = {"prompt": "The sea " * 8, "max_tokens": 150, "logprobs": 20, "stream": True, "ignore_eos": True}
    data, size, enough = b"", 0, visit.rng.randint(1000, 200_000)
    async with connected(visit.port, most_bytes=2048) as (reader, writer):
        writer.write(raw_request("/v1/completions", visit.key, json.dumps(body).encode()))
        while (more := await reader.read(512)) and size < enough and not visit.stop.is_set():
            data, size = data or more, size + len(more)
            await asyncio.sleep(0.002)
    visit.book.leave("/v1/completions", data)
    await _pause(visit, visit.rng.random())


async def muddled(visit: Visit) -> None:
    """Sends what is no request, no JSON, half of it, or one with something wrong in it."""
    wish = wild_wish(visit.rng, generates=True)
    kind = visit.rng.randrange(5)
    if kind == 0:
        await _hang_up_after(visit, visit.rng.randbytes(visit.rng.randint(1, 3000)) + b"\r\n\r\n")
    elif kind == 1:
        raw = raw_request(wish.path, visit.key, wish.body)
        await _hang_up_after(visit, raw[: -visit.rng.randint(1, len(wish.body))])
        visit.book.left[wish.route] += 1
    elif kind == 2:
        response = await visit.ask(Wish(wish.route, b"x" * (LONGEST_BODY + 1)))
        assert response.status_code in (413, 503), response.text
    else:
        await visit.ask(Wish(wish.route, spoiled(visit.rng, wish.body)))
    await _pause(visit, 0.2 * visit.rng.random())


async def _hang_up_after(visit: Visit, data: bytes) -> None:
    """Sends these bytes, waits for a word or not, and closes."""
    async with connected(visit.port) as (reader, writer):
        writer.write(data)
        await writer.drain()
        if visit.rng.random() < 0.5:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.5):
                    await reader.read(100)


@contextlib.asynccontextmanager
async def connected(port: int, most_bytes: int = 1 << 17) -> AsyncIterator[Link]:
    """A connection of its own, closed on exit, whatever is still on its way. So much may wait here to be read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, most_bytes)
    sock.setblocking(False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sock)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=most_bytes)
        stack.pop_all()
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def raw_request(path: str, key: str, body: bytes) -> bytes:
    """A whole request over a connection of its own."""
    head = {**_headers(key), "host": "x", "connection": "close", "content-length": str(len(body))}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode() + body


async def bursting(visit: Visit) -> None:
    """Many at once, far more than may wait, and then nothing for a while."""
    prompts = [[visit.rng.randrange(100, 40_000) for _ in range(60)] for _ in range(BURST)]
    bodies = [{"prompt": ids, "max_tokens": 4, "temperature": 0} for ids in prompts]
    wishes = [Wish("/v1/completions", json.dumps(body).encode()) for body in bodies]
    await asyncio.gather(*map(visit.ask, wishes))
    await _pause(visit, 12 * visit.rng.random())


async def operating(visit: Visit) -> None:
    """Looks around, pins, lets go of pins, empties the cache, writes a dump."""
    paths = ("/octavo/v1/state", "/octavo/v1/config", "/octavo/v1/pins", "/tokenizer_info", "/version", "/load")
    paths += ("/v1/models", "/docs", "/openapi.json", "/health", "/health/ready")
    for path in visit.rng.sample(paths, 4):
        await visit.ask(Wish(path, b"", "GET"))
    pin = {"prompt": f"{visit.rng.random()} is a number that " * 6, "ttl": visit.rng.choice([1, 5, 60])}
    pinned = await visit.ask(Wish("/octavo/v1/pins", json.dumps(pin).encode()))
    if pinned.status_code == 201 and visit.rng.random() < 0.5:
        await visit.ask(Wish("/octavo/v1/pins/{id}", b"", "DELETE", f"/octavo/v1/pins/{pinned.json()['id']}"))
    response = await visit.ask(Wish("/octavo/v1/prefix_cache", b"", "DELETE"))
    assert response.status_code in (200, 409), response.text
    if visit.rng.random() < 0.05:
        await visit.ask(Wish("/octavo/v1/dump", b"{}"))
    await _pause(visit, 2 * visit.rng.random())


async def following(visit: Visit) -> None:
    """Reads events as they happen, for a while."""
    enough = visit.rng.randint(20, 3000)
    async with visit.http.stream("GET", "/octavo/v1/events", headers=_headers(visit.key)) as response:
        visit.book.statuses["/octavo/v1/events", response.status_code] += 1
        last = -1
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                seq = json.loads(line.removeprefix("data: "))["seq"]
                assert seq > last
                last, enough = seq, enough - 1
            if enough < 0 or visit.stop.is_set():
                break


async def _pause(visit: Visit, seconds: float) -> None:
    """As long as that, or until it is to stop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await visit.stop.wait()
