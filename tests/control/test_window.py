"""A window and its quantiles, against counting."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from octavo.control.window import Window

values = st.lists(st.tuples(st.integers(0, 20).map(float), st.integers(1, 9)), max_size=60)


@given(values, st.integers(1, 30), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_those_of_the_last_values(values: list[tuple[float, int]], size: int, share: float) -> None:
    window, kept = Window(size), deque[tuple[float, int]](maxlen=size)
    for value, weight in values:
        window.add(value, weight)
        kept.append((value, weight))
        assert (len(window), window.weight) == (len(kept), sum(weight for _, weight in kept))
        found, beyond = window.quantile(share), (1 - share) * window.weight
        assert found is not None
        assert sum(weight for value, weight in kept if value > found) <= beyond
        assert sum(weight for value, weight in kept if value >= found) > beyond


def test_the_top_hundredth_is_above_the_p99() -> None:
    window = Window(1000)
    for number in range(200):
        window.add(float(number))
    assert window.quantile(0.99) == 197.0, "198 and 199 are the two in two hundred"
    window.add(500.0, weight=10)
    assert window.quantile(0.99) == 500.0


def test_an_empty_one_has_none() -> None:
    window = Window(3)
    assert window.quantile(0.99) is None
    window.add(1.0)
    window.clear()
    assert window.quantile(0.99) is None and window.weight == len(window) == 0
