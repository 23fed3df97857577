"""POST /v1/messages and /v1/messages/count_tokens"""

from typing import Any

import msgspec

from octavo.server.anthropic.schema import (
    ClientTool,
    CountRequest,
    MessagesRequest,
    OutputConfig,
    ToolUse,
    Turns,
)
from octavo.server.anthropic.turns import conversation
from octavo.server.anthropic.wire import MessageWire
from octavo.server.exchange import Exchange
from octavo.server.openai import schema as openai
from octavo.server.openai.calling import chosen
from octavo.server.openai.chat import begin, chat_ids, chat_messages
from octavo.server.openai.conversation import Conversation, as_chat
from octavo.server.openai.errors import invalid
from octavo.server.openai.intake import read
from octavo.server.openai.renames import Renames
from octavo.server.openai.respond import respond
from octavo.server.service import Service


async def create_message(service: Service, exchange: Exchange) -> None:
    """Answers the last message of a conversation, or goes on with it where it is the assistant's."""
    body = await read(service, exchange, MessagesRequest)
    if body.temperature is not None and body.temperature > 1:
        raise invalid(f"temperature must be from 0 to 1, got {body.temperature}", "temperature")
    talk = await service.off_loop(exchange.num_bytes, lambda: conversation(body))
    with _renames(talk).applied():
        prompt = await service.off_loop(exchange.num_bytes, lambda: _prompt(body, talk))
        chat = as_chat(body, **prompt, max_tokens=body.max_tokens, stop=body.stop_sequences)
        reply = await begin(service, exchange, chat)
    await respond(exchange, body, reply.job, MessageWire(service, body, reply, exchange.id))


async def count_tokens(service: Service, exchange: Exchange) -> None:
    """How many tokens the same request to /v1/messages would have as its input. Nothing is generated."""
    body = await read(service, exchange, CountRequest)
    talk = await service.off_loop(exchange.num_bytes, lambda: conversation(body))
    with _renames(talk).applied():
        prompt = await service.off_loop(exchange.num_bytes, lambda: _prompt(body, talk))
        chat = as_chat(body, **prompt)
        await service.off_loop(exchange.num_bytes, lambda: chosen(chat))
        messages = await chat_messages(service, exchange, chat.messages, chat.chat_template_kwargs)
        ids = await chat_ids(service, exchange, chat, messages)
    await exchange.reply(200, msgspec.json.encode({"input_tokens": len(ids)}))


def _prompt(body: Turns, talk: Conversation) -> dict[str, Any]:
    """The fields of the chat that make its prompt, and the form of its answer."""
    return {
        "messages": talk.messages,
        "continue_final_message": _continues(talk) or None,
        "chat_template_kwargs": body.chat_template_kwargs,
        "tools": [_tool(tool) for tool in body.tools or ()] or None,
        "tool_choice": None if body.tool_choice is None else _tool_choice(body.tool_choice),
        "parallel_tool_calls": None if body.tool_choice is None else body.tool_choice.several,
        "response_format": None if body.output_config is None else _format(body.output_config),
    }


def _continues(talk: Conversation) -> bool:
    """Is the last message the assistant's, so that its text goes on? Raises ApiError 400 where it cannot."""
    last, origin = talk.last, talk.origins[-1]
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise invalid("the last message uses tools: what they answered must follow it", origin)
    if not any(part["text"] for part in last["content"]):
        raise invalid("the last message is the assistant's and has no text to go on with", origin)
    return True


def _tool(tool: ClientTool) -> openai.Tool:
    shown = tool.model_dump(include={"name", "description", "strict", "input_examples"}, exclude_none=True)
    return openai.Tool(type="function", function=openai.Function(**shown, parameters=tool.input_schema))


def _tool_choice(choice: ToolUse) -> str | openai.NamedTool:
    if choice.type == "tool":
        if choice.name is None:
            path = "tool_choice.name"
            raise invalid(f"{path} is required where the type is tool", path, "missing_required_parameter")
        return openai.NamedTool(type="function", function=openai.NamedFunction(name=choice.name))
    if choice.name is not None:
        raise invalid(f"tool_choice.name belongs to the type tool, and the type is {choice.type}", "tool_choice.name")
    return "required" if choice.type == "any" else choice.type


def _format(config: OutputConfig) -> openai.ResponseFormat | None:
    if config.format is None:
        return None
    schema = openai.JsonSchema(name="output", schema=config.format.schema_)
    return openai.ResponseFormat(type="json_schema", json_schema=schema)


def _renames(talk: Conversation) -> Renames:
    return Renames(
        {"stop": "stop_sequences"},
        (
            talk.renaming(),
            (r"\btools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"),
            (r"\btools\[(\d+)\]\.function\b", r"tools[\1]"),
            (r"\btool_choice\.function\b", "tool_choice"),
            (r"\bresponse_format\.json_schema\b", "output_config.format"),
            (r"\bresponse_format\b", "output_config.format"),
        ),
    )
