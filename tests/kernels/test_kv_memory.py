"""When the KV cache's memory is taken: ahead of its use, within a bound, and never longer than the backend is there."""

import os
import re
import time
from pathlib import Path

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.config.machine import resident_bytes
from octavo.core.sampling import SamplingParams
from tests.contract.driver import Run, finish
from tests.contract.implementations import CPU_KINDS, ISAS, MAX_MODEL_LEN, CpuKind, cpu_model

MIB = 1 << 20
CACHE = 256 * MIB
SLACK = 24 * MIB
"""What else may come and go in a process meanwhile, and the ends of huge pages."""

BEGINS_S = 1.0
"""From then on a cache takes memory ahead."""
KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def resident() -> int:
    taken = resident_bytes(os.getpid())
    assert taken is not None
    return taken


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def opened(kind: CpuKind, num_blocks: int) -> CpuBackend:
    return CpuBackend(
        cpu_model(ISAS[0], kind),
        num_blocks=num_blocks,
        block_size=8,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_dtype=kind.kv,
    )


def large(kind: CpuKind) -> CpuBackend:
    small = opened(kind, 1)
    try:
        return opened(kind, CACHE // small.block_bytes)
    finally:
        small.close()


@pytest.mark.skipif(KERNEL < (5, 14), reason="needs Linux 5.14, which can be asked for memory ahead")
def test_an_idle_cache_takes_an_eighth_of_its_memory_at_most() -> None:
    before = resident()
    backend = large(CPU_KINDS["f32"])
    waited_s = 0.0
    while resident() - before < CACHE // 16 and waited_s < 10:
        time.sleep(0.02)
        waited_s += 0.02
    time.sleep(0.1)
    taken = resident() - before
    backend.close()
    assert CACHE // 16 <= taken <= CACHE // 8 + SLACK
    assert resident() - before <= SLACK


def test_its_thread_ends_with_it_whenever_that_is() -> None:
    kind = CPU_KINDS["f32"]
    large(kind).close()  # the model's own threads are there from here on
    before = num_threads()
    for waits_s in (0, 0.001, BEGINS_S, BEGINS_S + 0.002, BEGINS_S + 0.005):
        backend = large(kind)
        assert num_threads() == before + 1
        time.sleep(waits_s)
        backend.close()
        assert num_threads() == before


def test_what_a_step_wrote_stays_while_memory_is_taken_around_it() -> None:
    kind = CPU_KINDS["f32"]
    prompt = tuple(j % 250 for j in range(150))
    outcomes = []
    for backend, first, waits_s in ((opened(kind, 40), 0, 0), (large(kind), 0, BEGINS_S), (large(kind), 9000, 0)):
        time.sleep(waits_s)
        run = Run("a", prompt, SamplingParams(temperature=0, logprobs=2), tuple(range(first, first + 24)))
        finish(backend, [run], 4)
        outcomes.append(run.outcome)
        backend.close()
    assert outcomes[1:] == outcomes[:-1]
