"""BlockPool: which physical blocks are free, and how many hold each of the others. Counts only; it knows no content.

Each block is in exactly one of three states, so blank + cached + leased = total:

    blank    nobody holds it, nothing in it is worth keeping          } free: `take` gives these,
    cached   nobody holds it, its content may be hit again            } blank ones first
    leased   held `refs[block]` >= 1 times
"""

from collections import OrderedDict

from octavo.core.types import BlockId


class BlockPool:
    """Reference counts, and a free queue whose order is the order of eviction. Every operation is O(1).

    Only `Lease` calls `take`, `hold` and `give`.
    """

    __slots__ = ("_blank", "_cached", "num_blocks", "refs")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        """How many leases hold each block."""
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

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
    def num_leased(self) -> int:
        return self.num_blocks - self.num_free

    def blank(self) -> tuple[BlockId, ...]:
        """Blank blocks, the next to be taken first."""
        return tuple(reversed(self._blank))

    def cached(self) -> tuple[BlockId, ...]:
        """Cached blocks in the order of their eviction."""
        return tuple(self._cached)

    def take(self) -> BlockId:
        """A free block, now held once: a blank one while there is any, else the cached one that was freed first.

        The caller forgets its content. Raises IndexError where nothing is free: look at `num_free` first.
        """
        if self._blank:
            block = self._blank.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
        else:
            raise IndexError("no block is free")
        self.refs[block] = 1
        return block

    def hold(self, block: BlockId) -> None:
        """One more holder of a leased block, or the first one of a cached block, which leaves the free queue."""
        if not self.refs[block]:
            del self._cached[block]
        self.refs[block] += 1

    def give(self, block: BlockId, *, keep: bool) -> None:
        """One holder fewer. After the last one the block is cached, at the end of the queue, if `keep`; else blank."""
        if self.refs[block] < 1:
            raise ValueError(f"block {block} is given back more often than it was taken")
        self.refs[block] -= 1
        if self.refs[block]:
            return
        if keep:
            self._cached[block] = None
        else:
            self._blank.append(block)

    def drop_cached(self) -> tuple[BlockId, ...]:
        """Makes every cached block blank and returns them: their content is to be forgotten."""
        dropped = tuple(self._cached)
        self._cached.clear()
        self._blank.extend(reversed(dropped))
        return dropped
