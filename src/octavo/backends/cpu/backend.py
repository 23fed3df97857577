"""CpuBackend: runs a StepPlan in one native call."""

import time
from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from octavo.backends.cpu import _native
from octavo.backends.cpu.model import CpuModel, resolve_kv_dtype
from octavo.backends.cpu.program import build_program
from octavo.backends.cpu.sampling import SamplePacker, unpack
from octavo.backends.cpu.sums import pack_sums, with_sums
from octavo.backends.cpu.tracing import kernel_spans, measure_rates
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Capacity, KernelSpan, MachineRates

BUSY_TOKENS = 64
"""From some 50 rows on products take as long for each of them, however many there are."""

Ints = NDArray[np.int32]


class CpuBackend:
    """A Backend over a CpuModel, with a paged cache of its own.

    A row of a step is computed in an order that depends on that row alone, so its result has the same bits alone, in a
    batch, in chunks, over cached blocks and on any number of threads; the bits differ between kernel sets and dtypes.
    Raises ValueError for a block size or cache dtype that the kernels do not have, MemoryError for a cache that the
    address space does not hold.
    """

    def __init__(
        self, model: CpuModel, *, num_blocks: int, block_size: int, max_model_len: int, kv_cache_dtype: str = "auto"
    ) -> None:
        self._model = model
        self._kv_cache_dtype = resolve_kv_dtype(kv_cache_dtype)
        self._program: _native.Program | None = build_program(model)
        self._program.allocate(self._kv_cache_dtype, num_blocks, block_size)
        self._capacity = Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=model.spec.vocab_size,
            max_model_len=max_model_len,
            hidden_size=model.spec.hidden_size,
            busy_tokens=BUSY_TOKENS,
        )
        self._samples = SamplePacker()
        self._tables: dict[int, tuple[tuple[int, ...], bytes]] = {}
        """By the identity of a block table, which is its own while it is kept here: the table, and it as int32."""

    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        return self._execute(plan, None)

    def execute_traced(self, plan: StepPlan) -> tuple[StepResult, Callable[[], list[KernelSpan]]]:
        trace = _native.Trace()
        return self._execute(plan, trace), partial(kernel_spans, self._model, self._kv_cache_dtype, trace)

    def measure_rates(self, seconds: float) -> MachineRates:
        return measure_rates(self._model, self._kv_cache_dtype, seconds)

    def _execute(self, plan: StepPlan, trace: _native.Trace | None) -> StepResult:
        if not plan.work and not plan.copies:
            return StepResult(plan.step)
        program = self._open_program()
        started = time.perf_counter()
        packed = self._samples.pack(plan)
        sums = pack_sums(plan, self._capacity.hidden_size)
        arrays = self._arrays(plan)
        called = time.perf_counter()
        layers_s, head_s, sample_s = program.run(*arrays, packed.rows, *packed.arrays(), sums.rows, sums.totals, trace)
        returned = time.perf_counter()
        results = with_sums(plan, unpack(plan, packed), sums)
        timings = {
            "marshal": called - started + time.perf_counter() - returned,
            "layers": layers_s,
            "head": head_s,
            "sample": sample_s,
        }
        return StepResult(plan.step, results, timings)

    @property
    def block_bytes(self) -> int:
        return self._open_program().block_bytes

    def read_block(self, block: int) -> memoryview:
        out = np.empty(self.block_bytes, np.uint8)
        self._open_program().read_block(block, out)
        return out.data

    def write_block(self, block: int, raw: memoryview) -> None:
        self._open_program().write_block(block, np.frombuffer(raw, np.uint8))

    def close(self) -> None:
        """Drops the cache with the program; weights and threads go with the model."""
        self._program = None
        self._tables.clear()

    def _open_program(self) -> _native.Program:
        if self._program is None:
            raise RuntimeError("this backend is closed")
        return self._program

    def _arrays(self, plan: StepPlan) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """tokens, starts, row offsets, block ids, block offsets, copies: the step as the native call takes it."""
        chunks, tables = [work.tokens for work in plan.work], [work.block_ids for work in plan.work]
        return (
            np.fromiter(chain.from_iterable(chunks), np.int32),
            np.array([work.start for work in plan.work], np.int32),
            _offsets(list(map(len, chunks))),
            np.frombuffer(b"".join(self._packed(tables)), np.int32),
            _offsets(list(map(len, tables))),
            np.array([block for copy in plan.copies for block in (copy.source, copy.target)], np.int32),
        )

    def _packed(self, tables: list[tuple[int, ...]]) -> list[bytes]:
        """Block tables as int32: one that did not grow is the same tuple, and is packed once."""
        known = self._tables
        entries = [known.get(id(table)) or (table, array("i", table).tobytes()) for table in tables]
        self._tables = {id(entry[0]): entry for entry in entries}
        return [packed for _, packed in entries]


def _offsets(lengths: list[int]) -> Ints:
    return np.fromiter(accumulate(lengths, initial=0), np.int32, len(lengths) + 1)
