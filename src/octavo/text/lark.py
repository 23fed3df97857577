"""Terms of grammars in Lark's notation, as llguidance reads it: strings, expressions, schemas; and whole sources."""

import json
from collections.abc import Mapping
from math import inf, nextafter
from typing import Any

from octavo.core.parameter import shown

_WHITE_SPACE = r" |\n( {0,16}|\t{0,8})"
"""Between the tokens of JSON: nothing, one space, or a new line with its indentation. Never without an end."""
_JSON_RULES = {
    "whitespace_flexible": True,
    "whitespace_pattern": _WHITE_SPACE,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}


class GrammarError(ValueError):
    """A structured output that is none, or that takes too much: says what is wrong, for whoever wrote it."""


def source(rules: str) -> str:
    """What llguidance compiles: rules in Lark's notation, of which `start` is the whole answer."""
    return json.dumps({"grammars": [{"lark_grammar": rules}]}, ensure_ascii=False)


def schema_source(schema: Any) -> str:
    """The same for a schema alone."""
    return json.dumps({"grammars": [{"json_schema": _with_rules(schema)}]}, ensure_ascii=False)


def quoted(text: str) -> str:
    """`text` as a term; nothing at all where it is empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def expression(pattern: str) -> str:
    """A regular expression as a term."""
    from llguidance import regex_to_lark  # takes 0.1 s to import, and few need it

    return "/" + regex_to_lark(pattern).replace("\n", "\\n") + "/"


def json_rule(schema: Any) -> str:
    """A schema as a term, with our bounds on white space."""
    return f"%json {json.dumps(_with_rules(schema), ensure_ascii=False)}"


def _with_rules(schema: Any) -> Mapping[str, Any]:
    if schema is False:
        raise GrammarError("the schema is false: nothing fits it")
    if not isinstance(schema, Mapping) and schema is not True:
        raise GrammarError("a schema must be an object")
    return {**({} if schema is True else _bounded(schema)), "x-guidance": _JSON_RULES}


_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""What stands in a schema and is none."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""What has schemas under names, which may be those of keywords."""
_FURTHEST = 2**63 - 1024
"""The largest double below 64 bits."""


def _bounded(schema: Any) -> Any:
    """The schema with bounds that llguidance understands. It makes doubles of them, then 64 bits, and so moves them.

    They are moved inwards before. Raises GrammarError where nothing is left within.
    """
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {name: _bounded_keyword(name, value) for name, value in schema.items()}


def _bounded_keyword(name: str, value: Any) -> Any:
    if name in _VALUES:
        return value
    if name in _NAMED and isinstance(value, Mapping):
        return {each: _bounded(schema) for each, schema in value.items()}
    return _bound(name, _bounded(value))


def _bound(name: str, value: Any) -> Any:
    if name not in _LOWER + _UPPER or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    lower = name in _LOWER
    if value > _FURTHEST if lower else value < -_FURTHEST:
        raise GrammarError(f"{name} is {shown(value)}, and numbers beyond 64 bits are not understood")
    near = max(value, -_FURTHEST) if lower else min(value, _FURTHEST)
    moved = float(near)
    excluded = name.startswith("exclusive") and abs(near) >= 2**53  # where adding 1 is lost in rounding
    if excluded or (moved != near and (moved < near) == lower):
        moved = nextafter(moved, inf if lower else -inf)
    return int(moved) if moved.is_integer() else moved
