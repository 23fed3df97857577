"""The window forgets what is old, and its percentiles are those of what is in it, within the width of a bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.window import SECONDS, Window

latencies = st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=50)


@given(latencies, st.floats(0.01, 1.0))
def test_a_percentile_is_near_the_latency_of_that_rank(seconds: list[float], share: float) -> None:
    window = Window(0.0)
    for each in seconds:
        window.note("x", each, 1.0)
    count, (found,) = window.percentiles("x", 1.0, [share])
    rank = -(-len(seconds) * share // 1)
    exact = sorted(seconds)[max(0, int(rank) - 1)]
    assert count == len(seconds) and found == pytest.approx(exact, rel=0.1)


def test_rates_are_over_the_window_or_over_what_there_was_of_it() -> None:
    window = Window(100.0)
    window.count("x", 30, 100.5)
    assert window.rate("x", 100.9) == 30
    assert window.rate("x", 110.0) == 3
    assert window.rate("x", 100.0 + SECONDS - 0.1) == pytest.approx(30 / (SECONDS - 0.1))
    assert window.rate("x", 101.0 + SECONDS) == 0
    assert window.percentiles("never", 101.0, [0.5, 0.9]) == (0, [None, None])


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 9)), max_size=60))
def test_what_is_in_the_window_is_counted_and_nothing_else_and_its_size_is_bounded(
    counted: list[tuple[float, int]],
) -> None:
    window = Window(0.0)
    for time_s, number in sorted(counted):
        window.count("x", number, time_s)
    now = max((time_s for time_s, _ in counted), default=0.0)
    due = sum(number for time_s, number in counted if int(time_s) > now - SECONDS)
    assert window.total("x", now) == due
    assert len(window._slots) <= SECONDS
