"""From a job to the answer on the wire: whole, or as events. What chat and completions have in common."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from octavo.core.plan import ScoredToken
from octavo.server.exchange import EventStream, Exchange
from octavo.server.openai.answer import Delta
from octavo.server.openai.errors import ApiError, failed
from octavo.server.openai.job import Job
from octavo.server.openai.schema import Sampling
from octavo.server.openai.sse import DONE, ChunkWriter, error_event

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""How long the error at the end of a stream may take to be sent."""


@dataclass(slots=True)
class Gathered:
    """One choice of a whole answer: its deltas, put together."""

    text: list[str] = field(default_factory=list)
    spelled: list[ScoredToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    stop: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.spelled += delta.spelled
        self.token_ids += delta.token_ids
        self.finish, self.stop = delta.finish, delta.stop


class Shape(Protocol):
    """How one endpoint writes its answers down. One for each request."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    text_field: tuple[bytes, bytes]
    """What stands around the text of a chunk's choice."""

    def plain(self, delta: Delta) -> bool:
        """Has this delta's chunk nothing but text in it?"""
        ...

    def chunk(self, delta: Delta) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """A chunk's choice, and what stands beside `choices`; None where there is nothing to say yet."""
        ...

    def whole(self, index: int, choice: Gathered) -> dict[str, Any]:
        """A choice of a whole answer."""
        ...

    def beside(self) -> dict[str, Any]:
        """What stands beside the choices of a whole answer."""
        ...


async def respond(exchange: Exchange, body: Sampling, job: Job, shape: Shape) -> None:
    """Answers, in the form that `body` asks for. Raises ApiError where nothing was sent yet."""
    answer = _stream if body.stream else _whole
    with job.service.duty.flight(exchange.began, job.service.config.server.request_timeout) as stopped:
        try:
            await exchange.while_connected(answer(exchange, body, job, shape), stopped)
        except ApiError as error:
            await _fail(exchange, error)
        finally:
            usage = job.usage()
            exchange.tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"


async def _fail(exchange: Exchange, error: ApiError) -> None:
    """The error as the end of a stream, or raised for whoever answers with a status of its own."""
    if not exchange.status:
        raise error
    log.warning("%s ended with an error after its first tokens: %s", exchange.id, error.message)
    with contextlib.suppress(TimeoutError):  # of a client that reads nothing: its connection is closed without words
        await asyncio.wait_for(exchange.write(error_event(error.body()), more=False), LAST_WORDS_S)


def _head(body: Sampling, job: Job, shape: Shape, kind: str) -> dict[str, Any]:
    return {
        "id": f"{shape.id_prefix}-{body.request_id or secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": body.model or job.service.names[0],
        "system_fingerprint": job.service.facts.fingerprint,
    }


async def _whole(exchange: Exchange, body: Sampling, job: Job, shape: Shape) -> None:
    gathered = [Gathered() for _ in range(len(job.requests) * job.num_choices)]

    async def gather(deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            gathered[delta.choice].add(delta)

    head = _head(body, job, shape, shape.whole_object)
    await job.run(gather)
    choices = [shape.whole(index, gathered[number]) for index, number in enumerate(job.keep_best())]
    _tell_miss(exchange, job)
    answer = {**head, "choices": choices, "usage": job.usage(), **shape.beside()}
    await exchange.reply(200, msgspec.json.encode(answer))


def _tell_miss(exchange: Exchange, job: Job) -> None:
    """What the prefix cache did not have, as a header. A stream that begins before that is known goes without."""
    miss = job.miss
    if miss is not None:
        ago = "" if miss.evicted_s is None else f"; evicted_s={miss.evicted_s:.3f}"
        exchange.header("x-octavo-cache-miss", f"{miss.reason}; at={miss.at}{ago}")


async def _stream(exchange: Exchange, body: Sampling, job: Job, shape: Shape) -> None:
    events = EventStream(exchange)
    async with _kept_alive(events, job.service.keep_alive_s):
        try:
            await _write_chunks(events, body, job, shape)
        except ApiError as error:
            await _fail(exchange, error)
        except Exception:
            log.exception("%s failed", exchange.id)
            await _fail(exchange, failed("something went wrong in the server: its log says what", "internal_error"))


@contextlib.asynccontextmanager
async def _kept_alive(events: EventStream, every_s: float) -> AsyncIterator[None]:
    task = asyncio.ensure_future(events.keep_alive(every_s))
    try:
        yield
    finally:
        task.cancel()


async def _write_chunks(events: EventStream, body: Sampling, job: Job, shape: Shape) -> None:
    options = body.stream_options
    continuous = bool(options and options.continuous_usage_stats)
    usage_last = bool(options and options.include_usage)
    head = _head(body, job, shape, shape.chunk_object)
    writer = ChunkWriter(head, text_field=shape.text_field, null_usage=usage_last and not continuous)

    def chunk(delta: Delta) -> bytes:
        if shape.plain(delta) and not continuous:
            return writer.text(delta.choice, delta.text)
        shaped = shape.chunk(delta)
        if shaped is None:
            return b""
        choice, beside = shaped
        return writer.choice(choice, {**beside, "usage": job.usage()} if continuous else beside)

    async def send(deltas: Sequence[Delta]) -> None:
        if not events.started:
            _tell_miss(events.exchange, job)
        chunks = chunk(deltas[0]) if len(deltas) == 1 else b"".join(map(chunk, deltas))
        if chunks:
            await events.write(chunks)

    await job.run(send)
    await events.write((writer.usage(job.usage()) if usage_last else b"") + DONE, more=False)
