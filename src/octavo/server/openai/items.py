"""Items: the input of /v1/responses becomes the messages of a chat."""

from collections.abc import Sequence
from typing import Any

from octavo.server.openai.body import check_nested
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.errors import invalid
from octavo.server.openai.parts import Place, text_part, texts, typed
from octavo.server.openai.response_schema import ITEMS, PARTS, CallItem, CallOutputItem, MessageItem
from octavo.server.openai.schema import path_of


def conversation(instructions: str | None, given: str | Sequence[dict[str, Any]]) -> Conversation:
    """Raises ApiError 400 for an item of another type, and for one that is not as its type says."""
    made = Conversation()
    if instructions is not None:
        made.say("system", [text_part(instructions)], "instructions")
    if isinstance(given, str):
        made.say("user", [text_part(given)], "input")
        return made
    if not given:
        raise invalid("input must have at least one item", "input")
    for index, item in enumerate(given):
        _add(made, item, ("input", index))
    return made


def _add(made: Conversation, item: dict[str, Any], place: Place) -> None:
    if item.get("type") is None and "role" in item:
        item = {**item, "type": "message"}
    match typed(item, place, ITEMS):
        case MessageItem(role=role, content=content):
            _say(made, role, texts(content, (*place, "content"), PARTS), path_of(place))
        case CallItem(call_id=call_id, name=name, arguments=arguments):
            check_nested(arguments, path_of((*place, "arguments")))
            made.call(call_id, name, arguments, path_of(place))
        case CallOutputItem(call_id=call_id, output=output):
            made.answer(call_id, texts(output, (*place, "output"), PARTS), path_of(place))
        case other:
            raise AssertionError(f"{other} is no item")


def _say(made: Conversation, role: str, parts: list[dict[str, Any]], origin: str) -> None:
    """A message of its own; but what an answer said after its calls belongs to the message that has them."""
    if role == "assistant" and "tool_calls" in made.last:
        made.go_on(parts)
    else:
        made.say(role, parts, origin)
