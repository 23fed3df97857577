"""Memory that was freed below memory that is in use goes back to the system."""

import ctypes
import os
import sys

import pytest

from octavo.engine.heap import give_back
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


def test_what_lies_free_below_the_top_of_the_heap_is_given_back() -> None:

    kept = fragmented()
    before = vitals_of(os.getpid()).anon_bytes
    give_back()
    after = vitals_of(os.getpid()).anon_bytes
    libc.free(kept)
    assert before - after > CHUNK_BYTES * COUNT * 0.9
