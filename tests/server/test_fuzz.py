"""Requests that work, spoiled: whatever comes is answered, or refused as a client's fault, and nothing is left behind.

What is spoiled is each request of the tables in `effects.py`, so a new endpoint is in here too. In its JSON: values,
names, numbers, texts. In its bytes: cut, changed, not UTF-8. And in how they come: in pieces, under a wrong name, one
behind the other.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.schema import Config, EngineConfig, LimitsConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.manners import manner_of
from tests.server.described import errors
from tests.server.effects import ABSENT
from tests.server.endpoints import ENDPOINTS
from tests.server.site import PATIENCE_S, Site, running

MOST_CHOICES = 4
REQUESTS = [
    (endpoint.path, endpoint.request(effect, path.partition(".")[0].removesuffix("[]"), value))
    for endpoint in ENDPOINTS
    for path, effect in endpoint.effects.items()
    for value in (effect.value, effect.other)
    if value is not ABSENT and not path.endswith("max_tokens")
]


@pytest.fixture(scope="module")
def small(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server that refuses what would only take long."""
    config = Config(
        model=ModelConfig(model="tiny"),
        server=ServerConfig(port=0),
        scheduler=SchedulerConfig(max_num_seqs=MOST_CHOICES),
        engine=EngineConfig(crash_dump_dir="off"),
        limits=LimitsConfig(max_prompts=MOST_CHOICES, max_choices=MOST_CHOICES),
    )
    with running(checkpoint, config, max_num_seqs=MOST_CHOICES) as site:
        yield site


class Errors(logging.Handler):
    """What is logged as an error, or worse."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@contextmanager
def unharmed(site: Site) -> Iterator[None]:
    """At the end of the block the server is as it was: it answers, nothing runs or waits, no task is left."""
    logged, before = Errors(), num_tasks(site)
    logging.getLogger().addHandler(logged)
    try:
        yield
        site.until(lambda: site.http.get("/load").json()["server_load"] == 0)
        site.until(lambda: num_tasks(site) <= before)
        site.until(lambda: site.metric("vllm:num_requests_running") + site.metric("vllm:num_requests_waiting") == 0)
        assert site.http.get("/health").status_code == 200
        assert site.complete("the", max_tokens=2).status_code == 200
    finally:
        logging.getLogger().removeHandler(logged)
    assert logged.records == []


def num_tasks(site: Site) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return site.run(count())


# -- spoiled JSON ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """Text that stands in JSON as it is, though it may not."""

    text: str


@dataclass(frozen=True)
class Twice:
    """An object that has its first name twice."""

    value: dict[str, Any]


ODD = [
    *(10**400, -(10**400), 2**63, 2**64, -1, 0, 1e308, 5e-324, -0.0, 288, 10**6),
    *("", "\0", "\ud7ff\ue000", "\u2028", "x" * 300, "1" * 30, "<|im_end|>", "../../x", "{{ 7 * 7 }}"),
    *(Raw("NaN"), Raw("-Infinity"), Raw("1e999"), Raw("01"), Raw("'x'"), Raw("undefined"), Raw("[1,]"), Raw("")),
    *(Raw(r'"\ud800"'), Raw(r'"\udc00x"'), Raw('"\udcff"'), Raw("[" * 300), Raw("9" * 5000), Raw('{"a":1,"a":2}')),
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(ODD)
    | st.sampled_from([value for _, body in REQUESTS for value in body.values()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(sorted({name for _, body in REQUESTS for name in body})) | st.text(max_size=5)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from places(inner, (*above, key))


def changed(value: Any, path: Sequence[Any], new: Any) -> Any:
    """The value with `new` at the path; ABSENT: with nothing there; Twice: what is there gets a name twice."""
    if not path:
        return Twice(value) if new is Twice and isinstance(value, dict) and value else new
    key, inner = path[0], value[path[0]]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if new is ABSENT and len(path) == 1:
        del copy[key]
    else:
        copy[key] = changed(inner, path[1:], new)
    return copy


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, Any]:
    """A request with one to three changes."""
    path, body = draw(st.sampled_from(REQUESTS))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(body, dict):
            break
        where = draw(st.sampled_from([*places(body), ()]))
        if where == () or draw(st.integers(0, 3)) == 0:
            body = {**body, draw(names): draw(values)}
        else:
            body = changed(body, where, draw(st.just(ABSENT) | st.just(Twice) | values))
    return path, body


def written(value: Any) -> str:
    """As JSON, but for what is spoiled."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Twice):
        name, first = next(iter(value.value.items()))
        return f"{{{json.dumps(name)}:{written(first)},{written(value.value)[1:]}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(name))}:{written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value) if value is not Twice else "{}"


def encoded(path: str, body: Any) -> bytes:
    return written(short(path, body)).encode("utf-8", "surrogateescape")


def short(path: str, body: Any) -> Any:
    """Where a length is given at all, one that is soon reached: what takes long is another test's."""
    if not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name not in ("max_tokens", "max_output_tokens")}
    length = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    return {**kept, length: 3} if path.startswith("/v1/") and path not in COUNTS else kept


COUNTS = ("/v1/embeddings", "/v1/messages/count_tokens")


def check_answer(path: str, status: int, media: str, body: bytes) -> None:
    """It is an answer, or says what was wrong in the form of that path."""
    assert 200 <= status < 500, body
    if media.startswith("text/event-stream"):
        assert status == 200 and body.endswith(b"\n\n")
        return
    value = json.loads(body)
    if status >= 400:
        error = manner_of(path).error
        assert not errors({"$ref": f"#/components/schemas/{error.__name__}"}, value), value


@given(st.lists(spoiled(), min_size=4, max_size=4))
@settings(deadline=None)
def test_no_body_is_the_servers_fault(small: Site, several: list[tuple[str, Any]]) -> None:
    with unharmed(small):
        for path, body in several:
            answer = small.post(path, content=encoded(path, body), headers={"content-type": "application/json"})
            check_answer(path, answer.status_code, answer.headers["content-type"], answer.content)


# -- spoiled bytes, and how they come --------------------------------------------------------------------------------


@st.composite
def spoiled_bytes(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request, of which a part is missing, other, or there twice."""
    path, body = draw(st.sampled_from(REQUESTS))
    data = encoded(path, body)
    at, end = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
    how = draw(st.sampled_from(["whole", "cut", "without", "changed", "again", "before", "after"]))
    other = draw(
        st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0", b'"'])
    )
    made = {
        "whole": data,
        "cut": data[:at],
        "without": data[:at] + data[end:],
        "changed": data[:at] + other + data[at + 1 :],
        "again": data[:end] + data[at:],
        "before": other + data,
        "after": data + other,
    }
    return path, made[how]


MEDIA = ["application/json"] * 6 + [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/json; charset=utf-16",
]
CODINGS = [b""] * 5 + [b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n", b"Content-Encoding: identity\r\n"]


@st.composite
def framed(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A request as the bytes of HTTP/1.1, in the pieces that they come in."""
    path, body = draw(spoiled_bytes())
    media, coding = draw(st.sampled_from(MEDIA)), draw(st.sampled_from(CODINGS))
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\n%b" % (path.encode(), media.encode(), coding)
    if draw(st.booleans()):
        size = draw(st.sampled_from([1, 2, 7, 1000]))
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        extension = draw(st.sampled_from([b"", b";a=b"]))
        chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        whole = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    else:
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return path, [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


LAST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@given(st.lists(framed(), min_size=1, max_size=3), st.booleans())
@settings(deadline=None)
def test_no_bytes_are_the_servers_fault(small: Site, requests: list[tuple[str, list[bytes]]], at_once: bool) -> None:
    """One behind the other on a connection, sent at once or each after the answer to the one before."""
    with unharmed(small), connected(small) as sock:
        if at_once:
            sock.sendall(b"".join(b"".join(pieces) for _, pieces in requests) + LAST)
        for path, pieces in requests:
            for piece in () if at_once else pieces:
                sock.sendall(piece)
            check_answer(path, *answer_on(sock))
        if not at_once:
            sock.sendall(LAST)
        assert answer_on(sock)[0] == 200


@contextmanager
def connected(site: Site) -> Iterator[socket.socket]:
    with socket.create_connection((site.http.base_url.host, site.http.base_url.port or 0), PATIENCE_S) as sock:
        yield sock


class Frugal:
    """What HTTPResponse reads from: never beyond the answer, so that the next one stays where it is."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def makefile(self, mode: str) -> Any:
        return self._sock.makefile(mode, buffering=1)  # type: ignore[call-overload]


def answer_on(sock: socket.socket) -> tuple[int, str, bytes]:
    """The status, the type and the body of the next answer."""
    response = HTTPResponse(Frugal(sock), method="POST")  # type: ignore[arg-type]
    response.begin()
    return response.status, response.headers["content-type"], response.read()


@pytest.mark.slow
@given(st.lists(spoiled(), min_size=10, max_size=10))
@settings(deadline=None)
def test_no_body_is_the_servers_fault_at_length(small: Site, several: list[tuple[str, Any]]) -> None:
    test_no_body_is_the_servers_fault.hypothesis.inner_test(small, several)


@pytest.mark.slow
@given(st.lists(framed(), min_size=1, max_size=5), st.booleans())
@settings(deadline=None)
def test_no_bytes_are_the_servers_fault_at_length(
    small: Site, requests: list[tuple[str, list[bytes]]], at_once: bool
) -> None:
    test_no_bytes_are_the_servers_fault.hypothesis.inner_test(small, requests, at_once)
