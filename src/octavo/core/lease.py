"""Lease: one sequence's hold on its blocks. The only code that takes blocks from the pool and gives them back."""

from collections.abc import Sequence

from octavo.core.hashing import KeyChain
from octavo.core.plan import BlockCopy
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.types import BlockId


class Lease:
    """A block table and the right to write the part of it that nobody shares.

        slots    0 ........................ num_slots ........ room
                 |  in use                 |  free to write   |
        table    [ b0 ][ b1 ][ b2 ][ b3 ][ b4 ]
                 | published | full  | tail   |

    A slot is the place of one token's KV: slot s lies in block `table[s // block_size]`. Slots in use are never moved,
    except that the first writer of a shared tail copies it. Releasing is idempotent, and a released lease is empty: it
    holds nothing and can never hold anything again.
    """

    __slots__ = (
        "_blocks",
        "_index",
        "_pool",
        "_published",
        "_released",
        "_room",
        "_size",
        "_tip",
        "num_slots",
        "table",
    )

    def __init__(self, pool: BlockPool, index: PrefixIndex, block_size: int) -> None:
        self._pool = pool
        self._index = index
        self._size = block_size
        self._blocks: list[BlockId] = []
        self._room = 0
        self._published = 0
        self._tip: CachedBlock | None = None
        self._released = False
        self.num_slots = 0
        """Slots in use: written, or written by the step that is being planned."""
        self.table: tuple[BlockId, ...] = ()
        """The block table; the same object until it changes."""

    @classmethod
    def on_hit(
        cls, pool: BlockPool, index: PrefixIndex, block_size: int, hit: Sequence[CachedBlock], num_slots: int
    ) -> "Lease":
        """A lease on cached blocks, of which the first `num_slots` slots are in use.

        `num_slots` is all of them, or fewer where the rest will be computed again: then the first append copies the
        last block, since it is published and so not ours to write.

            hit      [ b0 ][ b1 ][ b2 ]
            slots    0 .......... | ..: computed again, in a copy of b2
                              num_slots
        """
        lease = cls(pool, index, block_size)
        for entry in hit:
            pool.hold(entry.block)
        lease._blocks = [entry.block for entry in hit]
        lease._published = len(hit)
        lease._tip = hit[-1] if hit else None
        lease._room = lease.num_slots = num_slots
        lease.table = tuple(lease._blocks)
        return lease

    def append_slots(self, n: int) -> tuple[BlockCopy, ...] | None:
        """`n` more slots in use, with as many new blocks as they need and no more; returns the block copies to make.

        None where the pool is short; then nothing has changed. Within a block that is ours it takes nothing at all.
        """
        end = self.num_slots + n
        if end <= self._room:
            self.num_slots = end
            return ()
        return self._grow(end)

    def num_missing(self, n: int) -> int:
        """Blocks that `append_slots(n)` would take from the pool."""
        return self._num_new_blocks(self.num_slots + n) + self._shares_tail()

    @property
    def frees_tail(self) -> bool:
        """Would a release free its last block? That one is shared the least."""
        return bool(self._blocks) and self._pool.refs[self._blocks[-1]] == 1

    def fork(self) -> "Lease":
        """Another lease on the same blocks, for a sequence with the same past. Copies nothing and takes no block.

        this     [ b0 ][ b1 ][ b2 : half full ]
        fork     [ b0 ][ b1 ][ b2 : half full ]     the first to write b2 copies it, the last keeps it
        """
        self._check_open()
        twin = Lease(self._pool, self._index, self._size)
        for block in self._blocks:
            self._pool.hold(block)
        twin._blocks = self._blocks.copy()
        twin._published = self._published
        twin._tip = self._tip
        twin.table = self.table
        twin._room = twin.num_slots = self._room = self.num_slots
        return twin

    def publish(self, chain: KeyChain, num_computed: int) -> None:
        """Makes the blocks that are full with the first `num_computed` tokens of `chain` findable by others.

        Only for KV that has been computed: a block of a step that failed must never come here.
        """
        for i in range(self._published, num_computed // self._size):
            key, piece, under = chain.keys[i], chain.pieces[i], chain.under(i)
            self._tip = self._index.publish(key, piece, self._tip, self._blocks[i], under)
            self._published = i + 1

    def release(self) -> None:
        """Gives everything back, the tail first, so that the end of a chain is evicted before its head. Idempotent."""
        for block in reversed(self._blocks):
            self._pool.give(block, keep=self._index.holds(block))
        self._blocks.clear()
        self._room = self._published = self.num_slots = 0
        self._tip = None
        self._released = True
        self.table = ()

    def _grow(self, end: int) -> tuple[BlockCopy, ...] | None:
        self._check_open()
        num_new, copies_tail = self._num_new_blocks(end), self._shares_tail()
        if num_new + copies_tail > self._pool.num_free:
            return None
        copies = (self._copy_tail(),) if copies_tail else ()
        self._blocks.extend([self._take() for _ in range(num_new)])
        if num_new or copies:
            self.table = tuple(self._blocks)
        self.num_slots = end
        self._room = len(self._blocks) * self._size
        return copies

    def _num_new_blocks(self, end: int) -> int:
        return max(0, -(-end // self._size) - len(self._blocks))

    def _shares_tail(self) -> bool:
        """Is the next slot to write inside a block that another lease, or the index, relies on?"""
        tail = self.num_slots // self._size
        if tail >= len(self._blocks):
            return False
        block = self._blocks[tail]
        return self._pool.refs[block] > 1 or self._index.holds(block)

    def _copy_tail(self) -> BlockCopy:
        tail = self.num_slots // self._size
        source, target = self._blocks[tail], self._take()
        self._blocks[tail] = target
        self._pool.give(source, keep=self._index.holds(source))
        if self._published > tail and self._tip is not None:
            self._published, self._tip = tail, self._tip.parent
        return BlockCopy(source, target)

    def _take(self) -> BlockId:
        block = self._pool.take()
        self._index.forget(block)
        return block

    def _check_open(self) -> None:
        if self._released:
            raise RuntimeError("a released lease cannot be used again")
