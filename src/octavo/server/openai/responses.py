"""POST /v1/responses"""

from typing import Any

from octavo.server.exchange import Exchange
from octavo.server.openai.chat import begin
from octavo.server.openai.conversation import Conversation, as_chat
from octavo.server.openai.errors import invalid
from octavo.server.openai.intake import read
from octavo.server.openai.items import conversation
from octavo.server.openai.renames import Renames
from octavo.server.openai.respond import respond
from octavo.server.openai.response_schema import (
    LOGPROBS,
    AllowedFunctionTools,
    FunctionTool,
    NamedFunctionTool,
    ResponsesRequest,
    TextFormat,
    ToolChoice,
)
from octavo.server.openai.response_wire import ResponseWire
from octavo.server.openai.schema import (
    Allowed,
    AllowedTools,
    ChatRequest,
    Function,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    Tool,
)
from octavo.server.service import Service


async def create_response(service: Service, exchange: Exchange) -> None:
    """Answers a conversation that is made of items. Nothing is stored."""
    body = await read(service, exchange, ResponsesRequest)
    talk = await service.off_loop(exchange.num_bytes, lambda: conversation(body.instructions, body.input))
    with _renames(talk).applied():
        chat = await service.off_loop(exchange.num_bytes, lambda: _chat(body, talk))
        reply = await begin(service, exchange, chat)
    await respond(exchange, body, reply.job, ResponseWire(service, body, reply))


def _chat(body: ResponsesRequest, talk: Conversation) -> ChatRequest:
    """The chat that it is. Raises ApiError 400."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")
    return as_chat(
        body,
        messages=talk.messages,
        max_tokens=body.max_output_tokens,
        stop=body.stop,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=[_tool(tool) for tool in body.tools or ()] or None,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=None if body.text is None or body.text.format is None else _format(body.text.format),
        **_logprobs(body),
    )


def _logprobs(body: ResponsesRequest) -> dict[str, Any]:
    if LOGPROBS in (body.include or ()):
        if body.tools and body.tool_choice != "none":
            raise invalid(f"include has {LOGPROBS}, which is not available where tools may be called", "include")
        return {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.top_logprobs:
        raise invalid(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
    return {}


def _tool(tool: FunctionTool) -> Tool:
    given = tool.model_dump(include={"name", "description", "parameters", "strict"}, exclude_unset=True)
    return Tool(type="function", function=Function(**given))


def _tool_choice(choice: ToolChoice) -> str | NamedTool | AllowedTools | None:
    match choice:
        case NamedFunctionTool():
            return _named(choice)
        case AllowedFunctionTools(mode=mode, tools=tools):
            allowed = Allowed(mode=mode, tools=[_named(tool) for tool in tools])
            return AllowedTools(type="allowed_tools", allowed_tools=allowed)
    return choice


def _named(tool: NamedFunctionTool) -> NamedTool:
    return NamedTool(type="function", function=NamedFunction(name=tool.name))


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        if given.schema_ is not None:
            message = f"text.format.schema belongs to the type json_schema, and the type is {given.type}"
            raise invalid(message, "text.format.schema")
        return ResponseFormat(type=given.type)
    for name, value in (("name", given.name), ("schema", given.schema_)):
        if value is None:
            path = f"text.format.{name}"
            raise invalid(f"{path} is required where the type is json_schema", path, "missing_required_parameter")
    assert given.name is not None and given.schema_ is not None
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name=given.name, schema=given.schema_))


def _renames(talk: Conversation) -> Renames:
    return Renames(
        {"messages": "input", "max_tokens": "max_output_tokens"},
        (
            talk.renaming(),
            (r"(?<!\.)\btools\[(\d+)\]\.function\b", r"tools[\1]"),
            (r"\btool_choice\.allowed_tools\.tools\[(\d+)\]\.function\b", r"tool_choice.tools[\1]"),
            (r"\btool_choice\.function\b", "tool_choice"),
            (r"\bresponse_format\.json_schema\b", "text.format"),
            (r"\bresponse_format\b", "text.format"),
        ),
    )
