"""Offload: moves KV blocks between a backend and a lower tier. Only the copies are part of a step, files never are.

    step thread     snapshot of an evicted block      |      fetched bytes into a block
                                 v                                     ^
                          pending snapshots                    buffers, verified
                                 v                                     ^
    writer thread         write, then report          |      reader thread: read, check, report

What goes wrong with a block is a report, never an exception: the scheduler has the block computed again.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Protocol

from octavo.core.plan import BlockStore, StepPlan, StepResult, Transfers
from octavo.core.ports import Backend, BlockMemory, Capacity
from octavo.core.tiers import Costs, Fetched, Found, NotFetched, NotStored, Report, Scanned, Stored

log = logging.getLogger(__name__)

_LEAST_PREFILL = 32
"""Only steps with this many tokens for each work tell how fast prompts are computed."""
_LOUD_FAILURES = 5
"""Failures of single blocks beyond this are counted, and logged for those who debug only."""


class Medium(Protocol):
    """Where a lower tier's bytes are. Each of `write` with `drop`, and `read` with `scan`, has a thread of its own."""

    def write(self, store: BlockStore, raw: memoryview, /) -> None:
        """Raises OSError where nothing can be written any more."""
        ...

    def read(self, key: bytes, /) -> memoryview:
        """Raises ValueError or OSError for a block that is missing, or not as it was written."""
        ...

    def drop(self, key: bytes, /) -> None: ...

    def scan(self) -> tuple[Found, ...]:
        """What an earlier process left, the least recently used first."""
        ...

    def close(self) -> None: ...


class Rate:
    """Units a second, over the last dozen measurements or so."""

    def __init__(self) -> None:
        self._units = self._seconds = 0.0

    def note(self, units: float, seconds: float) -> None:
        self._units, self._seconds = 0.9 * self._units + units, 0.9 * self._seconds + seconds

    @property
    def value(self) -> float:
        return self._units / self._seconds if self._seconds else 0.0


class Offload:
    """Carries out the orders of plans. What the step thread calls never waits for a file."""

    def __init__(self, medium: Medium, block_bytes: int) -> None:
        self._medium = medium
        self._news = Condition()
        self._reports: deque[Report] = deque()
        self._pending: dict[bytes, memoryview] = {}
        self._buffers: dict[bytes, memoryview] = {}
        self._num_failed = 0
        self._gave_up = False
        self._closed = False
        self._rates = {"store": Rate(), "load": Rate(), "prefill": Rate()}
        self._block_bytes = block_bytes
        self._writes: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._reads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            Thread(target=_work_off, args=(queue,), name=f"KV {name}", daemon=True)
            for name, queue in (("writer", self._writes), ("reader", self._reads))
        ]
        for thread in self._threads:
            thread.start()
        self._reads.put(self._scan)

    # ---- the step thread ----

    def begin(self, transfers: Transfers) -> None:
        """Lets go of buffers, forgets blocks, starts to fetch others."""
        with self._news:
            for key in transfers.releases + transfers.drops:
                self._buffers.pop(key, None)
            for key in transfers.drops:
                self._pending.pop(key, None)
        for key in transfers.drops:
            self._writes.put(lambda key=key: self._medium.drop(key))
        for key in transfers.fetches:
            self._reads.put(lambda key=key: self._fetch(key))

    def store(self, store: BlockStore, raw: memoryview) -> None:
        with self._news:
            self._pending[store.key] = raw
        self._writes.put(lambda: self._write(store, raw))

    def buffer(self, key: bytes) -> memoryview:
        """What was fetched. There is such a buffer from its report until it is released."""
        with self._news:
            return self._buffers[key]

    def measured(self, what: str, units: float, seconds: float) -> None:
        """`store` and `load` in bytes, `prefill` in tokens."""
        with self._news:
            self._rates[what].note(units, seconds)
            rates = {name: rate.value for name, rate in self._rates.items()}
        self._report(
            Costs(
                block_bytes=self._block_bytes,
                store_bytes_per_s=rates["store"],
                load_bytes_per_s=rates["load"],
                prefill_tokens_per_s=rates["prefill"],
            )
        )

    # ---- reports ----

    def failed(self, stores: tuple[BlockStore, ...]) -> None:
        """These could not be read out of the backend."""
        for store in stores:
            self._report(NotStored(store.key))

    def reports(self, timeout_s: float = 0.0) -> tuple[Report, ...]:
        """What was reported since the last call; waits for the first, at most `timeout_s`."""
        with self._news:
            if timeout_s and not self._reports:
                self._news.wait(timeout_s)
            reports = tuple(self._reports)
            self._reports.clear()
        return reports

    def flush(self, timeout_s: float) -> bool:
        """Waits until all snapshots are written, or given up, and reported: did they get there in time?"""
        with self._news:
            return self._news.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is pending, as far as there is time. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        if not self.flush(timeout_s):
            log.warning("%d KV blocks were not written before the end", len(self._pending))
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        self._medium.close()

    def _report(self, report: Report) -> None:
        with self._news:
            self._reports.append(report)
            self._news.notify_all()

    # ---- the other threads ----

    def _scan(self) -> None:
        try:
            self._report(Scanned(self._medium.scan()))
        except OSError as error:
            log.warning("the stored KV blocks of earlier runs cannot be listed: %s", error)

    def _write(self, store: BlockStore, raw: memoryview) -> None:
        with self._news:
            wanted = self._pending.get(store.key) is raw
        if not wanted:
            return  # it was dropped meanwhile: a report would be of nothing
        try:
            if not self._gave_up:
                self._medium.write(store, raw)
        except Exception as error:  # noqa: BLE001  whatever it is, nobody may wait for this block
            self._gave_up = True
            log.warning("no KV blocks are stored any more: %s. Serving goes on without", error)
        with self._news:
            if self._pending.get(store.key) is raw:
                del self._pending[store.key]
            self._report(NotStored(store.key, gives_up=True) if self._gave_up else Stored(store.key))

    def _fetch(self, key: bytes) -> None:
        started = time.perf_counter()
        with self._news:
            raw = self._pending.get(key)
        try:
            raw = self._medium.read(key) if raw is None else raw
        except (OSError, ValueError) as error:
            self._num_failed += 1
            level = logging.WARNING if self._num_failed <= _LOUD_FAILURES else logging.DEBUG
            log.log(level, "a stored KV block cannot be used, and is computed again: %s (%s)", error, key.hex()[:16])
            self._report(NotFetched(key))
            return
        with self._news:
            self._buffers[key] = raw
        self.measured("load", raw.nbytes, time.perf_counter() - started)
        self._report(Fetched(key))


def _work_off(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (work := queue.get()) is not None:
        try:
            work()
        except Exception:
            log.exception("an order to the KV tier failed")


class TieredBackend:
    """A Backend that also carries out the transfers of its plans."""

    def __init__(self, backend: Backend, memory: BlockMemory, offload: Offload) -> None:
        """`memory` is that of `backend`."""
        self._backend = backend
        self._memory = memory
        self._offload = offload

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        if plan.transfers is not None:
            plan = self._transfer(plan, plan.transfers)
        moved = time.perf_counter()
        result = self._backend.execute(plan)
        if 0 < len(plan.work) * _LEAST_PREFILL <= plan.num_tokens:
            self._offload.measured("prefill", plan.num_tokens, time.perf_counter() - moved)
        if plan.transfers is None:
            return result
        return replace(result, timings_s=result.timings_s | {"transfer": moved - started})

    def close(self) -> None:
        self._offload.close()
        self._backend.close()

    def _transfer(self, plan: StepPlan, transfers: Transfers) -> StepPlan:
        """Everything that comes before the work; returns what is left to do."""
        self._offload.begin(transfers)
        self._snapshot(transfers.stores)
        if not transfers.loads:
            return plan
        if plan.copies:
            self._backend.execute(StepPlan(plan.step, (), plan.copies))
        for load in transfers.loads:
            self._memory.write_block(load.block, self._offload.buffer(load.key))
        return replace(plan, copies=())

    def _snapshot(self, stores: tuple[BlockStore, ...]) -> None:
        started = time.perf_counter()
        for position, store in enumerate(stores):
            try:
                raw = self._memory.read_block(store.block)
            except BaseException:
                self._offload.failed(stores[position:])
                raise
            self._offload.store(store, raw)
        if stores:
            num_bytes = len(stores) * self._memory.block_bytes
            self._offload.measured("store", num_bytes, time.perf_counter() - started)
