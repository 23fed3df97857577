"""Bytes of a request -> a dict, strictly: UTF-8, RFC 8259, no name twice, no number beyond a double."""

import json
from typing import Any

import msgspec

from octavo.server.openai.errors import ApiError, invalid


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError 400 that says what is wrong and where."""
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_unique)
    except RecursionError:
        raise invalid("the body is not usable: it is nested too deeply", code="invalid_json") from None
    except msgspec.MsgspecError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except ValueError as error:
        raise invalid(f"the body is not usable JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"the body must be a JSON object, got {kind_of(value)}", code="invalid_json")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Raises ApiError for a name that an object has twice. Which of the two is meant, nobody can say."""
    if len(pairs) < 2:
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(400, f"the name {name!r} comes twice in one JSON object", param=name, code="invalid_json")
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


def shown(value: object) -> str:
    """A JSON value as an error message quotes it: short, and with its type where that is the point."""
    text = json.dumps(value, ensure_ascii=True) if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
