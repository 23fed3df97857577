"""Backlog: how much may wait, and after what time there will be room for one more."""

from dataclasses import dataclass
from math import ceil

from octavo.core.types import Limits

WINDOW_S = 30.0
"""The drain rate remembers about this much computing time."""
LONGEST_RETRY_S = 600
"""Nobody is told to come back later than this: by then everything may have changed."""


class DrainRate:
    """Tokens that steps compute in a second of their own time, over the last WINDOW_S: what a queue shrinks by.

    Idle time does not count, so an engine that had nothing to do is not taken for a slow one.
    """

    __slots__ = ("_busy_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._busy_s = 0.0

    def note(self, num_tokens: int, took_s: float) -> None:
        """A step computed so many tokens in so many seconds."""
        keep = max(0.0, 1.0 - took_s / WINDOW_S)
        self._tokens = self._tokens * keep + num_tokens
        self._busy_s = self._busy_s * keep + took_s

    @property
    def tokens_per_s(self) -> float | None:
        """None before anything was measured."""
        return self._tokens / self._busy_s if self._busy_s > 0 else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits now, and what could start at once."""

    num_reqs: int
    num_tokens: int
    """Prompts, and what they are expected to generate."""
    free_seqs: int
    free_tokens: int
    """Slots in free blocks."""


@dataclass(frozen=True, slots=True)
class Overfull:
    """No room in the queue: with the arithmetic, and when to come back."""

    code: str
    message: str
    retry_after_s: int


def overfull(limits: Limits, backlog: Backlog, num_tokens: int, rate: float | None) -> Overfull | None:
    """Would one more request of `num_tokens`, prompt and expected output, be one too many? None where it may come in.

    The limits are on what waits beyond what could start at once. A queue of tokens that is empty takes any request.
    """
    return _too_many_reqs(limits, backlog, rate) or _too_many_tokens(limits, backlog, num_tokens, rate)


def _too_many_reqs(limits: Limits, backlog: Backlog, rate: float | None) -> Overfull | None:
    most, free, waiting = limits.max_num_queued_reqs, max(0, backlog.free_seqs), backlog.num_reqs
    if not most or waiting < most + free:
        return None
    excess = waiting - most - free + 1
    message = (
        f"{waiting} requests wait, and {free} could start at once: at most {most} may wait beyond those "
        f"(--max-num-queued-reqs)"
    )
    return Overfull("queue_full", message, retry_after_s(excess * backlog.num_tokens / max(1, waiting), rate))


def _too_many_tokens(limits: Limits, backlog: Backlog, num_tokens: int, rate: float | None) -> Overfull | None:
    most, free, waiting = limits.max_num_queued_tokens, backlog.free_tokens, backlog.num_tokens
    if not most or not waiting or waiting + num_tokens <= most + free:
        return None
    message = (
        f"requests of {waiting} tokens wait, prompts and expected answers; with {num_tokens} more that is over the "
        f"{free} that fit into free blocks and the {most} that may wait beyond those (--max-num-queued-tokens)"
    )
    return Overfull("queue_tokens_full", message, retry_after_s(waiting + num_tokens - most - free, rate))


def retry_after_s(num_tokens: float, rate: float | None) -> int:
    """Whole seconds in which `num_tokens` drain: 1 at least, and where nothing was measured yet."""
    if not rate:
        return 1
    return max(1, ceil(min(num_tokens / rate, LONGEST_RETRY_S)))
