"""From a job to the answer on the wire: whole, or as events. The same for each protocol, which is a Wire."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.core.plan import ScoredToken
from octavo.server.exchange import EventStream, Exchange
from octavo.server.openai.answer import Delta
from octavo.server.openai.errors import ApiError, internal_error
from octavo.server.openai.job import Job
from octavo.server.openai.schema import Generation

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


class Wire(Protocol):
    """How the answer to one request is written down, in the words of its protocol. One for each request."""

    keep_alive: bytes
    """What a stream says that has nothing to say, so that nobody gives up."""

    def whole(self, choices: Sequence[Gathered]) -> bytes:
        """The whole answer, of the choices that were asked for."""
        ...

    def step(self, deltas: Sequence[Delta]) -> bytes:
        """What a step adds, as events of a stream; empty where there is nothing to say yet."""
        ...

    def end(self) -> bytes:
        """The end of a stream that has all of the answer."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of one that has not. Nothing follows it."""
        ...


async def respond(exchange: Exchange, body: Generation, job: Job, wire: Wire) -> None:
    """Answers, in the form that `body` asks for. Raises ApiError where nothing was sent yet."""
    answer = _stream if body.stream else _whole
    with job.service.duty.flight(exchange.began, job.service.config.server.request_timeout) as stopped:
        try:
            await exchange.while_connected(answer(exchange, job, wire), stopped)
        except ApiError as error:
            await _fail(exchange, wire, error)
        finally:
            usage = job.usage()
            exchange.tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"


async def _fail(exchange: Exchange, wire: Wire, error: ApiError) -> None:
    """The error as the end of a stream, or raised for whoever answers with a status of its own."""
    if not exchange.status:
        raise error
    exchange.error = error
    why = error.message if error.status >= 500 else error.code  # what is the client's fault may be told in its words
    log.warning("%s ended with an error after its first tokens: %s", exchange.id, why)
    with contextlib.suppress(TimeoutError):  # of a client that reads nothing: its connection is closed without words
        await asyncio.wait_for(exchange.write(wire.failed(error), more=False), LAST_WORDS_S)


@dataclass(frozen=True, slots=True)
class _Gathering:
    """Puts a whole answer together (`job.Sink`)."""

    choices: Sequence[Gathered]
    free = True

    def put(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.choices[delta.choice].add(delta)

    async def take(self, deltas: Sequence[Delta]) -> None:
        self.put(deltas)


@dataclass(frozen=True, slots=True)
class _Streaming:
    """Sends each step as events of a stream (`job.Sink`)."""

    events: EventStream
    job: Job
    wire: Wire

    @property
    def free(self) -> bool:
        return self.events.free

    def put(self, deltas: Sequence[Delta]) -> None:
        if step := self.wire.step(deltas):
            self.events.put(step)

    async def take(self, deltas: Sequence[Delta]) -> None:
        if step := self.wire.step(deltas):
            if not self.events.started:
                _tell_miss(self.events.exchange, self.job)
            await self.events.write(step)


async def _whole(exchange: Exchange, job: Job, wire: Wire) -> None:
    gathering = _Gathering([Gathered() for _ in range(len(job.requests) * job.num_choices)])
    await job.run(gathering)
    choices = [gathering.choices[number] for number in job.keep_best()]
    answer = await job.service.off_loop(job.num_logprobs, lambda: wire.whole(choices))
    _tell_miss(exchange, job)
    await exchange.reply(200, answer)


def _tell_miss(exchange: Exchange, job: Job) -> None:
    """What the prefix cache did not have, as a header. A stream that begins before that is known goes without."""
    miss = job.miss
    if miss is not None:
        ago = "" if miss.evicted_s is None else f"; evicted_s={miss.evicted_s:.3f}"
        exchange.header("x-octavo-cache-miss", f"{miss.reason}; at={miss.at}{ago}")


async def _stream(exchange: Exchange, job: Job, wire: Wire) -> None:
    events = EventStream(exchange)
    streaming = _Streaming(events, job, wire)
    async with events.kept_alive(job.service.keep_alive_s, wire.keep_alive):
        try:
            await job.run(streaming)
            await events.write(wire.end(), more=False)
        except ApiError as error:
            await _fail(exchange, wire, error)
        except Exception:
            log.exception("%s failed", exchange.id)
            await _fail(exchange, wire, internal_error())
