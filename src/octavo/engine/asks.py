"""Asks: what may be asked of a running engine beside requests, and what it replies. Values, which travel as they are.

One is a frozen dataclass with the class of its reply. Who holds an engine's client needs no more than this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

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


ASKS: Mapping[str, type[Ask[Any]]] = {kind.__name__: kind for kind in (ResetPrefixCache,)}
"""Every kind, by the name under which it travels. `answers.py` has the same, with the answer to each."""
