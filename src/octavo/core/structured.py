"""StructuredOutput: the form that an answer's text must have, as a value. What it means, text/grammar.py knows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.core.parameter import ParameterError

MAX_STRUCTURE_CHARS = 1 << 17
"""Of a schema, an expression, a grammar, or all choices together: larger ones take too long to compile."""
MAX_STRUCTURE_DEPTH = 64
"""Arrays and objects inside each other, in what is JSON."""


_MAPPINGS: tuple[type[Any], ...] = (Mapping,)
_OBJECTS: tuple[type[Any], ...] = (Mapping, bool)
_LISTS: tuple[type[Any], ...] = (list, tuple)
_CONTAINERS: tuple[type[Any], ...] = (Mapping, list, tuple)


class Structure(StrEnum):
    """What a StructuredOutput is written in. The values are vLLM's names, but for the first two, which are OpenAI's."""

    JSON_OBJECT = "json_object"
    """Any JSON object; there is no text."""
    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON."""
    REGEX = "regex"
    """A regular expression for the whole answer."""
    CHOICE = "choice"
    """One of several texts: a JSON array of strings."""
    GRAMMAR = "grammar"
    """A grammar in Lark's notation, or in llama.cpp's GBNF."""
    STRUCTURAL_TAG = "structural_tag"
    """Free text in which what stands between certain marks has a form: vLLM's object, as JSON."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """One `kind` of form, and its `text`. Whether the text is a form at all, whoever compiles it finds out.

    Raises ParameterError, which names `structured_outputs`, for what is too large or too deep, or no text.
    """

    kind: Structure
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Structure(self.kind))
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(f"structured_outputs.{self.kind}", self.text, "a string")
        if len(self.text) > MAX_STRUCTURE_CHARS:
            allowed = f"at most {MAX_STRUCTURE_CHARS:,} characters long"
            raise ParameterError(f"structured_outputs.{self.kind}", f"{len(self.text):,} characters", allowed)
        if not self.text.isascii() and max(self.text) > "\ud7ff":
            _check_encodable(f"structured_outputs.{self.kind}", self.text)


def _check_encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(name, text[error.start], "text, without lone surrogates") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer, with vLLM's names: exactly one of these is given.

    `json` is a schema, as a mapping or as JSON; `choice` is a list of texts. Raises ParameterError.
    """

    json: Any = None
    regex: str | None = None
    choice: Any = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None

    def __post_init__(self) -> None:
        self.output()

    def output(self) -> StructuredOutput:
        """The same as one kind and one text."""
        given = {name: value for name in _KINDS if (value := getattr(self, name)) is not None}
        if self.json_object is False:
            del given["json_object"]
        if len(given) != 1:
            raise ParameterError("structured_outputs", sorted(given), f"one of {', '.join(_KINDS)}")
        [(name, value)] = given.items()
        return StructuredOutput(_KINDS[name], _TEXTS[name](f"structured_outputs.{name}", value))


_KINDS = {
    "json": Structure.JSON_SCHEMA,
    "regex": Structure.REGEX,
    "choice": Structure.CHOICE,
    "grammar": Structure.GRAMMAR,
    "json_object": Structure.JSON_OBJECT,
    "structural_tag": Structure.STRUCTURAL_TAG,
}


def _plain(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(name, value, "a string that is not empty")
    return value


def _nothing(name: str, value: Any) -> str:
    if value is not True:
        raise ParameterError(name, value, "true, or left out")
    return ""


def _json(name: str, value: Any) -> str:
    """JSON as it came, or what a mapping is as JSON."""
    if isinstance(value, str):
        value = read_json(name, value)
    if not isinstance(value, _OBJECTS):
        raise ParameterError(name, value, "an object, or one as JSON")
    check_depth(name, value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ParameterError(name, value, f"what JSON can hold ({error})") from None


def _choices(name: str, value: Any) -> str:
    texts = list(value) if isinstance(value, _LISTS) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ParameterError(name, value, "a list of strings that is not empty")
    return json.dumps(texts, ensure_ascii=False)


_TEXTS = {
    "json": _json,
    "regex": _plain,
    "choice": _choices,
    "grammar": _plain,
    "json_object": _nothing,
    "structural_tag": _json,
}


def read_json(name: str, text: str) -> Any:
    """The value that `text` is in JSON. Raises ParameterError where it is none, or one too deep to read."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ParameterError(name, text, f"JSON ({error})") from None
    except RecursionError:
        raise ParameterError(name, text, f"JSON of at most {MAX_STRUCTURE_DEPTH} levels") from None


def check_depth(name: str, value: Any, most: int = MAX_STRUCTURE_DEPTH) -> None:
    """Raises ParameterError where arrays and objects lie too deep inside each other. Does not recurse."""
    level, depth = [value] if isinstance(value, _CONTAINERS) else [], 0
    while level:
        if depth == most:
            raise ParameterError(name, "more", f"of at most {most} levels, one inside the other")
        level = [inner for outer in level for inner in _inner(outer)]
        depth += 1


def _inner(value: Any) -> Sequence[Any]:
    inner: Sequence[Any] = list(value.values()) if isinstance(value, _MAPPINGS) else value
    return [each for each in inner if isinstance(each, _CONTAINERS)]
