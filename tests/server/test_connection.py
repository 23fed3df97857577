"""Bytes that are no request, or too many before one: over bare sockets, in any pieces."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from octavo.server.connection import MAX_HEAD_BYTES
from tests.server.site import PATIENCE_S, Gate, Site

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"prompt":"x"}'
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)


@contextmanager
def connected(site: Site) -> Iterator[socket.socket]:
    with socket.create_connection((site.http.base_url.host, site.http.base_url.port or 0), PATIENCE_S) as sock:
        yield sock


def answers(sock: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def refused(sock: socket.socket) -> tuple[int, str]:
    """The status and code of the one answer that comes before the server hangs up."""
    head, _, body = answers(sock).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert (headers["content-type"], headers["connection"]) == ("application/json", "close") and headers["date"]
    assert int(headers["content-length"]) == len(body)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    return int(lines[0].split()[1]), error["code"]


BROKEN = {
    "unknown method": b"FOO /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "small method": b"get /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bytes in the path": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in a header": HEALTH + b"x: \0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "negative length": POST + b"Content-Length: -5\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunk of no length": CHUNKED + b"zz\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_request_is_told_so(site: Site, name: str) -> None:
    with connected(site) as sock:
        sock.sendall(BROKEN[name])
        assert refused(sock) == (400, "malformed_request")


LONG = {
    "a header": (HEALTH + b"x: ", b"a"),
    "a header's name": (HEALTH, b"a"),
    "many headers": (HEALTH, b"a: b\r\n"),
    "a path": (b"GET /", b"a"),
    "empty lines": (b"\r\n", b"\r\n"),
    "a trailer": (CHUNKED + CHUNK + b"0\r\nx: ", b"a"),
    "many trailers": (CHUNKED + CHUNK + b"0\r\n", b"a: b\r\n"),
    "a chunk's extension": (CHUNKED + b"5;", b"a"),
}


@pytest.mark.parametrize("piece", [1000, MAX_HEAD_BYTES * 2], ids=["pieces", "at once"])
@pytest.mark.parametrize("name", LONG)
def test_what_surrounds_a_body_has_a_limit(site: Site, name: str, piece: int) -> None:
    """It never ends. The server reads little more than the limit, whatever is sent, and hangs up."""
    start, more = LONG[name]
    with connected(site) as sock:
        sent = len(start)
        try:
            sock.sendall(start)
            while sent < 20 * MAX_HEAD_BYTES:
                sock.sendall(more * (piece // len(more)))
                sent += piece
            assert answers(sock).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 200 "))
        except ConnectionError:  # it hung up while we were sending
            return


@pytest.mark.parametrize("complete", [False, True])
def test_a_long_head_is_told_so(site: Site, complete: bool) -> None:
    """Not a byte more is sent than it has to read for that, so that the answer is not lost."""
    start, end = HEALTH + b"x: ", b"\r\n\r\n" if complete else b""
    padding = MAX_HEAD_BYTES + (50 if complete else 1) - len(start) - len(end)
    with connected(site) as sock:
        sock.sendall(start + b"a" * padding + end)
        assert refused(sock) == (431, "headers_too_large")
    assert site.http.get("/health", headers={"x": "a" * (MAX_HEAD_BYTES - 1000)}).status_code == 200


def test_the_limit_is_for_one_head_and_not_for_a_connection(site: Site) -> None:
    head = HEALTH + b"x: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n"
    with connected(site) as sock:
        sock.sendall((head + b"\r\n") * 5 + head + b"Connection: close\r\n\r\n")
        assert answers(sock).count(b"HTTP/1.1 200 OK") == 6


def test_a_body_in_many_chunks_with_trailers_is_read(site: Site) -> None:
    body = b'{"prompt":"' + b"x" * 3 * MAX_HEAD_BYTES + b'"}'
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (body[at : at + 999] for at in range(0, len(body), 999))
    )
    with connected(site) as sock:
        sock.sendall(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nx: y\r\n\r\n")
        assert answers(sock).startswith((b"HTTP/1.1 200 OK", b"HTTP/1.1 400 "))


def test_a_refusal_does_not_land_in_an_answer(gated: tuple[Site, Gate]) -> None:
    """A stream is running when nonsense comes: it is cut off, and nothing that is no event is in it."""
    site, gate = gated
    body = json.dumps({"prompt": "the", "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with connected(site) as sock:
        sock.sendall(head % len(body) + body)
        gate.let(2)
        first = sock.recv(1 << 16)
        sock.sendall(BROKEN["unknown method"])
        whole = first + answers(sock)
        assert whole.count(b"HTTP/1.1 ") == 1 and b"[DONE]" not in whole
        gate.open()
