"""Grammars: a StructuredOutput as a source for llguidance, and why it cannot be one. Without any vocabulary."""

import json
from collections.abc import Callable, Mapping

from octavo.core.structured import Structure, StructuredOutput
from octavo.text.lark import GrammarError, expression, quoted, schema_source, source
from octavo.text.structural import structural_source

_MOST_SHOWN = 300
_ONE_OF = (
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "oneOf of schemas that may hold at once is not supported: use anyOf",
)
"""What llguidance says to whoever calls it -> to whoever wrote the schema."""


def source_of(output: StructuredOutput) -> str:
    """What llguidance compiles. Raises GrammarError for what is known to be none without compiling."""
    return _SOURCES[output.kind](output.text)


def readable(message: str) -> str:
    """llguidance's message, without the source that it repeats."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines() if not _repeats(line)]
    text = "; ".join(filter(None, lines)).replace(*_ONE_OF)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _repeats(line: str) -> bool:
    """Is it a numbered line of the source, or the mark below one?"""
    return not line.strip(" ^") or (line.lstrip().split(" ", 1)[0].isdigit() and " | " in line)


def _choice(text: str) -> str:
    choices = dict.fromkeys(json.loads(text))
    return source("start: " + " | ".join(quoted(choice) or '""' for choice in choices))


def _grammar(text: str) -> str:
    """Lark as it is; GBNF, which has `::=`, translated."""
    if "::=" not in text:
        return source(text)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return source(gbnf_to_lark(text))
    except RecursionError:
        raise GrammarError("the grammar is too deeply nested") from None
    except Exception as error:  # noqa: BLE001 - the translation raises whatever comes
        raise GrammarError(f"it is no GBNF: {error}") from None


_SOURCES: Mapping[Structure, Callable[[str], str]] = {
    Structure.JSON_OBJECT: lambda _: schema_source({"type": "object"}),
    Structure.JSON_SCHEMA: lambda text: schema_source(json.loads(text)),
    Structure.REGEX: lambda text: source(f"start: {expression(text)}"),
    Structure.CHOICE: _choice,
    Structure.GRAMMAR: _grammar,
    Structure.STRUCTURAL_TAG: lambda text: structural_source(json.loads(text)),
}
