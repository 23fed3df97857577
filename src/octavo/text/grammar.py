"""Grammars: a StructuredOutput as a source for llguidance, and why it cannot be one. Without any vocabulary."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.core.structured import Structure, StructuredOutput

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
_MOST_SHOWN = 300


class GrammarError(ValueError):
    """A structured output that is none, or that takes too much: says what is wrong, for whoever wrote it."""


def source_of(output: StructuredOutput) -> str:
    """What llguidance compiles. Raises GrammarError for what is known to be none without compiling."""
    return _SOURCES[output.kind](output.text)


def readable(message: str) -> str:
    """llguidance's message, without the source that it repeats."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _repeats(line)]
    text = "; ".join(lines)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _repeats(line: str) -> bool:
    """Is it a numbered line of the source, or the mark below one?"""
    return line.strip() == "^" or (line.lstrip().split(" ", 1)[0].isdigit() and " | " in line)


def lark(text: str) -> str:
    """The source of a grammar in Lark's notation."""
    return json.dumps({"grammars": [{"lark_grammar": text}]}, ensure_ascii=False)


def quoted(text: str) -> str:
    """`text` as a string in Lark's notation; nothing at all where it is empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """A schema as a term in Lark's notation, with our bounds on white space."""
    return f"%json {json.dumps(_with_rules(schema), ensure_ascii=False)}"


def _with_rules(schema: Mapping[str, Any] | bool) -> Mapping[str, Any]:
    if isinstance(schema, bool):
        if not schema:
            raise GrammarError("the schema is false: nothing fits it")
        schema = {}
    return {**schema, "x-guidance": _JSON_RULES}


def _schema(text: str) -> str:
    schema = json.loads(text)
    return json.dumps({"grammars": [{"json_schema": _with_rules(schema)}]}, ensure_ascii=False)


def _regex(text: str) -> str:
    from llguidance import LLMatcher  # takes 0.1 s to import, and few need it

    return LLMatcher.grammar_from_regex(text)


def _choice(text: str) -> str:
    choices = dict.fromkeys(json.loads(text))
    return lark("start: " + " | ".join(quoted(choice) or '""' for choice in choices))


def _grammar(text: str) -> str:
    """Lark as it is; GBNF, which has `::=`, translated."""
    if "::=" not in text:
        return lark(text)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return lark(gbnf_to_lark(text))
    except RecursionError:
        raise GrammarError("the grammar is too deeply nested") from None
    except Exception as error:  # noqa: BLE001 - the translation raises whatever comes
        raise GrammarError(f"it is no GBNF: {error}") from None


# -- structural tags -------------------------------------------------------------------------------------------------


def tagged(tags: Sequence[tuple[str, str, str]], triggers: Sequence[str]) -> str:
    """The source of free text in which a trigger can only be the beginning of a tag.

    A tag is (begin, rule, end), its rule in Lark's notation; each begins with one of the triggers.
    """
    rules = ["start: " + ("(" + " | ".join(f"group_{i}" for i in range(len(triggers))) + ")* TEXT")]
    rules.append(r"TEXT: /(.|\n)*/")
    for i, trigger in enumerate(triggers):
        mine = [tag for tag in tags if tag[0].startswith(trigger)]
        bodies = [" ".join((quoted(begin[len(trigger) :]), rule, quoted(end))) for begin, rule, end in mine]
        rules.append(f"trigger_{i}[lazy]: TEXT {quoted(trigger)}")
        rules.append(f"group_{i}: trigger_{i} ({' | '.join(bodies)})")
    return lark("\n".join(rules))


def _structural_tag(text: str) -> str:
    """vLLM's `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`."""
    given = json.loads(text)
    structures, triggers = (given.get(name) if isinstance(given, dict) else None for name in ("structures", "triggers"))
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
        raise GrammarError("it must have `structures` and `triggers`, which are lists that are not empty")
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError("`triggers` must be strings that are not empty")
    tags = [_tag(structure) for structure in structures]
    for begin, _, _ in tags:
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise GrammarError(f"the structure that begins with {begin!r} begins with none of the triggers")
    used = [trigger for trigger in dict.fromkeys(triggers) if any(tag[0].startswith(trigger) for tag in tags)]
    return tagged(tags, used)


def _tag(structure: Any) -> tuple[str, str, str]:
    if not isinstance(structure, dict):
        raise GrammarError("each of `structures` must be an object with `begin`, `schema` and `end`")
    begin, schema, end = structure.get("begin"), structure.get("schema", True), structure.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict | bool):
        raise GrammarError("a structure has a `begin` and an `end`, which are strings, and a `schema`, an object")
    return begin, json_rule(schema), end


_SOURCES: Mapping[Structure, Callable[[str], str]] = {
    Structure.JSON_OBJECT: lambda _: _schema('{"type":"object"}'),
    Structure.JSON_SCHEMA: _schema,
    Structure.REGEX: _regex,
    Structure.CHOICE: _choice,
    Structure.GRAMMAR: _grammar,
    Structure.STRUCTURAL_TAG: _structural_tag,
}
