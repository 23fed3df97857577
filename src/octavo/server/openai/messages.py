"""The messages of a chat, as far as the API defines them. What the template needs of them, `text.chat` sees to."""

from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import Any

from octavo.server.openai.body import check_nested, shown
from octavo.server.openai.errors import invalid

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Message = dict[str, Any]


def checked(messages: Sequence[Message], template_source: str) -> list[Message]:
    """The messages, or ApiError 400 for none at all, a role that does not exist, or calls and parts of no such form.

    `developer`, OpenAI's newer name for `system`, becomes that unless the template knows it. What only OpenAI's older
    names say is said in those that templates read.
    """
    if not messages:
        raise invalid("messages must have at least one message", "messages")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    roles = {} if "developer" in template_source else {"developer": "system"}
    return [_renamed(message, roles) for message in messages]


def _renamed(message: Message, roles: Mapping[str, str]) -> Message:
    role, call, refusal = message["role"], message.get("function_call"), message.get("refusal")
    renamed: Message = {**message, "role": roles.get(role, role)}
    if role == "function":
        renamed |= {"role": "tool", "tool_call_id": message.get("tool_call_id") or message.get("name")}
    if call is not None:
        called = {"id": call.get("name"), "type": "function", "function": call}
        renamed |= {"function_call": None, "tool_calls": message.get("tool_calls") or [called]}
    if refusal and not message.get("content"):
        renamed |= {"content": refusal, "refusal": None}
    return renamed


_READ = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def unread(messages: Sequence[Message], words: Collection[str]) -> list[str]:
    """The fields of messages that say something, and that a template with these words in it does not read."""
    said = (name for message in messages for name, value in message.items() if value not in (None, False, "", [], {}))
    return [f"messages[].{name}" for name in dict.fromkeys(said) if name not in _READ and name not in words]


def _check(message: Message, path: str) -> None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}, got {shown(role)}", f"{path}.role")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{path}.content[{index}]")
    if message.get("tool_call_id") is not None:
        _expect(message["tool_call_id"], str, "a string, or null", f"{path}.tool_call_id")
    if message.get("function_call") is not None:
        _check_function(message["function_call"], f"{path}.function_call")
    if message.get("refusal") is not None:
        _expect(message["refusal"], str, "a string, or null", f"{path}.refusal")
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
    if call.get("function") is not None:
        _check_function(call["function"], f"{path}.function")


def _check_function(function: Any, path: str) -> None:
    _expect(function, dict, "an object", path)
    if function.get("name") is not None:
        _expect(function["name"], str, "a string, or null", f"{path}.name")
    arguments = function.get("arguments")
    if arguments is not None:
        _expect(arguments, str | dict, "a string, an object or null", f"{path}.arguments")
    if isinstance(arguments, str):
        check_nested(arguments, f"{path}.arguments")


def _expect(value: Any, kind: type | UnionType, allowed: str, path: str) -> None:
    if not isinstance(value, kind):
        raise invalid(f"{path} must be {allowed}, got {shown(value)}", path, "invalid_type")
