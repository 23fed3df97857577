"""Siblings: the cached continuations of each prefix, in the order of their tokens, so that the likest one is found."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from octavo.core.types import TokenId

if TYPE_CHECKING:
    from octavo.core.prefix import CachedBlock

_tokens = attrgetter("tokens")


def num_common(a: Sequence[TokenId], b: Sequence[TokenId]) -> int:
    """How many tokens both begin with."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


class Siblings:
    """Entries by the key that they are chained to. Among sorted sequences, whoever begins with the most of another is
    a neighbour of the place where that one would stand: so a look-up is one bisection, however many siblings there are.
    """

    __slots__ = ("_by_parent",)

    def __init__(self) -> None:
        self._by_parent: dict[bytes, list[CachedBlock]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_parent.values()))

    def add(self, entry: "CachedBlock") -> None:
        family = self._by_parent.setdefault(entry.under, [])
        family.insert(bisect_left(family, entry.tokens, key=_tokens), entry)

    def remove(self, entry: "CachedBlock") -> None:
        family = self._by_parent[entry.under]
        family.pop(
            next(i for i in range(bisect_left(family, entry.tokens, key=_tokens), len(family)) if family[i] is entry)
        )
        if not family:
            del self._by_parent[entry.under]

    def neighbours(self, under: bytes, tokens: tuple[TokenId, ...]) -> Sequence["CachedBlock"]:
        """At most two, of which one begins with as much of `tokens` as any does."""
        family = self._by_parent.get(under, ())
        place = bisect_left(family, tokens, key=_tokens)
        return family[max(0, place - 1) : place + 1]
