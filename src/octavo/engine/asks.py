"""Asks: what may be asked of a running engine beside requests, and what it replies. Values, which travel as they are.

One is a frozen dataclass with the class of its reply. Who holds an engine's client needs no more than this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from octavo.core.misses import Miss
from octavo.core.pins import Pin, PinOutcome, PinWish
from octavo.core.snapshot import Snapshot

R = TypeVar("R")


class Ask(Generic[R]):
    """Something to do or to look up, between two steps. The engine answers each, in order, with one R."""

    reply: ClassVar[type]


@dataclass(frozen=True, slots=True)
class CacheReset:
    """Either nothing is cached any more, or blocks are held, and then nothing has changed."""

    num_dropped: int
    num_held: int


@dataclass(frozen=True, slots=True)
class ResetPrefixCache(Ask[CacheReset]):
    """Forget every cached block, and count hits anew; not while running choices hold blocks."""

    reply = CacheReset


@dataclass(frozen=True, slots=True)
class AddPin(Ask[PinOutcome]):
    """Pin a prefix. Where it is not cached whole, the reply says how many tokens a request must compute first."""

    wish: PinWish
    reply = PinOutcome


@dataclass(frozen=True, slots=True)
class PinRemoved:
    found: bool


@dataclass(frozen=True, slots=True)
class RemovePin(Ask[PinRemoved]):
    """Let go of a tenant's pin; with None, of anybody's."""

    pin_id: str
    tenant: str | None
    reply = PinRemoved


@dataclass(frozen=True, slots=True)
class PinList:
    pins: tuple[Pin, ...]
    num_blocks: int
    """That they hold together."""


@dataclass(frozen=True, slots=True)
class ListPins(Ask[PinList]):
    """A tenant's pins; with None, everybody's."""

    tenant: str | None
    reply = PinList


@dataclass(frozen=True, slots=True)
class Explained:
    num_cached: int
    """Tokens that need not be computed."""
    miss: Miss | None
    """Why no more than these are found; None where only the last one is missing."""


@dataclass(frozen=True, slots=True)
class ExplainPrefix(Ask[Explained]):
    """What would a prompt find in the prefix cache if it came now? Changes nothing."""

    tokens: tuple[int, ...]
    namespace: bytes
    tenant: str
    reply = Explained


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Ask[Snapshot]):
    """What does the replica look like now: its blocks, its queue, its requests? Of these, no more than so many."""

    most_requests: int
    most_cells: int
    reply = Snapshot


@dataclass(frozen=True, slots=True)
class DumpWritten:
    path: str
    """On the engine's machine."""


@dataclass(frozen=True, slots=True)
class WriteDump(Ask[DumpWritten]):
    """Write the record of the scheduler into a file. The loop does it, beside its steps."""

    reply = DumpWritten


_KINDS: tuple[type[Ask[Any]], ...] = (
    ResetPrefixCache,
    AddPin,
    RemovePin,
    ListPins,
    ExplainPrefix,
    TakeSnapshot,
    WriteDump,
)
ASKS: Mapping[str, type[Ask[Any]]] = {kind.__name__: kind for kind in _KINDS}
"""Every kind, by the name under which it travels. `answers.py` answers each but `WriteDump`: that the loop does."""
