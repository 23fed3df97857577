"""Lease: one sequence's hold on its blocks. The only code that takes blocks from the pool and gives them back."""

from collections.abc import Sequence
from itertools import chain as joined

from octavo.core.groups import KvGroups
from octavo.core.hashing import KeyChain
from octavo.core.plan import BlockCopy
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.types import NO_BLOCK, BlockId


class Lease:
    """Block tables, one for each KV group, and the right to write the part of them that nobody shares.

        slots    0 ........................ num_slots ........ room
                 |  in use                 |  free to write   |
        table    [ b0 ][ b1 ][ b2 ][ b3 ][ b4 ]
                 | published | full  | tail   |
        window   given back  [ c2 ][ c3 ][ c4 ]        another group's

    A slot is the place of one token's KV: slot s lies in block `table[s // block_size]` of each group. Slots in use are
    never moved, except that the first writer of a shared tail copies it. Releasing is idempotent, and a released lease
    is empty: it holds nothing and can never hold anything again.
    """

    __slots__ = (
        "_first",
        "_groups",
        "_index",
        "_len",
        "_pool",
        "_published",
        "_released",
        "_room",
        "_size",
        "_tables",
        "_tip",
        "num_reserved",
        "num_slots",
        "table",
    )

    def __init__(self, pool: BlockPool, index: PrefixIndex, groups: KvGroups) -> None:
        self._pool = pool
        self._index = index
        self._groups = groups
        self._size = groups.block_size
        self._tables: list[list[BlockId]] = [[] for _ in groups.windows]
        self._first = [0] * groups.num_groups
        """Of each table the first block that is held: those before it were given back, or never taken."""
        self._len = 0
        """Places in each table."""
        self._room = 0
        self._published = 0
        self._tip: CachedBlock | None = None
        self._released = False
        self.num_slots = 0
        """Slots in use: written, or written by the step that is being planned."""
        self.num_reserved = 0
        """Blocks that it has reserved and not taken yet."""
        self.table: tuple[BlockId, ...] = ()
        """The tables of all groups, one after the other, as in `Work.block_ids`; the same object until one changes."""

    @classmethod
    def on_hit(
        cls, pool: BlockPool, index: PrefixIndex, groups: KvGroups, hit: Sequence[CachedBlock], num_slots: int
    ) -> "Lease":
        """A lease on cached blocks, of which the first `num_slots` slots are in use.

        `num_slots` is all of them, or fewer where the rest will be computed again: then the first append copies the
        last block, since it is published and so not ours to write. Of a group with a window, only what the next token
        reads is held.

            hit      [ b0 ][ b1 ][ b2 ]
            slots    0 .......... | ..: computed again, in a copy of b2
                              num_slots
        """
        lease = cls(pool, index, groups)
        lease._len = lease._published = len(hit)
        lease._first = [groups.first_read(window, num_slots) for window in groups.windows]
        lease._tables = [
            [NO_BLOCK] * first + [entry.blocks[group] for entry in hit[first:]]
            for group, first in enumerate(lease._first)
        ]
        for table, first in zip(lease._tables, lease._first, strict=True):
            pool.hit(table[first:], hit[first:])
        lease._tip = hit[-1] if hit else None
        lease._room = lease.num_slots = num_slots
        lease._write_table()
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
        return self._num_new_blocks(self.num_slots + n) * len(self._tables) + len(self._shared_tails())

    def num_to_come(self, n: int, num_left: int) -> int:
        """Blocks that it will take for `n` more slots, less those that it gives back meanwhile.

        The first `num_left` of them are computed in chunks, the others one by one.
        """
        groups, end, known = self._groups, self.num_slots + n, self.num_slots + min(n, num_left)
        num_new, num_blocks = self._num_new_blocks(end), len(self._shared_tails())
        for window, first in zip(groups.windows, self._first, strict=True):
            most = groups.most_until(window, end, known, num_left)
            num_blocks += min(num_new, max(0, most - (self._len - first)))
        return num_blocks

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, in all groups."""
        return sum([self._len - first for first in self._first])

    @property
    def frees_tail(self) -> bool:
        """Would a release free a last block? That one is shared the least."""
        last = [table[-1] for table, first in zip(self._tables, self._first, strict=True) if first < self._len]
        return any([self._pool.refs[block] == 1 for block in last])

    def reserve(self, num_blocks: int) -> None:
        """From now on so many blocks are kept for it. Each that it takes is one less to keep."""
        self._check_open()
        self._pool.num_promised += num_blocks - self.num_reserved
        self.num_reserved = num_blocks

    def fork(self) -> "Lease":
        """Another lease on the same blocks, for a sequence with the same past. Copies nothing and takes no block.

        this     [ b0 ][ b1 ][ b2 : half full ]
        fork     [ b0 ][ b1 ][ b2 : half full ]     the first to write b2 copies it, the last keeps it
        """
        self._check_open()
        twin = Lease(self._pool, self._index, self._groups)
        twin._tables = [table.copy() for table in self._tables]
        twin._first = self._first.copy()
        twin._len = self._len
        twin._hold_all()
        twin._published = self._published
        twin._tip = self._tip
        twin.table = self.table
        twin._room = twin.num_slots = self._room = self.num_slots
        return twin

    def retract(self, num_slots: int) -> None:
        """Gives up the slots in use from `num_slots` on, and the blocks that then hold nothing: guesses were wrong.

        Not below what is published.
        """
        end = max(self._published, -(-num_slots // self._size))
        for table in self._tables:
            for block in table[end:]:
                self._give(block)
            del table[end:]
        if end < self._len:
            self._len, self._room = end, end * self._size
            self._write_table()
        self.num_slots = num_slots

    def publish(self, chain: KeyChain, num_computed: int) -> None:
        """Makes the blocks that are full with the first `num_computed` tokens of `chain` findable by others.

        Only for KV that has been computed: a block of a step that failed must never come here.
        """
        for i in range(self._published, num_computed // self._size):
            key, piece, under = chain.keys[i], chain.pieces[i], chain.under(i)
            blocks = [table[i] for table in self._tables]
            self._tip = self._index.publish(key, piece, self._tip, blocks, under)
            self._published = i + 1

    def slide(self, num_computed: int) -> bool:
        """Gives back what lies behind the windows of the token at position `num_computed` and of all later ones, if
        anything does.

        Only where no step is in flight that reads it; after `publish`, so that it stays cached.
        """
        slid = False
        for group, window in enumerate(self._groups.windows):
            first = self._groups.first_read(window, num_computed)
            for i in range(self._first[group], first):
                self._give(self._tables[group][i])
                self._tables[group][i] = NO_BLOCK
                self._first[group], slid = first, True
        if slid:
            self._write_table()
        return slid

    def release(self) -> None:
        """Gives everything back, the tail first, so that the end of a chain is evicted before its head. Idempotent."""
        give, entry_of = self._pool.give, self._index.entry_of
        for blocks in zip(*map(reversed, self._tables), strict=True):
            for block in blocks:
                if block != NO_BLOCK:
                    give(block, entry_of(block))
        self._pool.num_promised -= self.num_reserved
        self.num_reserved = 0
        for table in self._tables:
            table.clear()
        self._first = [0] * len(self._tables)
        self._len = self._room = self._published = self.num_slots = 0
        self._tip = None
        self._released = True
        self.table = ()

    def _grow(self, end: int) -> tuple[BlockCopy, ...] | None:
        self._check_open()
        num_new, shared = self._num_new_blocks(end), self._shared_tails()
        if num_new * len(self._tables) + len(shared) > self._pool.num_free:
            return None
        copies = tuple([self._copy_tail(table) for table in shared])
        for table in self._tables:
            table.extend([self._take() for _ in range(num_new)])
        self._len += num_new
        if num_new or copies:
            self._write_table()
        self.num_slots = end
        self._room = self._len * self._size
        return copies

    def _num_new_blocks(self, end: int) -> int:
        """Of each group."""
        return max(0, -(-end // self._size) - self._len)

    def _shared_tails(self) -> list[list[BlockId]]:
        """The tables whose next slot to write is inside a block that another lease, or the index, relies on."""
        tail = self.num_slots // self._size
        if tail >= self._len:
            return []
        refs, holds = self._pool.refs, self._index.holds
        return [table for table in self._tables if refs[table[tail]] > 1 or holds(table[tail])]

    def _copy_tail(self, table: list[BlockId]) -> BlockCopy:
        tail = self.num_slots // self._size
        source, target = table[tail], self._take()
        table[tail] = target
        self._give(source)
        if self._published > tail and self._tip is not None:
            self._published, self._tip = tail, self._tip.parent
        return BlockCopy(source, target)

    def _take(self) -> BlockId:
        block = self._pool.take()
        if self.num_reserved:
            self.num_reserved -= 1
            self._pool.num_promised -= 1
        self._index.forget(block)
        return block

    def _give(self, block: BlockId) -> None:
        self._pool.give(block, self._index.entry_of(block))

    def _hold_all(self) -> None:
        for table, first in zip(self._tables, self._first, strict=True):
            for block in table[first:]:
                self._pool.hold(block)

    def _write_table(self) -> None:
        first, *others = self._tables
        self.table = tuple(joined(first, *others)) if others else tuple(first)

    def _check_open(self) -> None:
        if self._released:
            raise RuntimeError("a released lease cannot be used again")
