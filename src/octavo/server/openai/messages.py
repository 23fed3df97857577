"""The messages of a chat, as far as the API defines them. What the template needs of them, `text.chat` sees to."""

from collections.abc import Sequence
from typing import Any

from octavo.server.openai.body import shown
from octavo.server.openai.errors import invalid

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Message = dict[str, Any]


def checked(messages: Sequence[Message], template_source: str) -> list[Message]:
    """The messages, or ApiError 400 for none at all or a role that does not exist.

    `developer`, OpenAI's newer name for `system`, becomes that unless the template knows it.
    """
    if not messages:
        raise invalid("messages must have at least one message", "messages")
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            path = f"messages[{index}].role"
            raise invalid(f"{path} must be one of {', '.join(ROLES)}, got {shown(message.get('role'))}", path)
    return [*messages] if "developer" in template_source else [_renamed(message) for message in messages]


def _renamed(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def text_size(messages: Sequence[Message]) -> int:
    """About how many characters there are to tokenize."""
    return sum(len(content) if isinstance(content := message.get("content"), str | list) else 0 for message in messages)
