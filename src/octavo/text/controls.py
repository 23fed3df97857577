"""Control tokens in text: found where a template wrote them, and told from user text that only looks the same.

A template joins its own text and the users' into one string, so where a control token came from must be marked before:
a character that occurs nowhere else goes into the look-alikes, and is taken out again when the prompt is encoded.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Control:
    """A control token as text, and whether it takes the white space beside it along."""

    text: str
    token_id: int
    lstrip: bool = False
    rstrip: bool = False

    @property
    def pattern(self) -> str:
        return (r"(?:(?<!\s)\s+)?" if self.lstrip else "") + re.escape(self.text) + (r"\s*" if self.rstrip else "")


class Controls:
    """All control tokens of a vocabulary. Immutable; the tables are made when they are first needed."""

    def __init__(self, controls: Iterable[Control]) -> None:
        self._controls = sorted(controls, key=lambda control: len(control.text), reverse=True)
        self._ids = {control.text: control.token_id for control in self._controls}

    def __contains__(self, text: str) -> bool:
        return text in self._ids

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in parts, in order: each control token with its id, what lies between them with None."""
        if not self._controls:
            yield text, None
            return
        for index, part in enumerate(self._splitter.split(text)):
            if part:
                yield part, (self._ids.get(part) or self._ids[part.strip()]) if index % 2 else None

    def named_in(self, text: str) -> frozenset[str]:
        """The control tokens whose text stands in this one, whether they count there or not."""
        return frozenset(self._literal.findall(text)) if self._contained(text) else frozenset()

    def threatened(self, text: str) -> bool:
        """Would `guard` put a mark into this text?"""
        return self._contained(text) or self._ends_early(text) or self._begins_late(text)

    def guard(self, text: str, mark: str) -> str:
        """The text with `mark` wherever it could be, or become part of, a control token.

        After the first character of each look-alike; also at the beginning where the text begins with the end of a
        control token, and at the end where it ends with the beginning of one: two texts side by side make none either.
        (Only a text from the very middle of one is left: templates write `<|` + role + `|>`.)
        """
        inside = text
        if self._contained(text):
            inside = self._look_alike.sub(lambda match: match[0] + mark, text)
        return (mark if self._begins_late(text) else "") + inside + (mark if self._ends_early(text) else "")

    def _contained(self, text: str) -> bool:
        return any(first in text for first in self._firsts) and self._look_alike.search(text) is not None

    def _ends_early(self, text: str) -> bool:
        return any(text[-length:] in self._starts for length in range(1, min(self._longest, len(text) + 1)))

    def _begins_late(self, text: str) -> bool:
        return any(text[:length] in self._ends for length in range(1, min(self._longest, len(text) + 1)))

    @cached_property
    def _splitter(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(control.pattern for control in self._controls) + ")")

    @cached_property
    def _literal(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(control.text) for control in self._controls))

    @cached_property
    def _look_alike(self) -> re.Pattern[str]:
        """The first character of each, overlapping ones too."""
        return re.compile("(?s)(?=" + "|".join(re.escape(control.text) for control in self._controls) + ").")

    @cached_property
    def _longest(self) -> int:
        return max((len(text) for text in self._ids), default=0)

    @cached_property
    def _firsts(self) -> frozenset[str]:
        return frozenset(text[0] for text in self._ids)

    @cached_property
    def _starts(self) -> frozenset[str]:
        return frozenset(text[:cut] for text in self._ids for cut in range(1, len(text)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(text[cut:] for text in self._ids for cut in range(1, len(text)))


def unused_characters(value: Any) -> Iterator[str]:
    """Characters that occur nowhere in a JSON value, of those that no text should hold: noncharacters, private use."""
    used = {character for text in texts_in(value) for character in set(text)}
    for first, last in ((0xFDD0, 0xFDEF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)):
        yield from (chr(code) for code in range(first, last + 1) if chr(code) not in used)


def texts_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
