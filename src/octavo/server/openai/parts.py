"""Parts: arrays of typed objects, which protocols make content, conversations and answers of. Each type is a class."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.server.openai.body import shown
from octavo.server.openai.errors import unsupported
from octavo.server.openai.schema import Part, path_of, validate

Place = tuple[int | str, ...]
"""Where in a body something is."""
TextPart = dict[str, Any]


class Worded(Part):
    """A part that is text."""

    @property
    def words(self) -> str:
        raise NotImplementedError


def typed(value: dict[str, Any], place: Place, kinds: Mapping[str, type[Part]]) -> Part:
    """The object as what its `type` says. Raises ApiError 400 for a type that is none of these, or a wrong field."""
    given = value.get("type")
    kind = kinds.get(given) if isinstance(given, str) else None
    if kind is None:
        path = path_of((*place, "type"))
        raise unsupported(path, f"{path} is {shown(given)}, and can here be {_listed(kinds)}")
    return validate(kind, value, place)


def _listed(kinds: Mapping[str, Any]) -> str:
    *most, last = kinds
    return f"{', '.join(most)} or {last} only" if most else f"{last} only"


def texts(content: str | Sequence[dict[str, Any]], place: Place, kinds: Mapping[str, type[Worded]]) -> list[TextPart]:
    """Content as chat has it: text parts. Raises ApiError 400 for what is no text."""
    if isinstance(content, str):
        return [text_part(content)]
    parts = [typed(part, (*place, index), kinds) for index, part in enumerate(content)]
    return [text_part(part.words) for part in parts if isinstance(part, Worded)]


def text_part(text: str) -> TextPart:
    return {"type": "text", "text": text}
