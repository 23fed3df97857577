"""Bytes of a request -> a dict, strictly: UTF-8, RFC 8259, no name twice, no number beyond a double, not too deep."""

import json
import re
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from octavo.server.openai.errors import ApiError, invalid

MAX_DEPTH = 128
"""Arrays and objects within each other. What works on values recursively, as templates do, has room for these."""
MAX_CONTAINERS = 100_000
"""Arrays and objects in one body. Each is an object in memory: millions of `[]` fit into a few megabytes."""


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError 400 that says what is wrong and where."""
    containers, names = _counted(body)
    if containers > MAX_CONTAINERS:
        raise _unusable(f"it has {containers} arrays and objects, at most {MAX_CONTAINERS} are allowed")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.MsgspecError as error:
        raise _surrogate_in(body) or invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except ValueError as error:
        raise _unusable(str(error)) from None
    if not isinstance(value, dict):
        raise invalid(f"the body must be a JSON object, got {kind_of(value)}", code="invalid_json")
    if _count_names(value) != names:
        json.loads(body, object_pairs_hook=_unique)
    return value


def _surrogate_in(body: bytes) -> ApiError | None:
    """What is wrong where half of a surrogate pair is escaped in a string, which is no text. None: no such thing."""
    if b"\\u" not in body:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    path, text = next(_lone(value), (None, ""))
    if path is None:
        return None
    half = _SURROGATE.findall(text)[0]
    message = f"{path} has the lone surrogate \\u{ord(half):04x}, which is half of a character and no text"
    return invalid(message, path, "invalid_json")


def _lone(value: Any) -> Iterator[tuple[str, str]]:
    """The strings, and names, with half of a surrogate pair in them, each with the path that leads there."""
    level: list[tuple[str, Any]] = [("", value)]
    while level:
        for path, each in level:
            names = [each] if type(each) is str else each if type(each) is dict else ()
            yield from ((path or "the body", text) for text in names if not text.isascii() and _SURROGATE.search(text))
        level = [inner for path, each in level for inner in _within(path, each)]


def _within(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if type(value) is dict:
        return [(f"{path}.{name}".removeprefix("."), each) for name, each in value.items()]
    return [(f"{path}[{index}]", each) for index, each in enumerate(value)] if type(value) is list else ()


_SURROGATE = re.compile("[\ud800-\udfff]")


def _counted(body: bytes) -> tuple[int, int]:
    """The arrays and objects in a JSON text, and the names: counted where no string is, so without decoding it."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{"), outside.count(b":")


def _count_names(value: dict[str, Any]) -> int:
    """The names that are left in a decoded object: fewer than there were, where one came twice.

    Raises ApiError 400 where it is nested too deeply.
    """
    count, depth = 0, 0
    level: list[Any] = [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        count += sum([len(each) for each in level if type(each) is dict])
        level = [inner for each in level for inner in _containers(each)]
    return count


def _containers(value: Any) -> Iterable[Any]:
    items = value.values() if type(value) is dict else value
    if _NESTING.isdisjoint(map(type, items)):
        return ()
    return [item for item in items if type(item) in _NESTING]


_NESTING = frozenset({dict, list})


def _too_deep() -> ApiError:
    return _unusable(f"it is nested more than {MAX_DEPTH} deep")


def _unusable(why: str) -> ApiError:
    return invalid(f"the body is not usable: {why}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Raises ApiError for a name that an object has twice. Which of the two is meant, nobody can say."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(
                400, f"the name {shown(name)} comes twice in one JSON object", param=name, code="invalid_json"
            )
        seen.add(name)


_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """What a decoded JSON value is, in words."""
    return _KINDS.get(type(value), type(value).__name__)


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxdict = 12
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 77


def shown(value: object) -> str:
    """A JSON value as an error message quotes it: short, and with its type where that is the point."""
    text = json.dumps(value) if isinstance(value, bool | None) else _SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_nested(text: str, param: str) -> None:
    """Raises ApiError 400 where `text` is JSON that is not usable either: it is read later, as a value in the body."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    containers, _ = _counted(text.encode())
    try:
        if containers > MAX_CONTAINERS:
            raise _unusable(f"it has {containers} arrays and objects, at most {MAX_CONTAINERS} are allowed")
        value = json.loads(text)
        _count_names({"": value})
    except ApiError as error:
        raise invalid(error.message.replace("the body", param, 1), param) from None
    except RecursionError:
        raise invalid(f"{param} is not usable: it is nested more than {MAX_DEPTH} deep", param) from None
    except ValueError:
        return  # no JSON: it stays the text that it is
