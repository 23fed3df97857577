"""Clients that are slow, and requests that take long: each has its time, and is told so when it is over."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.core.types import FinishReason
from octavo.models.checkpoint import Checkpoint
from tests.server.site import PATIENCE_S, Gate, Site, backend_of, running
from tests.server.test_connection import BODY, HEALTH, POST, answers, connected, refused
from tests.server.test_connections import LONG, idle, in_thread
from tests.server.test_errors import error_of

SOON_S = 0.15
"""Long for a machine that has nothing else to do, short for one who waits."""
LATE = "request_timeout"


@contextmanager
def hurried(checkpoint: Checkpoint, **times: float) -> Iterator[Site]:
    server = ServerConfig(port=0, **times)
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server)) as site:
        yield site


@pytest.fixture(scope="module")
def quick(checkpoint: Checkpoint) -> Iterator[Site]:
    with hurried(checkpoint, header_timeout=SOON_S, body_timeout=SOON_S, keep_alive_timeout=4 * SOON_S) as site:
        yield site


def whole_answer(sock: socket.socket) -> bytes:
    """One answer, which says its length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(1 << 16)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "begin", [b"G", HEALTH, b"\r\n\r\nGET /health HTTP/1.1\r\n"], ids=["a byte", "a line", "blank"]
)
def test_a_head_that_never_ends_is_told_so(quick: Site, begin: bytes) -> None:
    with connected(quick) as sock:
        sock.sendall(begin)
        assert refused(sock) == (408, LATE)


def test_the_time_for_a_head_begins_anew_with_each_request(quick: Site) -> None:
    with connected(quick) as sock:
        for _ in range(3):
            sock.sendall(HEALTH + b"\r\n")
            assert b" 200 OK" in whole_answer(sock)
        sock.sendall(HEALTH)
        assert refused(sock) == (408, LATE)


@pytest.mark.parametrize("begin", [b"", b"\r\n"], ids=["nothing", "a blank line"])
def test_a_connection_without_a_request_is_closed_without_words(quick: Site, begin: bytes) -> None:
    with connected(quick) as sock:
        sock.sendall(begin)
        assert answers(sock) == b""


def test_a_body_that_never_ends_is_told_so(quick: Site) -> None:
    for framing in (b"Content-Length: 100\r\n\r\n" + BODY, b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc"):
        with connected(quick) as sock:
            sock.sendall(POST + framing)
            assert refused(sock) == (408, LATE)
    quick.until(lambda: quick.app.service.duty.in_flight == 0)


def test_a_body_that_keeps_coming_has_more_time_than_the_limit(quick: Site) -> None:
    """Each piece of it is worth more than the limit; together they take longer than that."""
    body = json.dumps({"prompt": "x" * 2000}).encode()
    pieces = [body[at : at + 400] for at in range(0, len(body), 400)]
    pieces[0] = POST + b"Content-Length: %d\r\n\r\n" % len(body) + pieces[0]
    with connected(quick) as sock:
        for piece in pieces:
            sock.sendall(piece)
            threading.Event().wait(SOON_S / 2)
        assert b" 200 OK" in whole_answer(sock)


def test_a_request_that_was_answered_without_its_body_is_not_answered_twice(quick: Site) -> None:
    with connected(quick) as sock:
        sock.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert answers(sock).count(b"HTTP/1.1 ") == 1


def test_a_stray_line_behind_a_request_does_not_end_its_answer(checkpoint: Checkpoint) -> None:
    """Old clients send one. The head that seems to begin is not awaited while the answer is being given."""
    gate = Gate(backend_of(checkpoint))
    server = ServerConfig(port=0, header_timeout=SOON_S)
    with running(checkpoint, Config(server=server), backend=gate) as site, connected(site) as sock:
        body = json.dumps({**LONG, "max_tokens": 2}).encode()
        head = POST.replace(b"/tokenize", b"/v1/completions") + b"Content-Length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body + b"\r\n")
        sock.settimeout(4 * SOON_S)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(PATIENCE_S)
        gate.open()
        assert b" 200 OK" in whole_answer(sock)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_request_that_takes_too_long_is_cancelled_and_told_so(checkpoint: Checkpoint, stream: bool, n: int) -> None:
    gate = Gate(backend_of(checkpoint))
    config = Config(server=ServerConfig(port=0, request_timeout=2 * SOON_S))
    with running(checkpoint, config, backend=gate) as site:
        wait = in_thread(lambda: site.post("/v1/completions", {**LONG, "stream": stream, "n": n}))
        gate.let(1)
        response = wait()
        if stream and response.status_code == 200:
            streamed = site.stream(response)
            assert [error["code"] for error in streamed.errors] == [LATE] and not streamed.done
            assert streamed.errors == [streamed.chunks[-1]["error"]]
            assert all(streamed.finish(index) == [] for index in range(n))
        else:
            assert response.status_code == 504 and error_of(response)["code"] == LATE
            assert "--request-timeout" in response.text
        gate.open()
        site.until(lambda: idle(site))
        assert site.app.service.meters.finished[FinishReason.ABORT] == n
        assert site.app.service.meters.generation_tokens <= 3 * n
        assert site.complete("x", max_tokens=1).status_code == 200


def test_a_timeout_does_not_wait_for_a_client_that_reads_nothing(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is full, so not even the error can be said: its work ends all the same."""
    monkeypatch.setattr("octavo.server.openai.respond.LAST_WORDS_S", SOON_S)
    config = Config(server=ServerConfig(port=0, request_timeout=4 * SOON_S))
    body = json.dumps({**LONG, "stream": True}).encode()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    with running(checkpoint, config) as site:
        sent: list[str] = []

        async def ask() -> None:
            came = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                return came.pop() if came else await asyncio.get_running_loop().create_future()

            async def send(message: Any) -> None:
                sent.append(message["type"])
                if message["type"] == "http.response.body":
                    await asyncio.get_running_loop().create_future()

            await site.app(scope, receive, send)

        site.run(ask())
        assert sent == ["http.response.start", "http.response.body", "http.response.body"]
        site.until(lambda: idle(site))
