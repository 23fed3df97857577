"""Chunks: the wire of chat and completions, where an answer is choices beside each other."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from octavo.server.openai.answer import Delta
from octavo.server.openai.errors import ApiError
from octavo.server.openai.job import Job
from octavo.server.openai.respond import Gathered
from octavo.server.openai.schema import Sampling
from octavo.server.openai.sse import DONE, KEEP_ALIVE, ChunkWriter, error_event


class Shape(Protocol):
    """How one of the two writes its choices down. One for each request."""

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


class ChunkWire:
    """Writes answers whose choices have this shape (`respond.Wire`)."""

    keep_alive = KEEP_ALIVE

    def __init__(self, body: Sampling, job: Job, shape: Shape) -> None:
        options = body.stream_options
        self._continuous = bool(options and options.continuous_usage_stats)
        self._usage_last = bool(options and options.include_usage)
        self._job = job
        self._shape = shape
        self._id = f"{shape.id_prefix}-{body.request_id or job.name}"
        self._created = int(time.time())
        self._model = body.model or job.service.names[0]
        null_usage = self._usage_last and not self._continuous
        head = self._head(shape.chunk_object)
        self._writer = ChunkWriter(head, text_field=shape.text_field, null_usage=null_usage)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._job.service.facts.fingerprint,
        }

    def whole(self, choices: Sequence[Gathered]) -> bytes:
        head = self._head(self._shape.whole_object)
        shaped = [self._shape.whole(index, choice) for index, choice in enumerate(choices)]
        return msgspec.json.encode({**head, "choices": shaped, "usage": self._job.usage(), **self._shape.beside()})

    def step(self, deltas: Sequence[Delta]) -> bytes:
        return self._chunk(deltas[0]) if len(deltas) == 1 else b"".join(map(self._chunk, deltas))

    def _chunk(self, delta: Delta) -> bytes:
        if self._shape.plain(delta) and not self._continuous:
            return self._writer.text(delta.choice, delta.text)
        shaped = self._shape.chunk(delta)
        if shaped is None:
            return b""
        choice, beside = shaped
        return self._writer.choice(choice, {**beside, "usage": self._job.usage()} if self._continuous else beside)

    def end(self) -> bytes:
        return (self._writer.usage(self._job.usage()) if self._usage_last else b"") + DONE

    def failed(self, error: ApiError) -> bytes:
        return error_event(error.body())
