"""Drafts: guesses at what a choice will say next, out of what it has said before; checked in one step, never believed.

A decode computes one token. With a draft it computes that one and the guesses behind it, and draws after each:

    work     | last | guess 1 | guess 2 | guess 3 |
    drawn      t1     t2        t3        t4
               kept   kept if guess 1 = t1, and so on: up to the first draw that the guesses did not foresee

Each draw is keyed by its position and sees exactly what it would see in a step of its own, so the tokens are those
that come without drafts, bit for bit; only their number in a step differs.

Prompt lookup: A. Saxena, "Prompt Lookup Decoding" (2023), vLLM's `ngram` method: what followed the last few tokens
when they last occurred.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.types import TokenId

MOST_PAUSES = 64
"""Decodes that a choice is left alone for at most, whose guesses are wrong time and again."""
TRIALS = 4
"""Steps after which the speed of a way to go on is believed."""
RECHECK = 256
"""Steps after which the slower way is tried again: what is said may have changed."""
_WEIGHT = 0.2
"""Of the newest step in a running mean."""


class NgramIndex:
    """Where each run of a few tokens last occurred, in one growing sequence. Constant work a token."""

    __slots__ = ("_ends", "_known")

    def __init__(self, shortest: int, longest: int) -> None:
        self._ends: dict[int, dict[tuple[TokenId, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._known = 0

    def propose(self, tokens: Sequence[TokenId], most: int) -> tuple[TokenId, ...]:
        """Up to `most` tokens that followed the longest known ending of `tokens`, which continues what came before."""
        self._extend(tokens)
        for n, ends in self._ends.items():
            end = ends.get(tuple(tokens[-n:])) if n < len(tokens) else None
            if end is not None:
                return tuple(tokens[end : end + most])
        return ()

    def _extend(self, tokens: Sequence[TokenId]) -> None:
        """Runs that end before the last token: that one has nothing after it yet."""
        for n, ends in self._ends.items():
            for end in range(max(n, self._known + 1), len(tokens)):
                ends[tuple(tokens[end - n : end])] = end
        self._known = max(self._known, len(tokens) - 1)


@dataclass(slots=True)
class Hopes:
    """What guesses were worth to one choice: after one that was all wrong it pauses, each time twice as long."""

    index: NgramIndex
    pause: int = 0
    """Decodes to go without a draft."""
    next_pause: int = 1

    def draft(self, tokens: Sequence[TokenId], most: int) -> tuple[TokenId, ...]:
        if self.pause:
            self.pause -= 1
            return ()
        return self.index.propose(tokens, most)

    def learn(self, num_accepted: int) -> None:
        if num_accepted:
            self.next_pause = 1
        else:
            self.pause, self.next_pause = self.next_pause, min(2 * self.next_pause, MOST_PAUSES)


@dataclass(slots=True)
class Pace:
    """Seconds for a token, with drafts and without, in steps of about one size: which of the two is faster now."""

    seconds: dict[bool, float] = field(default_factory=dict[bool, float])
    trials: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    num_steps: int = 0

    def drafts_pay(self) -> bool:
        """Both ways are tried in turn until both are known; then the faster one, and the other one now and then."""
        unsure = [way for way in (False, True) if self.trials[way] < TRIALS]
        if unsure:
            return unsure[0]
        faster = self.seconds[True] < self.seconds[False]
        return not faster if self.num_steps % RECHECK >= RECHECK - TRIALS else faster

    def learn(self, drafted: bool, seconds: float, num_tokens: int) -> None:
        self.num_steps += 1
        self.trials[drafted] += 1
        each, known = seconds / num_tokens, self.seconds.get(drafted)
        if known is None or self.trials[drafted] <= 2:  # the first step of a kind warms up
            known = each
        self.seconds[drafted] = known + _WEIGHT * (each - known)


def num_foreseen(draft: Sequence[TokenId], drawn: Sequence[TokenId]) -> int:
    """How many guesses were right before the first that was not."""
    return next((i for i, guess in enumerate(draft) if drawn[i] != guess), len(draft))
