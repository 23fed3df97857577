"""Checks: what is wrong with a value that is of the right type and in range; None where nothing is. And faults."""

import json
from dataclasses import dataclass
from typing import Any, cast

from octavo.config.pooler import read_pooler


def _origin(origin: str) -> str | None:
    return None if origin == "*" or "://" in origin else f"{origin!r} is no origin such as https://example.org"


def origins(origins: tuple[str, ...]) -> str | None:
    """Web origins."""
    return next((problem for problem in map(_origin, origins) if problem), None)


def names(names: tuple[str, ...]) -> str | None:
    """Names of a model."""
    return None if all(name.strip() for name in names) else "a name is empty"


def keys(keys: tuple[str, ...]) -> str | None:
    """API keys."""
    return None if all(key.isascii() and key.strip() == key and key for key in keys) else "a key is empty or not ASCII"


def fault(text: str) -> str | None:
    """A failure asked for."""
    return None if parse_fault(text) else f"it must be {FAULT_FORMS}"


SPECULATIVE_KEYS = ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


def speculative(text: str) -> str | None:
    """How to guess ahead, as JSON."""
    try:
        given: Any = json.loads(text)
    except ValueError:
        return "it is not JSON"
    wanted: dict[str, Any] = cast(dict[str, Any], given) if isinstance(given, dict) else {"method": None}
    if wanted.get("method", "ngram") != "ngram":
        return 'it must be an object, whose "method" can only be "ngram"'
    if unknown := wanted.keys() - {"method", *SPECULATIVE_KEYS}:
        return f"{min(unknown)!r} is not one of its keys: method, {', '.join(SPECULATIVE_KEYS)}"
    if any(type(wanted[key]) is not int for key in SPECULATIVE_KEYS if key in wanted):
        return f"{', '.join(SPECULATIVE_KEYS)} must be whole numbers"
    longest, shortest = wanted.get("prompt_lookup_max", 4), wanted.get("prompt_lookup_min", 2)
    if not 1 <= wanted.get("num_speculative_tokens", 0) <= 64:
        return "num_speculative_tokens must be there, and from 1 to 64"
    return None if 1 <= shortest <= longest <= 32 else "1 <= prompt_lookup_min <= prompt_lookup_max <= 32 must hold"


def pooler(text: str) -> str | None:
    """How embeddings are made, as JSON."""
    try:
        read_pooler(text)
    except ValueError as error:
        return str(error)
    return None


def endpoint(url: str) -> str | None:
    """The address of a collector."""
    return None if url.startswith(("http://", "https://")) else "it must begin with http:// or https://"


def root_path(path: str) -> str | None:
    """A proxy's path."""
    return None if path == "" or (path.startswith("/") and not path.endswith("/")) else "it must look like /prefix"


# -- faults ------------------------------------------------------------------------------------------------------------

FAULT_FORMS = "prefill-error, decode-error@N, engine-death@N, engine-freeze@N or slow-load=SECONDS"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure asked for at start-up, to test what others do about it."""

    kind: str
    """prefill-error | decode-error | engine-death | engine-freeze | slow-load"""
    at: float = 0
    """For the `@` kinds the decode step at which it happens, from 1; for slow-load the seconds."""


_FAULTS = {"prefill-error": "", "decode-error": "@", "engine-death": "@", "engine-freeze": "@", "slow-load": "="}


def parse_fault(text: str) -> Fault | None:
    """The Fault that `text` describes, or None where it describes none."""
    for kind, mark in _FAULTS.items():
        if text == kind and not mark:
            return Fault(kind)
        number = text.removeprefix(f"{kind}{mark}")
        if mark and number != text and number.isdecimal():
            return Fault(kind, int(number))
    return None
