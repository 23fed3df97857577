"""Time for the engine: seconds on one clock that both processes share, so that times can be compared anywhere."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds that never go back. Policy is given its values; it never calls it."""

now: Clock = time.monotonic
"""Linux and macOS: the same clock in each process of the machine, since boot."""
