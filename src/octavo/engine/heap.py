"""Heap: what was loaded is let alone, and what was freed goes back to the system, where the C library allows it."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.engine.clock import Clock

EVERY_S = 10.0
"""An engine at work keeps no more than what it freed within this time: else 40 MB after minutes of mixed requests."""
COLLECT_AFTER = (10_000, 5, 5)
"""So many objects are made and not freed before young ones are looked at for cycles; and so often, before older ones.

More than a step of 1,024 choices makes, and frees by itself: with Python's own 700 a sixth of its time goes there.
"""


def settle() -> None:
    """For a process that has loaded: no collection looks at what is there now, and none comes in each step."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


@contextmanager
def settled() -> Iterator[None]:
    """The same, as long as the block runs."""
    before = gc.get_threshold()
    settle()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def give_back() -> None:
    """Returns freed pages of all threads' heaps. Takes about a millisecond, and nothing of the interpreter's time.

    What was allocated for a moment in one thread stays with it otherwise, below whatever was allocated after it.
    """
    if _trim is not None:
        _trim(0)


class Spare:
    """Gives back what work freed: now and then while it goes on, and once when it is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = clock() + EVERY_S
        self._worked = False

    def look(self, *, worked: bool) -> None:
        """To be called all the time. `worked`: since the last call?"""
        self._worked |= worked
        if self._worked and (time_s := self._clock()) >= self._next_s:
            self._worked, self._next_s = False, time_s + EVERY_S
            give_back()


def _found() -> Callable[[int], int] | None:
    """glibc's malloc_trim; other C libraries have none, and need none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


_trim = _found()
