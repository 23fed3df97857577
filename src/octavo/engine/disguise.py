"""Disguise: tokens become numbers that say no more than which texts begin alike. Enough to make the same plans again.

Policy asks of tokens only whether they are equal, and in which order, where what is before them is equal; and whether
one ends a choice. So each token is told by its rank among those that follow the same beginning:

    tokens     [ 81 15 99 ]  [ 81 15 7 ]  [ 3 15 ]
    numbers    [  2  1  2 ]  [  2  1 1 ]  [ 1  1 ]

A text that begins like no other is all ones. Where policy compares tokens at different places (it guesses ahead, or
searches beams), each is told by its rank among all: whoever knows the language may find out much of what was said.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from octavo.core.siblings import num_common
from octavo.core.types import TokenId

_MOST = 1 << 32
"""Block keys have tokens in 32 bits."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Disguise:
    """How each token of some sequences is told."""

    name: str
    number: Callable[[object, int, TokenId], int]
    """Of a token: of which sequence, and at which place of it."""
    stops: Mapping[TokenId, int]
    """Tokens that end choices are told alike wherever they stand."""
    size: int
    """What all numbers are below."""


def by_beginning(
    sequences: Mapping[K, Sequence[TokenId]], spaces: Mapping[K, bytes], stops: Iterable[TokenId]
) -> Disguise:
    """Each token by its rank among those that follow the same beginning in the same space."""
    ends = sorted(set(stops))
    room = _MOST // (len(ends) + 2)
    numbers: dict[object, list[int]] = {}
    before, told, space = list[TokenId](), list[int](), None
    for whose, sequence in sorted(sequences.items(), key=lambda each: (spaces[each[0]], each[1])):
        if spaces[whose] != space:
            before, told, space = [], [], spaces[whose]
        common = num_common(before, sequence)
        beside = told[common] if common < len(told) else -1
        here = [_rank(sequence[common], beside, ends, room)] if common < len(sequence) else []
        rest = [_rank(token, -1, ends, room) for token in sequence[common + 1 :]]
        numbers[whose] = told = [*told[:common], *here, *rest]
        before = sequence
    marks = {token: (at + 1) * room for at, token in enumerate(ends)}
    return Disguise("by_beginning", lambda whose, at, token: numbers[whose][at], marks, (len(ends) + 1) * room)


def by_rank(tokens: Iterable[TokenId], stops: Iterable[TokenId]) -> Disguise:
    """Each token by its rank among all."""
    ends = set(stops)
    rank = {token: at for at, token in enumerate(sorted(ends.union(tokens)))}
    return Disguise("by_rank", lambda whose, at, token: rank[token], {t: rank[t] for t in ends}, max(1, len(rank)))


def _rank(token: TokenId, beside: int, ends: Sequence[TokenId], room: int) -> int:
    """The number of a token whose next smaller sibling has `beside`: above that, and between the same `ends` as the
    token is."""
    below = bisect_right(ends, token)
    if below and ends[below - 1] == token:
        return below * room
    return max(beside + 1, bisect_left(ends, token) * room + 1)
