"""A backend with several KV groups that looks like one with a single group, so that the contract suite can drive it.

Block b of the suite is block b of the first group, b + num_blocks of the second one, and so on; and what lies behind a
window is taken out of the tables, so whoever reads there reads no block at all.
"""

from dataclasses import replace

from octavo.core.plan import BlockCopy, StepPlan, StepResult, Work
from octavo.core.ports import Backend, BlockMemory, Capacity
from octavo.core.types import NO_BLOCK
from octavo.models.windows import first_key


class Grouped:
    """A Backend and BlockMemory over one with `windows`, whose pool has `num_blocks` blocks for each group."""

    def __init__(self, inner: Backend, windows: tuple[int | None, ...]) -> None:
        assert isinstance(inner, BlockMemory)
        self._inner, self._memory = inner, inner
        self._windows = windows
        whole = inner.capacity()
        self._capacity = replace(whole, num_blocks=whole.num_blocks // len(windows))

    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        work = tuple(work._replace(block_ids=self._tables(work)) for work in plan.work)
        pairs = [zip(self._twins(copy.source), self._twins(copy.target), strict=True) for copy in plan.copies]
        copies = tuple(BlockCopy(source, target) for pair in pairs for source, target in pair)
        return self._inner.execute(StepPlan(plan.step, work, copies))

    def close(self) -> None:
        self._inner.close()

    @property
    def block_bytes(self) -> int:
        return self._memory.block_bytes * len(self._windows)

    def read_block(self, block: int) -> memoryview:
        return memoryview(b"".join(self._memory.read_block(twin) for twin in self._twins(block)))

    def write_block(self, block: int, raw: memoryview) -> None:
        if len(raw) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {len(raw)}")
        size = self._memory.block_bytes
        for group, twin in enumerate(self._twins(block)):
            self._memory.write_block(twin, raw[group * size : (group + 1) * size])

    def _twins(self, block: int) -> list[int]:
        num_blocks = self._capacity.num_blocks
        if not 0 <= block < num_blocks:
            raise ValueError(f"block {block} is not in the pool of {num_blocks}")
        return [block + group * num_blocks for group in range(len(self._windows))]

    def _tables(self, work: Work) -> tuple[int, ...]:
        tables = zip(*(self._twins(block) for block in work.block_ids), strict=True)
        return tuple(block for group, table in enumerate(tables) for block in self._within(work, group, table))

    def _within(self, work: Work, group: int, table: tuple[int, ...]) -> tuple[int, ...]:
        first = first_key(self._windows[group], work.start) // self._capacity.block_size
        return (NO_BLOCK,) * first + table[first:]
