"""Histogram: how many values are up to each bound, and their sum. And all those of an engine, with their bounds."""

from bisect import bisect_left
from collections.abc import Sequence

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
"""From 1 ms: one token of a small model takes no longer."""
LONG_S = (*SHORT_S, 20, 40, 80, 160, 320, 640, 2560)
TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
STEP_TOKENS = tuple(2**exponent for exponent in range(15))
FEW = (0, 1, 2, 3, 4, 5, 10, 20, 50, 100)
"""Choices, preemptions: most requests have one, or none."""


class Histogram:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative, as Prometheus wants them, and the sum."""
        below, pairs = 0, []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            below += count
            pairs.append((bound, float(below)))
        return pairs, self.total


class Spreads:
    """How times and sizes are spread, of requests, choices and steps."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(LONG_S)
        self.inter_token_latency = Histogram(SHORT_S)
        self.time_per_output_token = Histogram(SHORT_S)
        self.e2e_latency = Histogram(LONG_S)
        self.queue_time = Histogram(LONG_S)
        self.prefill_time = Histogram(LONG_S)
        self.decode_time = Histogram(LONG_S)
        self.inference_time = Histogram(LONG_S)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.request_longest = Histogram(TOKENS)
        self.request_max_tokens = Histogram(TOKENS)
        self.request_computed_tokens = Histogram(TOKENS)
        self.request_choices = Histogram(FEW)
        self.request_preemptions = Histogram(FEW)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.step_time = Histogram(SHORT_S)
        self.block_lifetime = Histogram(LONG_S)
