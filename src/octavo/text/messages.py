"""Messages as clients send them, made into the plain shape that chat templates expect."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Conversation = Sequence[Message]
MAX_DEPTH = 140
"""Arrays and objects within each other: a little more than the server lets in."""


class TemplateError(ValueError):
    """A conversation that cannot become a prompt: the template's own message, or what is wrong with the input."""


def prepare(messages: Conversation) -> list[dict[str, Any]]:
    """A copy with text as `content` ("" for null, none or an empty list; parts joined by line feeds).

    Arguments of tool calls become objects, since templates write them as JSON themselves; fields that are null, and
    empty lists of tool calls, are left out, since templates ask whether they are there. Raises TemplateError.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TemplateError("messages must be a list of objects with 'role' and 'content'")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} must be an object with 'role' and 'content', got {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise TemplateError(f"{where}.role must be a string, got {message.get('role')!r}")
    fields = {key: plain_copy(value) for key, value in message.items() if value is not None and key != "content"}
    fields["content"] = _content(message.get("content"), f"{where}.content")
    calls = fields.pop("tool_calls", None)
    if calls is not None and not isinstance(calls, list):
        raise TemplateError(f"{where}.tool_calls must be a list of objects, got {type(calls).__name__}")
    if calls:
        fields["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return fields


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TemplateError(f"{where} must be a string, null or a list of parts, got {type(content).__name__}")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "text" | "input_text" | "output_text" | "refusal" as kind}:
            raise TemplateError(f"{where} must have a string as its {'refusal' if kind == 'refusal' else 'text'}")
        case {"type": str(kind)}:
            raise TemplateError(f"{where}: parts of type {kind!r} are not supported; this model reads text only")
    raise TemplateError(f"{where} must be an object with 'type' and 'text'")


def _tool_call(call: Any, where: str) -> Any:
    if not isinstance(call, dict):
        raise TemplateError(f"{where} must be an object, got {type(call).__name__}")
    match call:
        case {"function": {"arguments": str(arguments), **function}, **rest}:
            return {**rest, "function": {**function, "arguments": _arguments(arguments)}}
    return call


def _arguments(text: str) -> Any:
    """The object that the text stands for; the text itself where it is anything else."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return plain_copy(value) if isinstance(value, dict) else text


def plain_copy(value: Any, rewrite: Callable[[str], str] = str, room: int = MAX_DEPTH) -> Any:
    """The same JSON value in dicts and lists of its own, with every string (keys too) rewritten.

    Raises TemplateError where it is nested more than `room` deep.
    """
    if room < 0:
        raise TemplateError(f"messages and tools must not be nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, Mapping):
        return {plain_copy(key, rewrite): plain_copy(item, rewrite, room - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_copy(item, rewrite, room - 1) for item in value]
    return value
