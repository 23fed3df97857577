"""Window: the last values of something, each with a weight, and their quantiles."""

from bisect import bisect_left, insort
from collections import deque


class Window:
    """Up to `size` values. Adding one costs a search and a short move; reading a high quantile, a look at the top."""

    __slots__ = ("_arrived", "_size", "_sorted", "weight")

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrived: deque[tuple[float, int]] = deque()
        self._sorted: list[tuple[float, int]] = []
        self.weight = 0
        """Of all values together."""

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float, weight: int = 1) -> None:
        """Counts like `weight` equal values. The oldest one goes where there are too many."""
        if len(self._arrived) == self._size:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self.weight -= oldest[1]
        self._arrived.append((value, weight))
        insort(self._sorted, (value, weight))
        self.weight += weight

    def quantile(self, share: float) -> float | None:
        """The least value that `share` of the weight does not exceed; None where there is none."""
        above = (1.0 - share) * self.weight
        for value, weight in reversed(self._sorted):
            above -= weight
            if above < 0:
                return value
        return self._sorted[0][0] if self._sorted else None

    def clear(self) -> None:
        self._arrived.clear()
        self._sorted.clear()
        self.weight = 0
