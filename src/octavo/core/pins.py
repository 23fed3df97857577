"""Pins: prefixes that are never evicted, each for a time, and never so many that a request has no room beside them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.core.budget import worst_case_blocks
from octavo.core.groups import KvGroups
from octavo.core.lease import Lease
from octavo.core.roster import Roster
from octavo.core.types import NO_BLOCK, BlockId, Limits, TokenId


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix whose blocks stay where they are until `expires_s`, or until somebody removes it."""

    pin_id: str
    tenant: str
    num_tokens: int
    num_blocks: int
    expires_s: float


@dataclass(frozen=True, slots=True)
class PinWish:
    """Pin the full blocks of `tokens`, for `ttl_s` from now."""

    pin_id: str
    tenant: str
    namespace: bytes
    tokens: tuple[TokenId, ...]
    ttl_s: float
    quota: int
    """Blocks that this tenant may have pinned; one that several of its pins hold counts once."""


@dataclass(frozen=True, slots=True)
class PinOutcome:
    """A pin; or how many tokens have to be computed before there can be one; or why there cannot."""

    pin: Pin | None = None
    num_missing: int = 0
    code: str = ""
    """`disabled`, `shorter_than_block`, `duplicate_id`, `pin_quota_exceeded`, `no_room_to_pin`."""
    message: str = ""


class Pins:
    """Each holds a lease, as a running choice does, that never grows. Several may hold the same block."""

    __slots__ = ("_held", "_holders", "_next_s")

    def __init__(self) -> None:
        self._held: dict[str, tuple[Pin, Lease]] = {}
        self._holders: Counter[BlockId] = Counter()
        self._next_s = float("inf")

    def __contains__(self, pin_id: str) -> bool:
        return pin_id in self._held

    @property
    def num_blocks(self) -> int:
        """Blocks that at least one pin holds."""
        return len(self._holders)

    @property
    def blocks(self) -> frozenset[BlockId]:
        return frozenset(self._holders)

    def leases(self) -> Iterator[Lease]:
        return (lease for _, lease in self._held.values())

    def of(self, tenant: str | None) -> tuple[Pin, ...]:
        """This tenant's, the oldest first; None: everybody's."""
        return tuple(pin for pin, _ in self._held.values() if tenant in (None, pin.tenant))

    def blocks_of(self, tenant: str) -> frozenset[BlockId]:
        held = (_blocks(lease) for pin, lease in self._held.values() if pin.tenant == tenant)
        return frozenset[BlockId]().union(*held)

    def add(self, pin: Pin, lease: Lease) -> None:
        self._held[pin.pin_id] = (pin, lease)
        self._holders.update(_blocks(lease))
        self._next_s = min(self._next_s, pin.expires_s)

    def remove(self, pin_id: str, tenant: str | None = None) -> Pin | None:
        """Lets go of this tenant's pin, or of anybody's; None where there is none of that name."""
        pin, lease = self._held.get(pin_id, (None, None))
        if pin is None or lease is None or tenant not in (None, pin.tenant):
            return None
        del self._held[pin_id]
        self._holders -= Counter(_blocks(lease))
        self._next_s = min((other.expires_s for other, _ in self._held.values()), default=float("inf"))
        lease.release()
        return pin

    def expire(self, now: float) -> tuple[Pin, ...]:
        """Lets go of those whose time is up."""
        if now < self._next_s:
            return ()
        over = [pin for pin, _ in self._held.values() if pin.expires_s <= now]
        for pin in over:
            self.remove(pin.pin_id)
        return tuple(over)


def _blocks(lease: Lease) -> set[BlockId]:
    return set(lease.table) - {NO_BLOCK}


def room_for_pins(limits: Limits, roster: Roster) -> int:
    """Blocks that pins may hold in all: at most half of the pool, and never more than leaves room for a request.

    For one choice of the whole context, so that what was acceptable without pins still is; and for the largest of those
    that were accepted already, so that nobody waits for what cannot come.
    """
    groups, context = KvGroups.of(limits), limits.max_model_len
    shapes = [(1, max(1, context - 1), 1), (context, 1, 1)]  # an answer, an embedding
    for first, *_ in roster.requests.values():
        shapes.append((first.prompt_len, max(1, first.max_len - first.prompt_len), first.request.params.width))
    most = max(worst_case_blocks(*shape, groups) for shape in shapes)
    return max(0, min(limits.num_blocks // 2, limits.num_blocks - most))
