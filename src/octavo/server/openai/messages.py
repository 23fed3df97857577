"""The messages of a chat, as far as the API defines them. What the template needs of them, `text.chat` sees to."""

from collections.abc import Sequence
from types import UnionType
from typing import Any

from octavo.server.openai.body import check_nested, shown
from octavo.server.openai.errors import invalid

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Message = dict[str, Any]


def checked(messages: Sequence[Message], template_source: str) -> list[Message]:
    """The messages, or ApiError 400 for none at all, a role that does not exist, or calls and parts of no such form.

    `developer`, OpenAI's newer name for `system`, becomes that unless the template knows it.
    """
    if not messages:
        raise invalid("messages must have at least one message", "messages")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return [*messages] if "developer" in template_source else [_renamed(message) for message in messages]


def _renamed(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _check(message: Message, path: str) -> None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}, got {shown(role)}", f"{path}.role")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{path}.content[{index}]")
    if message.get("tool_call_id") is not None:
        _expect(message["tool_call_id"], str, "a string, or null", f"{path}.tool_call_id")
    if calls is not None:
        _expect(calls, list, "an array of objects, or null", f"{path}.tool_calls")
        for index, call in enumerate(calls):
            _check_call(call, f"{path}.tool_calls[{index}]")


_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts -> where their text is."""


def _check_part(part: Any, path: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if field:
        _expect(part.get(field), str, "a string", f"{path}.{field}")


def _check_call(call: Any, path: str) -> None:
    _expect(call, dict, "an object", path)
    function = call.get("function")
    if function is None:
        return
    _expect(function, dict, "an object", f"{path}.function")
    if function.get("name") is not None:
        _expect(function["name"], str, "a string, or null", f"{path}.function.name")
    arguments = function.get("arguments")
    if arguments is not None:
        _expect(arguments, str | dict, "a string, an object or null", f"{path}.function.arguments")
    if isinstance(arguments, str):
        check_nested(arguments, f"{path}.function.arguments")


def _expect(value: Any, kind: type | UnionType, allowed: str, path: str) -> None:
    if not isinstance(value, kind):
        raise invalid(f"{path} must be {allowed}, got {shown(value)}", path, "invalid_type")
