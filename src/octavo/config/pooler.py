"""Pooler: how embeddings are made where a request does not say, read from the JSON of `--pooler-config`, strictly."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

POOLING_TYPES = ("MEAN", "LAST")
_SAME = {"seq_pooling_type": "pooling_type", "normalize": "use_activation"}
"""vLLM's other names -> ours."""
_KEYS = ("pooling_type", "use_activation", "dimensions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """One value for a whole server or `LLM`. Why these defaults: docs/decisions/embeddings.md."""

    pooling_type: str = "LAST"
    """Of which hidden states an embedding is the mean: of all, or of the last token's alone."""
    use_activation: bool = True
    """Do vectors get the length 1?"""
    dimensions: int | None = None
    """How many numbers of it are kept, the first. None: all."""


def read_pooler(text: str | None) -> Pooler:
    """What this JSON asks for; None: the defaults. Raises ValueError that says what is wrong."""
    given: Any = {} if text is None else _json(text)
    if not isinstance(given, dict):
        raise ValueError("it must be an object")
    named = [(_SAME.get(key, key), value) for key, value in cast(Mapping[str, Any], given).items()]
    values = dict(named)
    if len(values) < len(named):
        raise ValueError(
            f"a key is there under two names: {', '.join(f'{new} is {old}' for old, new in _SAME.items())}"
        )
    if unknown := values.keys() - {*_KEYS}:
        raise ValueError(f"{min(unknown)!r} is not one of its keys: {', '.join((*_KEYS, *_SAME))}")
    return _checked({key: value for key, value in values.items() if value is not None})


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("it is not JSON") from None


def _checked(values: Mapping[str, Any]) -> Pooler:
    pooler = Pooler(**values)
    if pooler.pooling_type not in POOLING_TYPES:
        raise ValueError(f"pooling_type must be {' or '.join(POOLING_TYPES)}, got {pooler.pooling_type!r}")
    if type(pooler.use_activation) is not bool:
        raise ValueError(f"use_activation must be true or false, got {pooler.use_activation!r}")
    if pooler.dimensions is not None and (type(pooler.dimensions) is not int or pooler.dimensions < 1):
        raise ValueError(f"dimensions must be a whole number from 1, got {pooler.dimensions!r}")
    return pooler
