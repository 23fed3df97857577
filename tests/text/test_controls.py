"""Control tokens are found in texts, with the white space that they take along, in time that a text may take."""

import re

from hypothesis import given
from hypothesis import strategies as st

from octavo.text.controls import Control, Controls

CONTROLS = (Control("<mask>", 5, lstrip=True), Control("<end>", 6, rstrip=True), Control("<s>", 7))
SPACES = {5: r"\s*<mask>", 6: r"<end>\s*", 7: "<s>"}
pieces = st.sampled_from(["<mask>", "<end>", "<s>", "<", " ", "\n ", "a", "\u3000"])


@given(st.lists(pieces, max_size=12).map("".join))
def test_parts_are_those_of_the_plain_expression(text: str) -> None:
    """Which looks at each run of white space once for each of its characters."""
    found = re.split(f"({SPACES[5]}|{SPACES[6]}|{SPACES[7]})", text)
    ids = [next(token for token, pattern in SPACES.items() if re.fullmatch(pattern, part)) for part in found[1::2]]
    parts = list(Controls(CONTROLS).split(text))
    assert "".join(part for part, _ in parts) == text
    assert [token for _, token in parts if token is not None] == ids
    assert [part for part, token in parts if token is not None] == found[1::2]


def test_a_million_spaces_are_looked_at_once() -> None:
    """Not once for each of them: that took an hour, with the interpreter's lock held."""
    text = " " * 10**6
    assert list(Controls(CONTROLS).split(f"a{text}b<end>{text}c")) == [
        (f"a{text}b", None),
        (f"<end>{text}", 6),
        ("c", None),
    ]


@given(st.lists(pieces, max_size=12).map("".join))
def test_the_names_in_a_text_are_those_that_stand_in_it(text: str) -> None:
    assert Controls(CONTROLS).named_in(text) == {control.text for control in CONTROLS if control.text in text}
    assert Controls(()).named_in(text) == frozenset()
