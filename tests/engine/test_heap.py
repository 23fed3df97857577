"""Memory that was freed below memory that is in use goes back to the system."""

import ctypes
import os
import sys

import pytest

from octavo.engine.heap import EVERY_S, Spare, give_back
from tests.system.vitals import vitals_of

CHUNK_BYTES, COUNT = 64 << 10, 512
"""Chunks that malloc takes from its heap, not each from the system: 32 MiB together."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def fragmented() -> int:
    """Allocates much, and frees all but what came last; the address of that."""
    chunks = [libc.malloc(CHUNK_BYTES) for _ in range(COUNT)]
    for chunk in chunks:
        ctypes.memset(chunk, 1, CHUNK_BYTES)
    kept = chunks.pop()
    for chunk in chunks:
        libc.free(chunk)
    return kept


def resident() -> int:
    return vitals_of(os.getpid()).anon_bytes


def test_what_lies_free_below_the_top_of_the_heap_is_given_back() -> None:
    kept = fragmented()
    before = resident()
    give_back()
    after = resident()
    libc.free(kept)
    assert before - after > CHUNK_BYTES * COUNT * 0.9


def test_what_work_freed_is_given_back_within_a_bound_while_it_goes_on_and_once_afterwards() -> None:
    time_s = 0.0
    spare = Spare(lambda: time_s)
    for worked_at, looked_at, gives in (
        (1.0, EVERY_S, True),
        (1.1 * EVERY_S, 1.2 * EVERY_S, False),
        (0, 2 * EVERY_S, True),
    ):
        kept = fragmented()
        before = resident()
        if worked_at:
            time_s = worked_at
            spare.look(worked=True)
        time_s = looked_at
        spare.look(worked=False)
        given = before - resident()
        libc.free(kept)
        assert (given > CHUNK_BYTES * COUNT * 0.9) == gives


def test_an_engine_that_rests_gives_nothing_back() -> None:
    time_s = 0.0
    spare = Spare(lambda: time_s)
    kept = fragmented()
    before = resident()
    time_s = 100 * EVERY_S
    spare.look(worked=False)
    given = before - resident()
    libc.free(kept)
    give_back()
    assert given < CHUNK_BYTES * COUNT * 0.1
