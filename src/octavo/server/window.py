"""Window: what happened in the last seconds: rates, and percentiles of latencies. Fixed in size, whatever happens."""

from collections import Counter, deque
from collections.abc import Iterable
from math import log2

SECONDS = 30
_PER_DOUBLING = 8
"""Latencies are told apart where they differ by a factor of 2 ** (1 / 8), about 9 %."""
_LEAST_S = 1e-6


class Slot:
    """One second."""

    __slots__ = ("counts", "latencies", "second")

    def __init__(self, second: int) -> None:
        self.second = second
        self.counts = Counter[str]()
        self.latencies: dict[str, Counter[int]] = {}


class Window:
    """Counts and latencies by name, in slots of a second; those that are too old are gone."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._slots: deque[Slot] = deque([Slot(int(began_s))], maxlen=SECONDS)

    def count(self, name: str, number: int, time_s: float) -> None:
        self._slot(time_s).counts[name] += number

    def note(self, name: str, seconds: float, time_s: float, times: int = 1) -> None:
        """A latency that there was so many times."""
        latencies = self._slot(time_s).latencies
        if name not in latencies:
            latencies[name] = Counter()
        latencies[name][int(log2(max(seconds, _LEAST_S) / _LEAST_S) * _PER_DOUBLING)] += times

    def rate(self, name: str, now: float) -> float:
        """A second's worth, over the window, or over as much of it as there was."""
        return self.total(name, now) / self.length_s(now)

    def total(self, name: str, now: float) -> int:
        return sum(slot.counts[name] for slot in self._recent(now))

    def length_s(self, now: float) -> float:
        """At least a second."""
        return max(1.0, min(float(SECONDS), now - self._began_s))

    def percentiles(self, name: str, now: float, shares: Iterable[float]) -> tuple[int, list[float | None]]:
        """How many there were, and the latency that each share of them did not exceed; None where there were none."""
        merged = sum((slot.latencies.get(name, Counter[int]()) for slot in self._recent(now)), Counter[int]())
        total = merged.total()
        return total, [_at(merged, share * total) if total else None for share in shares]

    def _slot(self, time_s: float) -> Slot:
        """Time never goes far back: what comes late counts where we are."""
        if int(time_s) > self._slots[-1].second:
            self._slots.append(Slot(int(time_s)))
        return self._slots[-1]

    def _recent(self, now: float) -> list[Slot]:
        return [slot for slot in self._slots if slot.second > now - SECONDS]


def _at(counts: Counter[int], rank: float) -> float:
    """The middle of the bucket in which the one with this rank is."""
    below = 0
    for bucket in sorted(counts):
        below += counts[bucket]
        if below >= rank:
            return _LEAST_S * 2 ** ((bucket + 0.5) / _PER_DOUBLING)
    return 0.0
