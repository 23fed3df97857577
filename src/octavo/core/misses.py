"""Misses: why a prompt was not found in the prefix cache, as a value; and what must be remembered to know it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from octavo.core.hashing import KeyChain
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.types import TokenId

LEAST_EVICTED, MOST_EVICTED = 1024, 65_536
"""Keys of evicted blocks that are remembered, depending on the pool: some 280 bytes for each."""
POOLS_EVICTED = 4
MOST_NAMESPACES = 32
"""Namespaces of one tenant that are looked into for the same prompt."""
MOST_TENANTS = 1024
SHOWN = 8
"""Tokens of either side that are shown from where they part."""

K = TypeVar("K")
V = TypeVar("V")


class MissReason(StrEnum):
    """Why the prompt is computed from a certain token on."""

    NEVER_SEEN = "never_seen"
    """Nothing that begins like this was cached, as far as anybody remembers."""
    TOKENS_DIFFER = "tokens_differ_at"
    """What is cached goes on with other tokens from there."""
    SHORTER_THAN_BLOCK = "shorter_than_block"
    """What is left of the prompt is less than a block, and only full ones are kept; or all that it shares with another
    is, and less than --prefix-match-unit."""
    EVICTED = "evicted"
    """The very block was cached, or one that a window reads before it, until another took its place or the cache was
    emptied."""
    STILL_COMPUTING = "still_computing"
    """Another request is computing the very block. Who waits for it hits it; this one did not, or only asked."""
    DIFFERENT_NAMESPACE = "different_namespace"
    """The same tenant has it cached under another salt."""
    NO_ROOM_TO_COPY = "no_room_to_copy"
    """The last block would have to be copied to be continued, and no block is free for the copy."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """The request asks for logprobs of its prompt: they are not cached, so it does not read the cache."""
    MEAN_POOLING = "mean_pooling"
    """The request wants the mean of all hidden states: they are not cached, so it does not read the cache."""
    DISABLED = "disabled"
    """The cache is off: --no-enable-prefix-caching."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why tokens of a prompt were computed that a cache may hold. It tells nothing of any other tenant."""

    reason: MissReason
    at: int
    """Where the tokens differ; for the other reasons, the first token that was not found."""
    evicted_s: float | None = None
    """How long ago."""
    ours: tuple[TokenId, ...] = ()
    """Where the tokens differ: how this prompt goes on, ..."""
    theirs: tuple[TokenId, ...] = ()
    """... and how the nearest that is cached does, in the same namespace."""


class History:
    """What left the cache, and which namespaces each tenant has used: keys and times only, and no more than so many."""

    __slots__ = ("_evicted", "_most", "_roots")

    def __init__(self, most_evicted: int) -> None:
        self._most = most_evicted
        self._evicted: OrderedDict[bytes, float] = OrderedDict()
        self._roots: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()

    def note_evicted(self, key: bytes, now: float) -> None:
        _remember(self._evicted, key, now, self._most)

    def note_namespace(self, tenant: str, root: bytes) -> None:
        """Only of those who have a name: requests that name nobody need not be of one mind about their salts."""
        if tenant:
            roots = self._roots.get(tenant) or OrderedDict[bytes, None]()
            _remember(roots, root, None, MOST_NAMESPACES)
            _remember(self._roots, tenant, roots, MOST_TENANTS)

    def evicted_at(self, key: bytes) -> float | None:
        return self._evicted.get(key)

    def namespaces(self, tenant: str) -> tuple[bytes, ...]:
        """The roots of this tenant's namespaces, the one used last at the end."""
        return tuple(self._roots.get(tenant, ()))


def history_of(num_blocks: int) -> History:
    """One that goes back as far as a pool of so many blocks has been filled anew a few times: it is full soon."""
    return History(min(MOST_EVICTED, max(LEAST_EVICTED, POOLS_EVICTED * num_blocks)))


def _remember(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > most:
        memory.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Sought:
    """What was looked for, and what was found of it."""

    chain: KeyChain
    tokens: Sequence[TokenId]
    tenant: str
    num_blocks: int
    """Whole blocks of the chain that were hit."""
    num_cached: int
    """Tokens that need not be computed: those of these blocks, and perhaps the first of the next."""
    block_size: int

    @property
    def start(self) -> int:
        """Where the first block begins that was not hit as a whole."""
        return self.num_blocks * self.block_size

    @property
    def piece(self) -> tuple[TokenId, ...]:
        """Its tokens: fewer than a block where the prompt ends in it."""
        return tuple(self.tokens[self.start : self.start + self.block_size])

    @property
    def key(self) -> bytes | None:
        """Its key; None where the prompt does not fill it."""
        keys = self.chain.keys
        return keys[self.num_blocks] if self.num_blocks < len(keys) else None


def why_missed(sought: Sought, last: CachedBlock | None, index: PrefixIndex, history: History, now: float) -> Miss:
    """Why nothing beyond `num_cached` was found, after the entry `last`. Pure."""
    nearest = index.nearest(sought.chain.under(sought.num_blocks), last, sought.piece)
    return _gone(sought, history, now) or _elsewhere(sought, index, history) or _beside(sought, nearest)


def _gone(sought: Sought, history: History, now: float) -> Miss | None:
    evicted_at = None if sought.key is None else history.evicted_at(sought.key)
    return None if evicted_at is None else Miss(MissReason.EVICTED, sought.num_cached, max(0.0, now - evicted_at))


def _elsewhere(sought: Sought, index: PrefixIndex, history: History) -> Miss | None:
    if sought.num_cached or sought.key is None:
        return None
    for root in history.namespaces(sought.tenant):
        nearest = index.nearest(root, None, sought.piece)
        if root != sought.chain.under(0) and nearest is not None and nearest[1] == sought.block_size:
            return Miss(MissReason.DIFFERENT_NAMESPACE, 0)
    return None


def _beside(sought: Sought, nearest: tuple[CachedBlock, int] | None) -> Miss:
    """By what is cached in the place of the block that was not hit."""
    if nearest is None or (nearest[1] == 0 and sought.start == 0):
        short = len(sought.piece) < sought.block_size
        return Miss(MissReason.SHORTER_THAN_BLOCK if short else MissReason.NEVER_SEEN, sought.num_cached)
    entry, common = nearest
    if common == sought.block_size:
        return Miss(MissReason.EVICTED, sought.num_cached)
    if common == len(sought.piece):
        return Miss(MissReason.SHORTER_THAN_BLOCK, sought.num_cached)
    short = common > 0 and not sought.num_cached
    reason = MissReason.SHORTER_THAN_BLOCK if short else MissReason.TOKENS_DIFFER
    ours, theirs = sought.piece[common:][:SHOWN], entry.tokens[common:][:SHOWN]
    return Miss(reason, sought.start + common, None, ours, theirs)
