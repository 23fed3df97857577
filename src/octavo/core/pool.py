"""BlockPool: which physical blocks are free, and how many hold each of the others.

Each block is in exactly one of three states, so blank + cached + leased = total:

    blank    nobody holds it, nothing in it is worth keeping          } free: `take` gives these,
    cached   nobody holds it, its content may be hit again            } blank ones first, then the policy's victim
    leased   held `refs[block]` >= 1 times
"""

from collections.abc import Sequence

from octavo.core.eviction import Eviction, Lru, NewEviction
from octavo.core.prefix import CachedBlock
from octavo.core.types import BlockId


class BlockPool:
    """Reference counts, blank blocks, and cached blocks in the order of eviction. What is in them, the policy is told.

    Only `Lease` calls `take`, `hit`, `hold` and `give`. Their cost is O(1), but for what the policy does.
    """

    __slots__ = ("_blank", "_cached", "_new_eviction", "num_blocks", "num_promised", "refs")

    def __init__(self, num_blocks: int, eviction: NewEviction = Lru) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        """How many leases hold each block."""
        self.num_promised = 0
        """How many blocks leases have reserved and not taken yet. It may be more than are free: `take` does not ask."""
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._new_eviction = eviction
        self._cached: Eviction = eviction(num_blocks)

    @property
    def num_blank(self) -> int:
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_free(self) -> int:
        """Blocks that `take` can give: blank and cached."""
        return len(self._blank) + len(self._cached)

    @property
    def num_reserved(self) -> int:
        """Free blocks that are spoken for."""
        return min(self.num_promised, self.num_free)

    @property
    def num_unpromised(self) -> int:
        """Free blocks that nobody has reserved: for newcomers. Below 0 where others took what was reserved."""
        return self.num_free - self.num_promised

    @property
    def num_leased(self) -> int:
        return self.num_blocks - self.num_free

    def blank(self) -> tuple[BlockId, ...]:
        """Blank blocks, the next to be taken first."""
        return tuple(reversed(self._blank))

    def cached(self) -> tuple[BlockId, ...]:
        """Cached blocks in the order of their eviction."""
        return tuple(self._cached)

    def take(self) -> BlockId:
        """A free block, now held once: a blank one while there is any, else the policy's victim.

        The caller forgets its content. Raises IndexError where nothing is free: look at `num_free` first.
        """
        if self._blank:
            block = self._blank.pop()
        elif len(self._cached):
            block = self._cached.pop()
        else:
            raise IndexError("no block is free")
        self.refs[block] = 1
        return block

    def hit(self, blocks: Sequence[BlockId], entries: Sequence[CachedBlock]) -> None:
        """One more holder of each block for the entry in it: the first one of a cached block, or another one."""
        refs, note = self.refs, self._cached.hit
        for block, entry in zip(blocks, entries, strict=True):
            note(block, entry.key)
            refs[block] += 1

    def hold(self, block: BlockId) -> None:
        """One more holder of a leased block."""
        self.refs[block] += 1

    def give(self, block: BlockId, entry: CachedBlock | None) -> None:
        """One holder fewer. After the last one the block is cached if it has an `entry` in the index, else blank."""
        if self.refs[block] < 1:
            raise ValueError(f"block {block} is given back more often than it was taken")
        self.refs[block] -= 1
        if self.refs[block]:
            return
        if entry is None:
            self._blank.append(block)
        else:
            self._cached.add(block, entry)

    def drop(self, block: BlockId) -> None:
        """Makes a cached block blank: its content is to be forgotten."""
        self._cached.drop(block)
        self._blank.append(block)

    def drop_cached(self) -> tuple[BlockId, ...]:
        """Makes every cached block blank and returns them. The policy starts anew."""
        dropped = tuple(self._cached)
        self._cached = self._new_eviction(self.num_blocks)
        self._blank.extend(reversed(dropped))
        return dropped
