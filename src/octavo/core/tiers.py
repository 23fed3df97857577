"""Tier: which full blocks a lower tier holds, under their keys, and which of them are on their way. It moves no bytes.

    evicted from the pool          wanted by a waiting choice        loaded by the plan that admits it
            |                               |                                   |
            v                               v                                   v
        STORING ---stored---> STORED --- fetch ---> LOADING ---fetched---> LOADED ---release---> STORED
            |                    |                      |
          failed            dropped for others     failed: gone, and computed again

Whoever moves the bytes takes its orders from plans (`Transfers`) and answers with reports. An order never waits for
anything, and a report may come late, twice, or for what is gone: then it changes nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from octavo.core.events import Tiered
from octavo.core.hashing import KeyChain
from octavo.core.plan import BlockLoad, BlockStore, Transfers
from octavo.core.prefix import CachedBlock, longest_run, same_prefix
from octavo.core.types import BlockId, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimits:
    """What a lower tier may hold, and how much of it may be on its way at once, in blocks."""

    name: str
    """`memory` or `disk`: for people and metrics."""
    num_blocks: int
    num_storing: int
    """Beyond this, evicted blocks are lost: the tier is slower than the pool is turned over."""
    num_staged: int
    """Blocks in buffers, being fetched or ready to load. What a hit has beyond that is computed."""
    persistent: bool = False
    """It survives the process: then blocks are worth storing before they are evicted, when there is time."""
    patience_s: float = 10.0
    """A fetch that takes longer is taken for one that never ends: the tier is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What moving a block costs, and what computing it costs, as measured. 0: not measured yet."""

    block_bytes: int
    store_bytes_per_s: float = 0.0
    load_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0

    def move_s(self, num_blocks: int) -> float:
        """Storing blocks and loading them again."""
        num_bytes = num_blocks * self.block_bytes
        return sum(num_bytes / rate for rate in (self.store_bytes_per_s, self.load_bytes_per_s) if rate)

    def compute_s(self, num_tokens: int) -> float | None:
        return num_tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else None


def swap_pays(costs: Costs, num_blocks: int, num_tokens: int) -> tuple[bool, str]:
    """Is it cheaper to move these blocks out and in than to compute their tokens again? With the arithmetic in words.

    Until something was computed nobody knows; then it is taken to be so.
    """
    move_s, compute_s = costs.move_s(num_blocks), costs.compute_s(num_tokens)
    if compute_s is None:
        return True, f"to move {num_blocks} blocks takes {move_s * 1e3:.1f} ms; computing is not measured yet"
    words = f"to move {num_blocks} blocks takes {move_s * 1e3:.1f} ms, to compute them {compute_s * 1e3:.1f} ms"
    return move_s < compute_s, words


# ---- reports ----


@dataclass(frozen=True, slots=True)
class Stored:
    """The block is in the tier, for good."""

    key: bytes


@dataclass(frozen=True, slots=True)
class NotStored:
    """It is not. With `gives_up`, nothing will be any more: a full disk, a directory that is gone."""

    key: bytes
    gives_up: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """The block's bytes are in a buffer, and verified."""

    key: bytes


@dataclass(frozen=True, slots=True)
class NotFetched:
    """The block is missing, truncated or corrupt: there is no such block any more."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A block that an earlier process left in the tier. One whose parent is not there cannot be hit, and is dropped."""

    key: bytes
    parent: bytes | None
    tokens: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """All that was left in the tier, the least recently used first."""

    found: tuple[Found, ...]


Report = Stored | NotStored | Fetched | NotFetched | Scanned | Costs


# ---- state ----


class TierState(StrEnum):
    STORING = "storing"
    STORED = "stored"
    LOADING = "loading"
    LOADED = "loaded"


class Room(StrEnum):
    """May a block be stored? As for admission."""

    OK = "ok"
    LATER = "later"
    """All blocks of the tier are on their way, or too many are."""
    NEVER = "never"
    """It has no room at all, takes nothing any more, or moving a block costs more than computing it."""


@dataclass(slots=True, eq=False)
class TierBlock:
    """One block of the tier. `written`: it is there for good; `buffer`: whether its bytes are fetched."""

    content: CachedBlock
    written: bool = False
    buffer: TierState | None = None
    owners: set[object] = field(default_factory=set[object])
    """The waiting choices that want to load it."""

    @property
    def state(self) -> TierState:
        return self.buffer or (TierState.STORED if self.written else TierState.STORING)


@dataclass(frozen=True, slots=True)
class TierCounts:
    """What happened in a tier since the start, in blocks."""

    stores: int = 0
    store_failures: int = 0
    skipped: int = 0
    """Evicted blocks that were not stored, because too many were on their way."""
    loads: int = 0
    load_failures: int = 0
    evictions: int = 0


_NOTHING = Transfers()


class Tier:
    """At most one entry for each key; entries in all states together never exceed the tier's blocks.

    Commands are for `KvCache`; `match` changes nothing.
    """

    def __init__(self, limits: TierLimits, costs: Costs, block_size: int) -> None:
        self.limits = limits
        self.costs = costs
        self.counts = TierCounts()
        self.closed: str | None = None
        """Why nothing is stored any more."""
        self.blocks: dict[bytes, TierBlock] = {}
        self.evictable: OrderedDict[bytes, None] = OrderedDict()
        """What is written and in no buffer, the first to go first."""
        self.num_storing = self.num_staged = 0
        self.loading: OrderedDict[bytes, float] = OrderedDict()
        """What is being fetched, since when; the longest first."""
        self.unsaved: OrderedDict[bytes, CachedBlock] = OrderedDict()
        """Of a persistent tier: what can be hit in the pool and is not here, the parents first."""
        self._block_size = block_size
        self._wants: dict[object, tuple[bytes, ...]] = {}
        self._idle: set[bytes] = set()
        self._stores: list[BlockStore] = []
        self._loads: list[BlockLoad] = []
        self._fetches: list[bytes] = []
        self._drops: list[bytes] = []
        self._releases: list[bytes] = []

    def __len__(self) -> int:
        return len(self.blocks)

    # ---- what is here ----

    def told(self, now: float) -> Tiered:
        """Gauges and counts, as a fact."""
        counts = self.counts
        return Tiered(
            time_s=now,
            tier=self.limits.name,
            block_bytes=self.costs.block_bytes,
            num_blocks=self.limits.num_blocks,
            blocks_storing=self.num_storing,
            blocks_stored=len(self.blocks) - self.num_storing,
            blocks_staged=self.num_staged,
            stores=counts.stores,
            store_failures=counts.store_failures,
            skipped=counts.skipped,
            loads=counts.loads,
            load_failures=counts.load_failures,
            evictions=counts.evictions,
            closed=self.closed,
        )

    def match(self, chain: KeyChain, hit: Sequence[CachedBlock]) -> tuple[CachedBlock, ...]:
        """The longest run of blocks that continues a hit in the pool, tokens compared back to the first one. Pure."""
        start, last = len(hit), hit[-1] if hit else None
        return tuple(longest_run(self._content_of, chain.keys[start:], chain.pieces[start:], last))

    def _content_of(self, key: bytes) -> CachedBlock | None:
        found = self.blocks.get(key)
        return None if found is None else found.content

    def room(self) -> Room:
        """May one more block be stored?"""
        if self.closed is not None or self.limits.num_blocks < 1:
            return Room.NEVER
        if not swap_pays(self.costs, 1, self._block_size)[0]:
            return Room.NEVER
        full = len(self.blocks) >= self.limits.num_blocks and not self.evictable
        return Room.LATER if full or self.num_storing >= self.limits.num_storing else Room.OK

    # ---- out of the pool ----

    def offer(self, content: CachedBlock, block: BlockId) -> Room:
        """`block`, with this content, is about to be overwritten: stores it, unless it is here or there is no room."""
        self.unsaved.pop(content.key, None)
        if content.key in self.blocks:
            return Room.OK
        room = self.room()
        if room is Room.OK:
            self._make_room()
            self.blocks[content.key] = TierBlock(content)
            self.num_storing += 1
            parent = content.parent.key if content.parent else None
            self._stores.append(BlockStore(block, content.key, parent, content.tokens))
        elif room is Room.LATER:
            self._count(skipped=1)
        return room

    def note_published(self, content: CachedBlock) -> None:
        """It can be hit in the pool: a persistent tier stores it when there is time."""
        if self.limits.persistent and content.key not in self.blocks:
            self.unsaved[content.key] = content

    def note_forgotten(self, content: CachedBlock, block: BlockId) -> None:
        """It cannot be hit in the pool any more, and nobody will ask the pool to keep it."""
        self.unsaved.pop(content.key, None)

    def save(self, num_blocks: int) -> None:
        """Stores some of what is only in the pool, the parents first: what is on disk alone can then be hit."""
        while self.unsaved and num_blocks > 0 and self.room() is Room.OK:
            content = self.unsaved[next(iter(self.unsaved))]
            self.offer(content, content.blocks[0])
            num_blocks -= 1

    def _make_room(self) -> None:
        while len(self.blocks) >= self.limits.num_blocks:
            self._drop(next(iter(self.evictable)))
            self._count(evictions=1)

    # ---- into the pool ----

    def fetch(self, owner: object, run: Sequence[CachedBlock], now: float) -> tuple[CachedBlock, ...] | None:
        """The blocks of `run` that are ready to load, or None while some are on their way: ask again in the next step.

        From now on `owner` wants these and no others. What does not fit into the buffers is not waited for.
        """
        keys = self._affordable(run)
        self._want(owner, keys)
        for key in keys:
            entry = self.blocks[key]
            if entry.buffer is None:
                entry.buffer = TierState.LOADING
                self.num_staged += 1
                self.loading[key] = now
                self.evictable.pop(key, None)
                self._fetches.append(key)
        if any(self.blocks[key].buffer is TierState.LOADING for key in keys):
            return None
        return tuple(run[: len(keys)])

    def load(self, owner: object, run: Sequence[CachedBlock], blocks: Sequence[BlockId]) -> None:
        """The plan in the making fills `blocks` with what was ready."""
        self._loads += [BlockLoad(content.key, block) for content, block in zip(run, blocks, strict=True)]
        self.unwant(owner)

    def take_back(self, blocks: Sequence[BlockId]) -> None:
        """The plan in the making will not fill these after all."""
        if self._loads:
            self._loads = [load for load in self._loads if load.block not in blocks]

    def unwant(self, owner: object) -> None:
        """`owner` waits for nothing here. Idempotent."""
        self._want(owner, ())

    def _affordable(self, run: Sequence[CachedBlock]) -> tuple[bytes, ...]:
        free = self.limits.num_staged - self.num_staged
        keys: list[bytes] = []
        for content in run:
            free -= self.blocks[content.key].buffer is None
            if free < 0:
                break
            keys.append(content.key)
        return tuple(keys)

    def _want(self, owner: object, keys: tuple[bytes, ...]) -> None:
        for key in reversed(self._wants.pop(owner, ())):
            entry = self.blocks.get(key)
            if entry is not None:
                entry.owners.discard(owner)
                if not entry.owners and entry.buffer is TierState.LOADED:
                    self._idle.add(key)
        for key in keys:
            self.blocks[key].owners.add(owner)
        if keys:
            self._wants[owner] = keys

    # ---- orders and reports ----

    def seal(self) -> Transfers | None:
        """What is to be done in this step, if anything is; the buffers of what it loads are released in the next."""
        loading_now = {load.key for load in self._loads}
        for key in [key for key in self._idle if key not in loading_now]:
            self._idle.remove(key)
            entry = self.blocks.get(key)
            if entry is not None and entry.buffer is TierState.LOADED and not entry.owners:
                self._release(key, entry)
        self._count(stores=len(self._stores), loads=len(self._loads))
        orders = Transfers(
            releases=tuple(self._releases),
            drops=tuple(self._drops),
            fetches=tuple(self._fetches),
            stores=tuple(self._stores),
            loads=tuple(self._loads),
        )
        for done in (self._releases, self._drops, self._fetches, self._stores, self._loads):
            done.clear()
        return None if orders == _NOTHING else orders

    def note(self, report: Report) -> None:
        """Takes note of what became of an order."""
        match report:
            case Costs():
                self.costs = report
            case Scanned(found) if self.limits.num_blocks:
                self._restore(found)
            case Scanned():
                pass
            case Stored(key):
                self._note_stored(key)
            case NotStored(key, gives_up):
                if gives_up and self.closed is None:
                    self.closed = "nothing can be written"
                    self.unsaved.clear()
                self._note_lost(key, was_written=False)
            case Fetched(key):
                self._note_fetched(key)
            case NotFetched(key):
                self._note_lost(key, was_written=True)

    def expire(self, now: float) -> None:
        """Closes a tier that does not answer: what it holds is computed again, and nobody waits for it any more."""
        if self.loading:
            since = next(iter(self.loading.values()))
            if now - since > self.limits.patience_s:
                self._count(load_failures=1)
                self._close(f"a block was not read within {self.limits.patience_s:g} s")

    def drop(self, key: bytes) -> None:
        """Nobody will ask for this key again. What is not here is ignored."""
        self.unsaved.pop(key, None)
        if key in self.blocks:
            self._drop(key)

    def clear(self) -> None:
        """Forgets everything; nobody waits for it any more."""
        for key in list(self.blocks):
            self._drop(key)
        self.unsaved.clear()
        self._wants.clear()

    def _close(self, why: str) -> None:
        """Asks nothing more of the tier, not even to delete: what is there may be of use to a later process."""
        self.clear()
        self._drops.clear()
        self._fetches.clear()
        self.closed = why
        self.limits = replace(self.limits, num_blocks=0)

    def _note_stored(self, key: bytes) -> None:
        entry = self.blocks.get(key)
        if entry is not None and not entry.written:
            entry.written = True
            self.num_storing -= 1
            if entry.buffer is None:
                self.evictable[key] = None

    def _note_lost(self, key: bytes, *, was_written: bool) -> None:
        entry = self.blocks.get(key)
        if was_written and entry is not None and entry.buffer is TierState.LOADING:
            self._count(load_failures=1)
            self._drop(key)
        elif not was_written and entry is not None and not entry.written:
            self._count(store_failures=1)
            self._drop(key)

    def _note_fetched(self, key: bytes) -> None:
        entry = self.blocks.get(key)
        if entry is None or entry.buffer is None:
            self._releases.append(key)
        elif entry.buffer is TierState.LOADING:
            entry.buffer = TierState.LOADED
            del self.loading[key]
            if not entry.owners:
                self._idle.add(key)

    def _release(self, key: bytes, entry: TierBlock) -> None:
        entry.buffer = None
        self.num_staged -= 1
        self._releases.append(key)
        if entry.written:
            self.evictable[key] = None

    def _drop(self, key: bytes) -> None:
        entry = self.blocks.pop(key)
        self.num_storing -= not entry.written
        self.num_staged -= entry.buffer is not None
        self.evictable.pop(key, None)
        self.loading.pop(key, None)
        self._idle.discard(key)
        self._drops.append(key)

    def _restore(self, found: Sequence[Found]) -> None:
        """What an earlier process left: parents before children; what has no parent here is dropped."""
        children: dict[bytes | None, list[Found]] = {}
        for one in found:
            children.setdefault(one.parent, []).append(one)
        reached: set[bytes] = set()
        level: list[tuple[CachedBlock | None, Found]] = [(None, one) for one in children.get(None, ())]
        while level:
            below: list[tuple[CachedBlock | None, Found]] = []
            for parent, one in level:
                if one.key not in reached and self._adopt(one, parent):
                    reached.add(one.key)
                    content = self.blocks[one.key].content
                    below += [(content, child) for child in children.get(one.key, ())]
            level = below
        for one in found:
            if one.key in self.evictable:
                self.evictable.move_to_end(one.key)
            elif one.key not in self.blocks:
                self._drops.append(one.key)

    def _adopt(self, one: Found, parent: CachedBlock | None) -> bool:
        if one.key in self.blocks:
            mine = self.blocks[one.key].content
            return mine.tokens == one.tokens and same_prefix(mine.parent, parent)
        if len(one.tokens) != self._block_size or len(self.blocks) >= self.limits.num_blocks:
            return False
        self.blocks[one.key] = TierBlock(CachedBlock(one.key, one.tokens, parent, []), written=True)
        self.evictable[one.key] = None
        return True

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self.counts, name) + by for name, by in more.items() if by}
        if changed:
            self.counts = replace(self.counts, **changed)
