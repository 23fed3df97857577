"""Terms of grammars in Lark's notation, as llguidance reads it: strings, expressions, schemas; and whole sources."""

import json
from collections.abc import Mapping
from typing import Any

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
    return {**({} if schema is True else schema), "x-guidance": _JSON_RULES}
