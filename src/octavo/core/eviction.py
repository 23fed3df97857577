"""Eviction: in which order cached blocks are given up. One small object for each policy, behind one Protocol.

What every policy keeps: the end of a chain goes before its head, because a block can be hit only while all those before
it can. A lease gives its blocks back from its tail, so in order of release that is so by itself; policies that do not
go by that order take only *leaves*, blocks that no cached block continues.

No clock: time is a count of blocks that became cached. Of what was evicted, no more is remembered than the pool has
blocks.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, merge
from typing import Protocol

from octavo.core.prefix import CachedBlock
from octavo.core.types import BlockId

Rank = tuple[float, int]
"""Lower ones go first. The second number is a tick, so that equals go in order of release."""


class Eviction(Protocol):
    """The cached blocks of a pool, in order of eviction. Operations take O(1) or O(log n), amortised."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockId]:
        """All blocks in the order in which `pop` would give them. For audits and tests: O(n log n)."""
        ...

    def add(self, block: BlockId, entry: CachedBlock, /) -> object:
        """A block that nobody holds any more; `entry` is what can be hit in it."""
        ...

    def hit(self, block: BlockId, key: bytes, /) -> object:
        """A block was hit, cached or held. Until it is added again it is no candidate."""
        ...

    def pop(self) -> BlockId:
        """Takes the victim out. Only where there is one."""
        ...

    def drop(self, block: BlockId, /) -> object:
        """Takes a cached block out whose content is to be forgotten, whatever its turn."""
        ...


class Lru:
    """The one released first: recency alone. Most of it is the methods of its queue, without a call in between."""

    def __init__(self, num_blocks: int) -> None:
        queue = self._queue = OrderedDict[BlockId, object]()
        self.add: Callable[[BlockId, CachedBlock], object] = queue.__setitem__
        self.hit: Callable[[BlockId, bytes], object] = queue.pop  # the key is only what it returns for no such block
        self.drop: Callable[[BlockId], object] = queue.__delitem__

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._queue)

    def pop(self) -> BlockId:
        return self._queue.popitem(last=False)[0]


class Ghosts:
    """Keys of the blocks that were evicted last, each of one of two kinds."""

    __slots__ = ("_most", "counts", "kinds")

    def __init__(self, most: int) -> None:
        self._most = most
        self.kinds: OrderedDict[bytes, int] = OrderedDict()
        """Key -> kind, the oldest first. To be read only."""
        self.counts = [0, 0]
        """How many there are of each kind."""

    def add(self, key: bytes, kind: int) -> None:
        self.take(key)
        self.kinds[key] = kind
        self.counts[kind] += 1
        if len(self.kinds) > self._most:
            self.counts[self.kinds.popitem(last=False)[1]] -= 1

    def take(self, key: bytes) -> int | None:
        """Its kind, if it is one; it is none any more."""
        kind = self.kinds.pop(key, None)
        if kind is not None:
            self.counts[kind] -= 1
        return kind


class Adaptive:
    """LRU in which blocks that were hit age more slowly. How much more slowly is learned, beginning with not at all.

        once      blocks that were never hit              } each in order of release. The victim is the older of the two
        reused    blocks that were, or that came back     } first ones, where the age of a reused one counts less

    The age of a reused one is divided by 2 ** bias; with a bias of 0 or less this is exactly LRU. An evicted block
    leaves a ghost. One that comes back from `once` says that such blocks go too early, and the bias falls; one from
    `reused` says the opposite. A ghost of the rarer kind weighs as much more as there are more of the other one. (That
    balance is ARC's: Megiddo and Modha, FAST 2003. There it sets the length of a queue, here the speed of a clock.)

    A parent is released after its child and hit at least as often, so it never counts as the older one.
    """

    LOWEST, HIGHEST = -4.0, 4.0
    """Bounds of the bias. What it is below 0 is the evidence still missing before anything departs from LRU."""
    SPEED = 5.0
    """A pool's worth of ghosts that come back moves the bias by this much, if both kinds are as common."""

    __slots__ = ("_bias", "_ghosts", "_hit", "_num_blocks", "_once", "_reused", "_tick")

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._once: OrderedDict[BlockId, tuple[int, bytes]] = OrderedDict()
        self._reused: OrderedDict[BlockId, tuple[int, bytes]] = OrderedDict()
        self._hit: dict[BlockId, bytes] = {}
        self._ghosts = Ghosts(num_blocks)
        self._bias = self.LOWEST
        self._tick = 0

    def __len__(self) -> int:
        return len(self._once) + len(self._reused)

    def __iter__(self) -> Iterator[BlockId]:
        patience = self._patience
        once = [((then - self._tick - 1) * patience, 0, block) for block, (then, _) in self._once.items()]
        reused = [(float(then - self._tick - 1), 1, block) for block, (then, _) in self._reused.items()]
        return (block for _, _, block in merge(once, reused))

    def add(self, block: BlockId, entry: CachedBlock) -> None:
        key = entry.key
        self._tick += 1
        if key in self._ghosts.kinds:
            self._learn(key)
            self._hit[block] = key
        queue = self._reused if self._hit.get(block) == key else self._once
        queue[block] = (self._tick, key)

    def hit(self, block: BlockId, key: bytes) -> None:
        self._hit[block] = key
        if self._once.pop(block, None) is None:
            self._reused.pop(block, None)

    def pop(self) -> BlockId:
        reused = self._reused_goes()
        block, (_, key) = (self._reused if reused else self._once).popitem(last=False)
        self._hit.pop(block, None)
        self._ghosts.add(key, reused)
        return block

    def drop(self, block: BlockId) -> None:
        self._hit.pop(block, None)
        if self._once.pop(block, None) is None:
            del self._reused[block]

    def _reused_goes(self) -> bool:
        if not self._once or not self._reused:
            return bool(self._reused)
        once, reused = (self._tick + 1 - next(iter(queue.values()))[0] for queue in (self._once, self._reused))
        return reused > once * self._patience

    @property
    def _patience(self) -> float:
        """How many times older a reused block is when it counts as old as one that is not."""
        return 2.0 ** max(0.0, self._bias)

    def _learn(self, key: bytes) -> None:
        counts = self._ghosts.counts.copy()
        reused = self._ghosts.take(key)
        if reused is not None:
            step = self.SPEED / self._num_blocks * max(1.0, counts[not reused] / counts[reused])
            self._bias = min(self.HIGHEST, max(self.LOWEST, self._bias + (step if reused else -step)))


@dataclass(slots=True)
class _Node:
    entry: CachedBlock
    queue: int
    rank: Rank


class Leaves:
    """Cached blocks in queues by rank. Only those that no cached block continues are ever first.

    A heap for each queue. What is in one may be stale, or no leaf any more: that is seen when it comes up, and the rest
    is thrown out when there is as much of it as of the others.
    """

    __slots__ = ("_blocks", "_children", "_heaps", "_nodes", "sizes")

    def __init__(self, num_queues: int = 1) -> None:
        self._heaps: list[list[tuple[Rank, BlockId]]] = [[] for _ in range(num_queues)]
        self._nodes: dict[BlockId, _Node] = {}
        self._blocks: dict[CachedBlock, list[BlockId]] = {}
        self._children: dict[CachedBlock, int] = {}
        self.sizes = [0] * num_queues
        """Blocks in each queue, leaves or not."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._nodes

    def __deepcopy__(self, memo: object) -> "Leaves":
        """Another one of the same entries."""
        twin = Leaves(len(self.sizes))
        twin._heaps = [heap.copy() for heap in self._heaps]
        twin._nodes = {block: replace(node) for block, node in self._nodes.items()}
        twin._blocks = {entry: blocks.copy() for entry, blocks in self._blocks.items()}
        twin._children = self._children.copy()
        twin.sizes = self.sizes.copy()
        return twin

    def add(self, block: BlockId, entry: CachedBlock, rank: Rank, queue: int = 0) -> None:
        node = self._nodes[block] = _Node(entry, queue, rank)
        self._blocks.setdefault(entry, []).append(block)
        if entry.parent is not None:
            self._children[entry.parent] = self._children.get(entry.parent, 0) + 1
        self.sizes[queue] += 1
        self._push(block, node)

    def remove(self, block: BlockId) -> None:
        """Takes it out, where it is in."""
        node = self._nodes.pop(block, None)
        if node is None:
            return
        self.sizes[node.queue] -= 1
        self._blocks[node.entry].remove(block)
        if not self._blocks[node.entry]:
            del self._blocks[node.entry]
        if node.entry.parent is not None:
            self._remove_child(node.entry.parent)

    def move(self, block: BlockId, rank: Rank, queue: int) -> None:
        node = self._nodes[block]
        self.sizes[node.queue] -= 1
        self.sizes[queue] += 1
        node.queue, node.rank = queue, rank
        self._push(block, node)

    def first(self, queue: int = 0) -> BlockId | None:
        """The leaf of the lowest rank in a queue. None where it has no leaf."""
        heap = self._heaps[queue]
        while heap:
            rank, block = heap[0]
            if self._is_leaf(block, queue, rank):
                return block
            heappop(heap)
        return None

    def rank(self, block: BlockId) -> Rank:
        return self._nodes[block].rank

    def _remove_child(self, parent: CachedBlock) -> None:
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
            for block in self._blocks.get(parent, ()):
                self._push(block, self._nodes[block])

    def _is_leaf(self, block: BlockId, queue: int, rank: Rank) -> bool:
        node = self._nodes.get(block)
        return node is not None and (node.queue, node.rank) == (queue, rank) and node.entry not in self._children

    def _push(self, block: BlockId, node: _Node) -> None:
        if node.entry in self._children:
            return
        heap = self._heaps[node.queue]
        heappush(heap, (node.rank, block))
        if len(heap) > 64 + 2 * self.sizes[node.queue]:
            heap[:] = {(rank, block) for rank, block in heap if self._is_leaf(block, node.queue, rank)}
            heapify(heap)


class _ByLeaves(ABC):
    """What policies over leaves have in common: the blocks are those of `_leaves`, their order is what `pop` gives."""

    __slots__ = ("_leaves",)
    _leaves: Leaves

    def __len__(self) -> int:
        return len(self._leaves)

    def __iter__(self) -> Iterator[BlockId]:
        """What it would pop, one after the other, if nothing else happened."""
        twin = deepcopy(self)
        while len(twin):
            yield twin.pop()

    @abstractmethod
    def pop(self) -> BlockId: ...


class Fifo(_ByLeaves):
    """The leaf that became cached first; hits change nothing."""

    __slots__ = ("_born", "_tick")

    def __init__(self, num_blocks: int) -> None:
        self._leaves = Leaves()
        self._born: dict[BlockId, tuple[bytes, int]] = {}
        self._tick = 0

    def add(self, block: BlockId, entry: CachedBlock) -> None:
        self._tick += 1
        key, born = self._born.get(block, (b"", 0))
        if key != entry.key:
            born = self._tick
            self._born[block] = (entry.key, born)
        self._leaves.add(block, entry, (born, born))

    def hit(self, block: BlockId, key: bytes) -> None:
        self._leaves.remove(block)

    def pop(self) -> BlockId:
        block = _only(self._leaves.first())
        self.drop(block)
        return block

    def drop(self, block: BlockId) -> None:
        self._leaves.remove(block)
        del self._born[block]


class Gdsf(_ByLeaves):
    """The leaf of the lowest frequency x recompute cost / size, plus an age that rises with each eviction.

    Greedy-dual-size-frequency (Cherkasova, HP Labs 1998). All blocks are of one size; computing one anew costs more the
    further back it attends. The age is the value of the last victim: so what was hit often long ago goes in the end.
    """

    FAR = 256
    """Blocks before it that make one cost twice as much: with blocks of 16, where attention to them costs about as much
    as the weights of a model of some 700 dimensions."""

    __slots__ = ("_age", "_hits", "_tick")

    def __init__(self, num_blocks: int) -> None:
        self._leaves = Leaves()
        self._hits: dict[BlockId, tuple[bytes, int]] = {}
        self._age = 0.0
        self._tick = 0

    def add(self, block: BlockId, entry: CachedBlock) -> None:
        self._tick += 1
        frequency = 1 + self._num_hits(block, entry.key)
        self._leaves.add(block, entry, (self._age + frequency * (1 + entry.position / self.FAR), self._tick))

    def hit(self, block: BlockId, key: bytes) -> None:
        self._hits[block] = (key, self._num_hits(block, key) + 1)
        self._leaves.remove(block)

    def pop(self) -> BlockId:
        block = _only(self._leaves.first())
        self._age = max(self._age, self._leaves.rank(block)[0])
        self.drop(block)
        return block

    def drop(self, block: BlockId) -> None:
        self._leaves.remove(block)
        self._hits.pop(block, None)

    def _num_hits(self, block: BlockId, key: bytes) -> int:
        known, hits = self._hits.get(block, (key, 0))
        return hits if known == key else 0


@dataclass(slots=True)
class _Life:
    """What S3-FIFO knows of a block."""

    key: bytes
    queue: int | None = None
    born: int = 0
    hits: int = 0


class S3Fifo(_ByLeaves):
    """Two FIFO queues of leaves: what is not hit while it passes the small one is gone; what is stays in the main one.

    S3-FIFO (Yang and others, SOSP 2023), with its constants: the small queue is a tenth, hits count up to three, and a
    ghost that comes back goes to the main queue.
    """

    SMALL, MAIN = 0, 1
    MOST_HITS = 3

    __slots__ = ("_ghosts", "_lives", "_room", "_tick")

    def __init__(self, num_blocks: int) -> None:
        self._room = num_blocks / 10
        self._leaves = Leaves(2)
        self._lives: dict[BlockId, _Life] = {}
        self._ghosts = Ghosts(num_blocks)
        self._tick = 0

    def add(self, block: BlockId, entry: CachedBlock) -> None:
        self._tick += 1
        life = self._life(block, entry.key)
        if life.queue is None:
            life.queue = self.SMALL if self._ghosts.take(entry.key) is None else self.MAIN
            life.born = self._tick
        self._leaves.add(block, entry, (life.born, life.born), life.queue)

    def hit(self, block: BlockId, key: bytes) -> None:
        life = self._life(block, key)
        life.hits = min(self.MOST_HITS, life.hits + 1)
        self._leaves.remove(block)

    def pop(self) -> BlockId:
        while True:
            queue = self._queue()
            block = _only(self._leaves.first(queue))
            life = self._lives[block]
            if not life.hits:
                if queue == self.SMALL:
                    self._ghosts.add(life.key, 0)
                self.drop(block)
                return block
            self._tick += 1
            life.queue, life.born, life.hits = self.MAIN, self._tick, 0 if queue == self.SMALL else life.hits - 1
            self._leaves.move(block, (life.born, life.born), self.MAIN)

    def drop(self, block: BlockId) -> None:
        self._leaves.remove(block)
        del self._lives[block]

    def _queue(self) -> int:
        """Whose turn it is: the small queue's where it has grown beyond its room, or the other one has no leaf."""
        if self._leaves.first(self.SMALL) is None:
            return self.MAIN
        is_full = self._leaves.sizes[self.SMALL] >= self._room
        return self.SMALL if is_full or self._leaves.first(self.MAIN) is None else self.MAIN

    def _life(self, block: BlockId, key: bytes) -> _Life:
        life = self._lives.get(block)
        if life is None or life.key != key:
            life = self._lives[block] = _Life(key)
        return life


def _only(block: BlockId | None) -> BlockId:
    if block is None:
        raise IndexError("nothing is cached")
    return block


NewEviction = Callable[[int], Eviction]
"""An empty one for a pool of so many blocks."""

EVICTIONS: Mapping[str, NewEviction] = {"adaptive": Adaptive, "lru": Lru, "fifo": Fifo, "s3fifo": S3Fifo, "gdsf": Gdsf}
"""`--eviction-policy`. What each is worth on recorded traces: docs/eviction.md."""
