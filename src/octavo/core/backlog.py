"""Backlog: how much may wait, whose it is, and after what time there will be room for one more."""

from dataclasses import dataclass
from math import ceil

from octavo.core.types import Limits

WINDOW_S = 30.0
"""The drain rate remembers about this much computing time."""
LONGEST_RETRY_S = 600
"""Nobody is told to come back later than this: by then everything may have changed."""
LINE_S = 60.0
"""Those who are sent away together are told to come back within this time: OpenAI's clients heed none longer."""


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


@dataclass(slots=True)
class Demand:
    """So many that wait, and the tokens that they want: prompts, and what they are expected to generate."""

    num_reqs: int = 0
    num_tokens: int = 0


class Demands:
    """The demand of all that wait, and of each tenant that has something waiting."""

    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = Demand()
        self._by_tenant: dict[str, Demand] = {}

    def add(self, tenant: str, num_tokens: int) -> None:
        for demand in (self.total, self._by_tenant.setdefault(tenant, Demand())):
            demand.num_reqs += 1
            demand.num_tokens += num_tokens

    def remove(self, tenant: str, num_tokens: int) -> None:
        """What was added before."""
        for demand in (self.total, self._by_tenant[tenant]):
            demand.num_reqs -= 1
            demand.num_tokens -= num_tokens
        if not self._by_tenant[tenant].num_reqs:
            del self._by_tenant[tenant]

    def of(self, tenant: str) -> Demand:
        return self._by_tenant.get(tenant) or Demand()

    def num_tenants(self, tenant: str) -> int:
        """How many tenants wait, where this one does too."""
        return len(self._by_tenant) + (tenant not in self._by_tenant)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits now, what of it is the asker's, and what could start at once."""

    total: Demand
    own: Demand
    num_tenants: int
    """Those that wait, the asker's among them."""
    free_seqs: int
    free_tokens: int
    """Slots in free blocks, for whole sequences."""


@dataclass(frozen=True, slots=True)
class Overfull:
    """No room in the queue: with the arithmetic."""

    code: str
    message: str
    num_before: float
    """Tokens that must drain before there is room."""
    num_wanted: int
    """Tokens that it wants itself."""


def beyond(most: int, waiting: int, own: int, more: int, num_tenants: int) -> bool:
    """Are `more` too many beside those that are `waiting`, where `own` of them are the asker's?

    A full queue still takes from a tenant that has nothing in it, or less than its equal share: what one tenant lets
    pile up is never a reason to refuse another. So n tenants fill it 1 + 1/2 + .. + 1/n times at most.
    """
    return waiting + more > most and own > 0 and own + more > most // num_tenants


def overfull(limits: Limits, backlog: Backlog, num_tokens: int) -> Overfull | None:
    """Would one more request of `num_tokens`, prompt and expected output, be one too many? None where it may come in.

    The limits are on what waits beyond what could start at once.
    """
    return _too_many_reqs(limits, backlog, num_tokens) or _too_many_tokens(limits, backlog, num_tokens)


def _too_many_reqs(limits: Limits, backlog: Backlog, num_tokens: int) -> Overfull | None:
    limit, free, waiting = limits.max_num_queued_reqs, max(0, backlog.free_seqs), backlog.total.num_reqs
    most = limit + free
    if not limit or not beyond(most, waiting, backlog.own.num_reqs, 1, backlog.num_tenants):
        return None
    message = (
        f"{waiting} requests wait, and {free} could start at once: at most {limit} may wait beyond those "
        f"(--max-num-queued-reqs){_share(backlog.own.num_reqs, most, backlog)}"
    )
    return Overfull("queue_full", message, max(1, waiting + 1 - most) * _mean(backlog), num_tokens)


def _too_many_tokens(limits: Limits, backlog: Backlog, num_tokens: int) -> Overfull | None:
    limit, free, waiting = limits.max_num_queued_tokens, max(0, backlog.free_tokens), backlog.total.num_tokens
    most = limit + free
    if not limit or not beyond(most, waiting, backlog.own.num_tokens, num_tokens, backlog.num_tenants):
        return None
    message = (
        f"requests of {waiting} tokens wait, prompts and expected answers; with {num_tokens} more that is over the "
        f"{free} that fit into free blocks and the {limit} that may wait beyond those (--max-num-queued-tokens)"
        f"{_share(backlog.own.num_tokens, most, backlog)}"
    )
    return Overfull("queue_tokens_full", message, max(waiting + num_tokens - most, _mean(backlog)), num_tokens)


def _mean(backlog: Backlog) -> float:
    """Tokens of one that waits. Room comes in pieces of about this size."""
    return backlog.total.num_tokens / max(1, backlog.total.num_reqs)


def _share(own: int, most: int, backlog: Backlog) -> str:
    """Why it is this tenant's request that is one too many, where others wait too."""
    others = backlog.num_tenants - 1
    return f"; {own} are of this tenant, whose share beside {others} more is {most // (others + 1)}" if others else ""


class Line:
    """When those who were sent away are told to come back: one after the other, as fast as the queue drains.

    If all were told one time they would come together, for the room that one of them takes. Who comes early keeps his
    own tenant's others waiting, and nobody else's. After LINE_S the line begins anew.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        """Tenant -> when the last one that it was told about is due."""

    def join(self, tenant: str, num_before: float, num_wanted: float, rate: float | None, now: float) -> int:
        """Whole seconds until `num_before` tokens have drained, and whoever was told before has come back.

        It will want `num_wanted` tokens itself. 1 where nothing was measured yet.
        """
        if not rate:
            return 1
        self._last = {other: due_s for other, due_s in self._last.items() if due_s > now}
        room_s = now + min(num_before / rate, LONGEST_RETRY_S)
        due_s = room_s
        if tenant in self._last:
            due_s = max(room_s, self._last[tenant] + len(self._last) * num_wanted / rate)
        if due_s > max(room_s, now + LINE_S):
            due_s = room_s
        self._last[tenant] = due_s
        return min(max(1, ceil(due_s - now)), LONGEST_RETRY_S)
