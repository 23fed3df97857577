"""Conversation: the messages of a chat, and the chat, made from what another protocol has instead."""

import re
from dataclasses import dataclass, field
from typing import Any

from octavo.server.openai.messages import Message
from octavo.server.openai.parts import TextPart
from octavo.server.openai.renames import Renaming
from octavo.server.openai.schema import Body, ChatRequest, Generation


@dataclass(slots=True)
class Conversation:
    """Messages, whose content is lists of text parts, and of each the path of what it was made from."""

    messages: list[Message] = field(default_factory=list[Message])
    origins: list[str] = field(default_factory=list[str])

    @property
    def last(self) -> Message:
        """The last message; an empty one where there is none."""
        return self.messages[-1] if self.messages else {}

    def say(self, role: str, parts: list[TextPart], origin: str) -> None:
        """A message."""
        self._add({"role": role, "content": parts}, origin)

    def go_on(self, parts: list[TextPart]) -> None:
        """More of the last message."""
        self.messages[-1]["content"] += parts

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any], origin: str) -> None:
        """A call of the assistant's: part of its last message, where it had the last word."""
        if self.last.get("role") != "assistant":
            self.say("assistant", [], origin)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def answer(self, call_id: str, parts: list[TextPart], origin: str) -> None:
        """What a call has led to."""
        self._add({"role": "tool", "tool_call_id": call_id, "content": parts}, origin)

    def _add(self, message: Message, origin: str) -> None:
        self.messages.append(message)
        self.origins.append(origin)

    def renaming(self) -> Renaming:
        """The paths of messages become those of what they were made from."""
        return r"\bmessages\[(\d+)\]", self._origin

    def _origin(self, found: re.Match[str]) -> str:
        index = int(found[1])
        return self.origins[index] if index < len(self.origins) else found[0]


def as_chat(body: Body, **fields: Any) -> ChatRequest:
    """The chat that a checked body is: these fields, and those that both have. Nothing is checked again."""
    both = Generation.model_fields.keys() & type(body).model_fields.keys()
    return ChatRequest.model_construct(**{name: getattr(body, name) for name in both}, **fields)
