"""Stop strings: the automaton against an oracle that looks at the whole text."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.sampling import MAX_TEXTS_CHARS, SamplingParams
from octavo.text.stops import StopStrings, stop_strings

_LETTERS = "ab"
_STOPS = st.lists(st.text(_LETTERS, min_size=1, max_size=5), min_size=1, max_size=5)
_TEXTS = st.lists(st.text(_LETTERS + "c", max_size=4), max_size=8)


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first complete stop string ends, and which it is: the longest that ends there."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(ends)[0], min(ends)[2]) if ends else None


def longest_held(text: str, stops: list[str]) -> int:
    """The length of the longest suffix that is the proper beginning of a stop string."""
    starts = {stop[:cut] for stop in stops for cut in range(len(stop))}
    return max(length for length in range(len(text) + 1) if text[len(text) - length :] in starts)


@given(stops=_STOPS, pieces=_TEXTS)
def test_stops_are_found_and_no_more_is_held_back_than_needed(stops: list[str], pieces: list[str]) -> None:
    matcher, state, seen = StopStrings(tuple(stops)), 0, ""
    for piece in pieces:
        state, length, stop = matcher.read(state, piece)
        found = first_complete(seen + piece, stops)
        if found is not None:
            assert (len(seen) + length, stop) == found
            return
        assert (length, stop) == (len(piece), None)
        seen += piece
        assert matcher.depth[state] == longest_held(seen, stops)


@given(stop=st.text(_LETTERS, min_size=1, max_size=4), text=st.text(_LETTERS, max_size=30))
def test_one_stop_is_str_find(stop: str, text: str) -> None:
    _, length, found = StopStrings((stop,)).read(0, text)
    place = text.find(stop)
    assert (length - len(stop) if found else -1) == place


def test_of_those_complete_at_once_the_longest_wins() -> None:
    assert StopStrings(("bc", "abc", "c")).read(0, "xabc")[1:] == (4, "abc")


def test_the_first_to_be_complete_wins_over_one_that_began_before() -> None:
    assert StopStrings(("abcdef", "cd")).read(0, "abcdef")[1:] == (4, "cd")


def test_a_text_without_a_first_letter_holds_nothing_back() -> None:
    assert StopStrings(("\n\n", "User:")).read(0, "hello there") == (0, 11, None)


def test_nothing_and_the_empty_string_stop_nothing() -> None:
    assert stop_strings(()) is None
    assert stop_strings(("",)) is None


def test_long_stops_take_memory_in_proportion() -> None:
    stop = "a" * 20000 + "b"
    matcher = StopStrings((stop,))
    state, length, found = matcher.read(0, "a" * 50000)
    assert (matcher.depth[state], length, found) == (20000, 50000, None)
    assert matcher.read(state, "b")[1:] == (1, stop)


def test_what_is_kept_of_stop_strings_that_a_client_may_send_is_bounded() -> None:
    """However many different ones come; those of one request are looked for by one matcher."""
    sent = [SamplingParams(stop=tuple(f"{place}{number:04}{'x' * 507}" for place in "abcdefg")) for number in range(60)]
    tracemalloc.start()
    try:
        for params in sent:
            assert stop_strings(params.stop) is stop_strings(params.stop)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 16 * MAX_TEXTS_CHARS * 500
