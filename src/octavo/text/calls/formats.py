"""The forms in which models write tool calls: how to read each, and what a form that is enforced looks like."""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from octavo.text.calls.json_calls import Dialect, JsonReader
from octavo.text.calls.pythonic import PythonicReader
from octavo.text.calls.reading import Reader

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """How calls are written where a grammar enforces them: always as JSON, and as near as may be to the model's way."""

    dialect: Dialect
    """Reads it."""
    begin: str
    """Before a call's name."""
    middle: str
    """Between its name and its arguments."""
    end: str
    separator: str
    around: tuple[str, str] = ("", "")

    def tags(self, tools: Mapping[str, Json]) -> list[Json]:
        """A tag for each function: its name -> the schema of its arguments."""
        return [
            {
                "type": "tag",
                "begin": self.begin + json.dumps(name) + self.middle,
                "content": {"type": "json_schema", "json_schema": schema},
                "end": self.end,
            }
            for name, schema in tools.items()
        ]

    def calls(self, tools: Mapping[str, Json], *, several: bool) -> Json:
        """The format (of a structural tag) of one call, or of one and more."""
        tags = {
            "type": "tags_with_separator",
            "tags": self.tags(tools),
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not several,
        }
        before, after = ({"type": "const_string", "value": value} for value in self.around)
        return {"type": "sequence", "elements": [before, tags, after]} if self.around[0] else tags

    def free(self, tools: Mapping[str, Json], *, several: bool) -> Json:
        """The format of free text in which calls, and nothing else that begins like one, may be."""
        marker = self.dialect.marker
        if marker:
            return {
                "type": "triggered_tags",
                "triggers": [marker],
                "tags": self.tags(tools),
                "stop_after_first": not several,
            }
        first = self.around[0] or self.begin[0]
        text = {"type": "regex", "pattern": rf"([^\s\{first}](.|\n)*)?"}
        return {"type": "or", "elements": [self.calls(tools, several=several), text]}


@dataclass(frozen=True, slots=True)
class Format:
    """One form of tool calls."""

    read: Callable[[Set[str]], Reader]
    """A reader of free text, for the names of the tools."""
    written: Written
    controls: tuple[str, ...] = ()
    """What may be control tokens, and must stay in the text to be read."""
    id_len: int = 24
    """Characters of a call's id behind `call_`; 9 in all where it is 9, as Mistral's templates ask for."""


_HERMES = Dialect("<tool_call>", closes=("</tool_call>",))
_LLAMA = Dialect("<|python_tag|>", starts=("{",), separators=(";",))
_MISTRAL = Dialect("[TOOL_CALLS]", opens=("[",), separators=(",",), closes=("]",), names_first=True)
_BARE = Dialect(starts=("{",), separators=(";",))
_ARRAY = Dialect(starts=("[",), opens=("[",), separators=(",",), closes=("]",))

_ARRAY_WRITTEN = Written(_ARRAY, '{"name": ', ', "arguments": ', "}", ", ", ("[", "]"))
_BARE_WRITTEN = Written(_BARE, '{"name": ', ', "parameters": ', "}", "; ")
_HERMES_WRITTEN = Written(_HERMES, '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n")

FORMATS: Mapping[str, Format] = {
    "hermes": Format(lambda names: JsonReader(_HERMES, names), _HERMES_WRITTEN, ("<tool_call>", "</tool_call>")),
    "llama3_json": Format(lambda names: JsonReader(_LLAMA, names), _BARE_WRITTEN, ("<|python_tag|>",)),
    "mistral": Format(
        lambda names: JsonReader(_MISTRAL, names), _ARRAY_WRITTEN, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), 9
    ),
    "pythonic": Format(PythonicReader, _ARRAY_WRITTEN, ("<|python_start|>", "<|python_end|>")),
}
"""vLLM's names of parsers -> what they read."""

_SIGNS: Sequence[tuple[str, str]] = (
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
    ("func_name1(params_name1", "pythonic"),
)


def format_of(template: str) -> str:
    """The form that a chat template tells its model to write; Hermes's where it does not say, which is what
    `untaught` asks for, too.
    """
    return next((name for sign, name in _SIGNS if sign in template), "hermes")


def arguments_schema(parameters: Json | None) -> Json:
    """The schema of a function's arguments, which are an object: an empty one, where it names no parameters."""
    said = {name for name, value in (parameters or {}).items() if value or name not in ("properties", "required")}
    if said <= {"type", "$schema"}:
        return {"type": "object", "additionalProperties": False}
    return {"type": "object", **(parameters or {})}
