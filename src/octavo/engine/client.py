"""EngineClient: all that servers, routers and tools know of an engine. In another process or in this one, the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from octavo.core.events import Event
from octavo.core.ports import Capacity
from octavo.core.request import Request
from octavo.core.types import RequestId
from octavo.engine.asks import Ask

R = TypeVar("R")

Events = tuple[Event, ...]
"""What happened to one request in one step."""
AtOnce = Callable[[Events], Events | None]
"""Takes the events of a step where they arrive, and returns those that it leaves; None: all are dealt with."""


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


class EngineDead(RuntimeError):
    """The engine process ended or cannot be reached; the message says how (exit status, signal, last words)."""


class AskFailed(RuntimeError):
    """The engine could not answer; the message says why. It goes on."""


class CannotStart(EngineDead):
    """The engine never became ready, and nothing is broken: it was asked for what cannot be. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine is, said once when it becomes ready."""

    model: str
    fingerprint: str
    """Version, kernel path, model hash and number formats: OpenAI's `system_fingerprint`."""
    capacity: Capacity
    isa: str
    num_threads: int
    weight_format: str
    kv_cache_dtype: str
    kv_block_bytes: int = 0
    """What one block of the KV cache takes; 0: nobody knows."""
    pid: int = 0
    """The process that computes."""
    report: tuple[str, ...] = ()
    """Lines for people: which kernels and why, how many threads and why, the memory plan."""
    warnings: tuple[str, ...] = ()
    """Lines about what is not as one may expect: to be read last."""
    settle_s: float = 0.0
    """How long it may take to end once it is told to: it has something to put away for the next one."""


class Steps(Protocol):
    """The steps of one request: an async iterator. Closing or dropping it before the end cancels the request."""

    def __aiter__(self) -> "Steps": ...

    async def __anext__(self) -> Events: ...

    def at_once(self, take: AtOnce) -> None:
        """From now on `take` is given each step that comes while the one who iterates waits for one.

        What it leaves is iterated over as if it had just come, also where that are no events; what it raises, too.
        A step that goes on its way like this costs no task a turn.
        """
        ...

    async def aclose(self) -> None: ...


class EngineClient(Protocol):
    """Submits requests and hands each one its own stream of events."""

    @property
    def state(self) -> EngineState: ...

    @property
    def facts(self) -> EngineFacts:
        """Raises EngineDead where the engine never became ready."""
        ...

    @property
    def progress(self) -> str:
        """What the engine does now, for people, while it is starting: `packing weights (40 %)`."""
        ...

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the engine last showed that its loop turns, or that it computes a step that takes long."""
        ...

    async def wait_ready(self) -> EngineFacts:
        """Returns as soon as requests can be submitted; raises EngineDead, or CannotStart, where that will never be.

        The first call binds the client to the running event loop. To be awaited (once at least) before `submit`.
        """
        ...

    async def wait_dead(self) -> EngineDead:
        """Returns the reason as soon as the engine is dead: for those who must end with it."""
        ...

    def submit(self, request: Request) -> Steps:
        """The request's events, those of one step in one tuple.

        Ends after Refused, or after the Finished of each choice. Closing or dropping the iterator cancels the request.
        Raises EngineDead where the engine dies meanwhile.
        """
        ...

    def cancel(self, request_id: RequestId, choice: int | None = None) -> None:
        """Ends the request, or one choice of it, with ABORT: the others go on. What is unknown, or over, is ignored."""
        ...

    async def ask(self, ask: Ask[R]) -> R:
        """What the engine answers, between two steps. Raises AskFailed, or EngineDead."""
        ...

    def listen(self, sink: Callable[[Sequence[Event]], None]) -> None:
        """Calls `sink` with all events of the engine, in order, on the event loop: those that came together at once.

        For metrics and the live page.
        """
        ...

    async def close(self) -> None:
        """Ends the engine and every stream (with EngineDead). Calling it again does nothing."""
        ...
