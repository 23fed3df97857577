"""Calls that models write as JSON objects: Hermes, Qwen, Llama 3, Mistral, bare arrays. One reader and a table."""

import json
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from octavo.text.calls.reading import Brackets, Call, Said, States, as_json, first_of, held_from

_HEADER = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]{1,128})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_NAMED = re.compile(r"([\w.-]{1,128})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s{0,16}(?=\{)")
"""Mistral's newer form: the name, and then the arguments."""
_NAMED_SO_FAR = re.compile(r"[\w.-]{0,128}(\[[\w\[\]]{0,80})?\s{0,16}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What stands around the objects. White space may be anywhere between."""

    marker: str = ""
    """Begins calls anywhere in the text."""
    starts: tuple[str, ...] = ()
    """Begin calls where the text begins."""
    opens: tuple[str, ...] = ()
    """May stand before the first object."""
    separators: tuple[str, ...] = ()
    """Between a call and the next."""
    closes: tuple[str, ...] = ()
    """After the last."""
    names_first: bool = False
    """A name and its arguments may stand instead of an object."""


class JsonReader(States):
    """Reads the calls of a dialect (`reading.Reader`)."""

    def __init__(self, dialect: Dialect, names: Set[str]) -> None:
        super().__init__(names, self._start)
        self._dialect = dialect
        self._then = self._rest
        """What follows the arguments."""

    @property
    def inside(self) -> bool:
        return self._state in (self._arguments, self._rest)

    def finish(self) -> str:
        held, self._held = self._passed + self._held, ""
        if self._state in (self._arguments, self._rest, self._after):
            return ""
        return "" if self.num_calls and held.isspace() else held

    def _start(self, said: Said) -> bool:
        dialect = self._dialect
        found = first_of(self._held, [*filter(None, [dialect.marker]), *dialect.starts])
        if found is None:
            return False
        self._state = self._text
        if found.literal in dialect.starts:
            self._state = self._call
        return True

    def _text(self, said: Said) -> bool:
        marker = self._dialect.marker
        place = self._held.find(marker) if marker else -1
        if place >= 0:
            before = self._held[:place].rstrip()
            said.write(before)
            self._pass(place + len(marker), since=len(before))
            self._state = self._call
            return True
        end = held_from(self._held, marker) if marker else len(self._held)
        said.write(self._held[:end])
        self._held = self._held[end:]
        return False

    def _call(self, said: Said) -> bool:
        """Before an object."""
        dialect = self._dialect
        found = first_of(self._held, ["{", *dialect.opens])
        if found is None:
            return False
        if found.literal in dialect.opens:
            self._pass(found.end)
        elif found.literal or dialect.names_first:
            self._pass_space()
            self._brackets, self._state = Brackets(), self._object
        else:
            self._not_a_call(said)
        return True

    def _object(self, said: Said) -> bool:
        if not self._held.startswith("{"):
            return self._named(said)
        header = _HEADER.match(self._held)
        if header and header[1] in self._names:
            return self._begin(said, header[1], header.end(), self._rest)
        end = self._brackets.end_of_all(self._held)
        if end is None:
            return False
        call = _whole(self._held[:end], self._names)
        self._pass(end)
        if call is None:
            return self._not_a_call(said)
        said.add(Call(self.num_calls, *call))
        self.num_calls += 1
        return self._after_call()

    def _named(self, said: Said) -> bool:
        found = _NAMED.match(self._held)
        if found and found[1] in self._names:
            return self._begin(said, found[1], found.end(), self._after)
        return _NAMED_SO_FAR.fullmatch(self._held) is None and self._not_a_call(said)

    def _begin(self, said: Said, name: str, end: int, then: Callable[[Said], bool]) -> bool:
        said.add(Call(self.num_calls, name, ""))
        self.num_calls += 1
        self._held, self._passed = self._held[end:], ""
        self._brackets, self._state, self._then = Brackets(), self._arguments, then
        return True

    def _arguments(self, said: Said) -> bool:
        end = self._brackets.end(self._held)
        said.add(Call(self.num_calls - 1, None, self._held[:end]))
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._brackets, self._state = Brackets(depth=1), self._then
        return True

    def _rest(self, said: Said) -> bool:
        """Behind the arguments, up to the end of their object."""
        end = self._brackets.end(self._held)
        self._held = "" if end is None else self._held[end:]
        return end is not None and self._after_call()

    def _after_call(self) -> bool:
        self._passed, self._state = "", self._after
        return True

    def _after(self, said: Said) -> bool:
        dialect = self._dialect
        found = first_of(self._held, [*dialect.closes, *dialect.separators, *filter(None, [dialect.marker])])
        if found is None:
            return False
        if found.literal in dialect.closes:
            self._held = self._held[found.end :]
        elif found.literal in dialect.separators:
            self._pass(found.end)
            self._state = self._call
        else:
            self._state = self._text
        return True


def _whole(text: str, names: Set[str]) -> tuple[str, str] | None:
    """The name and the arguments of a complete object; None where it is no call."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    arguments = _object_of(value.get("arguments", value.get("parameters")))
    text_of = None if arguments is None else as_json(arguments)
    return None if text_of is None else (value["name"], text_of)


def _object_of(value: Any) -> Any:
    """Arguments as an object: none are an empty one, and some models write them as text once more."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}", parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
    return {} if value is None else value if isinstance(value, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
