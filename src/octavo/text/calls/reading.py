"""What readers of tool calls have in common: the text of an answer in, its content and its calls out, as they come."""

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """What a piece of text adds to a call. The first of a call has its name; `arguments` of all, joined, are JSON."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Said:
    """What a piece of text adds to an answer: content and calls, in the order of the text."""

    parts: list[str | Call] = field(default_factory=list[str | Call])

    @property
    def content(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    def write(self, content: str) -> None:
        """More content; joined with the last part, where that is some."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, str):
            self.parts[-1] = last + content
        elif content:
            self.parts.append(content)

    def add(self, call: Call) -> None:
        """One more piece of a call; joined with the last part, where that is of the same."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, Call) and last.index == call.index:
            self.parts[-1] = replace(last, arguments=last.arguments + call.arguments)
        else:
            self.parts.append(call)


class Reader(Protocol):
    """Reads the text of one choice. What all pieces add, joined, does not depend on how the text was cut.

    A call begins when its name is known to be one of the tools and its arguments begin; what does not come so far is
    content, as it stands. Held back is only what may be the beginning of a call, with the white space before it.
    """

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        ...

    @property
    def inside(self) -> bool:
        """Has a call begun that is not complete?"""
        ...

    def push(self, text: str) -> Said: ...

    def finish(self) -> str:
        """What was held back: content after all."""
        ...


class Named:
    """The reader of an answer that is the arguments of one function, which was known before."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name
        self._brackets = Brackets()
        self.num_calls = 0
        self.inside = False

    def push(self, text: str) -> Said:
        said = Said()
        if text:
            self.inside = (self._name is not None or self.inside) and self._brackets.end(text) is None
            said.add(Call(0, self._name, text))
            self._name, self.num_calls = None, 1
        return said

    def finish(self) -> str:
        return ""


class States:
    """What readers are that wait for more text in one of several states.

    A state is a method. It takes what it can from what is held, and says whether there is more to do.
    """

    def __init__(self, names: Set[str], start: Callable[[Said], bool]) -> None:
        """`start` is the state in which the text begins."""
        self._names = names
        self._state = start
        self._held = ""
        self._passed = ""
        """Text of a call that may turn out to be none."""
        self._brackets = Brackets()
        self.num_calls = 0

    def push(self, text: str) -> Said:
        said = Said()
        self._held += text
        while self._held and self._state(said):
            pass
        return said

    def _text(self, said: Said) -> bool:
        """The state in which all is content."""
        said.write(self._held)
        self._held = ""
        return False

    def _pass(self, end: int, since: int = 0) -> None:
        self._passed += self._held[since:end]
        self._held = self._held[end:]

    def _pass_space(self) -> None:
        self._pass(len(self._held) - len(self._held.lstrip()))

    def _not_a_call(self, said: Said) -> bool:
        """What was passed is content, and what follows may be anything."""
        said.write(self._passed)
        self._passed, self._state = "", self._text
        return True


class Brackets:
    """Finds where brackets that are open are closed again, in text that comes in pieces: what is in quotes is none."""

    __slots__ = ("_depth", "_escaped", "_looked_at", "_quote", "_quotes")

    def __init__(self, quotes: str = '"', depth: int = 0) -> None:
        """`depth`: how many are open before the text."""
        self._quotes = quotes
        self._depth = depth
        self._quote = ""
        self._escaped = False
        self._looked_at = 0

    def end(self, text: str) -> int | None:
        """Where in this piece the text behind the last closing bracket begins; None where it is not in it."""
        for place, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quote:
                self._in_quotes(character)
            elif character in self._quotes:
                self._quote = character
            elif character in "{[(":
                self._depth += 1
            elif character in "}])":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None

    def end_of_all(self, text: str) -> int | None:
        """The same for all pieces so far, joined. Only what is new in them is looked at."""
        start, self._looked_at = self._looked_at, len(text)
        end = self.end(text[start:])
        return None if end is None else start + end

    def _in_quotes(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == self._quote:
            self._quote = ""


class Held(NamedTuple):
    """The first of some literals in a text, behind its white space."""

    literal: str | None
    """None: there is none, and there will be none."""
    end: int
    """Where the text behind it begins."""


def first_of(text: str, literals: Sequence[str]) -> Held | None:
    """Which literal the text begins with. None while that is open."""
    stripped = text.lstrip()
    for literal in literals:
        if stripped.startswith(literal):
            return Held(literal, len(text) - len(stripped) + len(literal))
    if any(literal.startswith(stripped) for literal in literals):
        return None
    return Held(None, 0)


def held_from(text: str, marker: str) -> int:
    """Where the part of `text` begins that may be the beginning of `marker`, with the white space before it."""
    longest = min(len(marker) - 1, len(text))
    count = next((count for count in range(longest, 0, -1) if text.endswith(marker[:count])), 0)
    return len(text[: len(text) - count].rstrip())


def as_json(value: Any) -> str | None:
    """`value` as JSON; None where JSON cannot hold it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a character, which only JSON's own notation can hold
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return text
