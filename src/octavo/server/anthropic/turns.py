"""Turns: a system prompt and messages of blocks become the messages of a chat."""

from octavo.server.anthropic.schema import BLOCKS, TEXTS, TextBlock, ToolResultBlock, ToolUseBlock, Turn, Turns
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.errors import invalid
from octavo.server.openai.parts import Place, TextPart, text_part, texts, typed
from octavo.server.openai.schema import path_of, validate


def conversation(body: Turns) -> Conversation:
    """Raises ApiError 400 for a block of another type, and for one that is not as its type says."""
    made = Conversation()
    if body.system is not None:
        made.say("system", texts(body.system, ("system",), TEXTS), "system")
    if not body.messages:
        raise invalid("messages must have at least one message", "messages")
    for index, message in enumerate(body.messages):
        _add(made, validate(Turn, message, ("messages", index)), ("messages", index))
    return made


def _add(made: Conversation, turn: Turn, place: Place) -> None:
    if isinstance(turn.content, str):
        _say(made, turn.role, turn.content, path_of(place))
        return
    for index, value in enumerate(turn.content):
        block_place = (*place, "content", index)
        match typed(value, block_place, BLOCKS[turn.role]):
            case TextBlock(text=text):
                _say(made, turn.role, text, path_of(place))
            case ToolUseBlock(id=id_, name=name, input=input_):
                made.call(id_, name, input_, path_of(block_place))
            case ToolResultBlock() as result:
                made.answer(result.tool_use_id, _result(result, block_place), path_of(block_place))
            case other:
                raise AssertionError(f"{other} is no block")


def _say(made: Conversation, role: str, text: str, origin: str) -> None:
    """Turns of one role that follow each other are one."""
    if made.last.get("role") == role:
        made.go_on([text_part(text)])
    else:
        made.say(role, [text_part(text)], origin)


def _result(result: ToolResultBlock, place: Place) -> list[TextPart]:
    """Chats have no mark for a tool that failed: its result says so in words."""
    parts = texts(result.content or "", (*place, "content"), TEXTS)
    return [text_part("Error:"), *parts] if result.is_error else parts
