"""Heap: what was freed goes back to the system, where the C library can be told so."""

import ctypes
import sys
from collections.abc import Callable

from octavo.engine.clock import Clock

EVERY_S = 10.0
"""An engine at work keeps no more than what it freed within this time: else 40 MB after minutes of mixed requests."""


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
