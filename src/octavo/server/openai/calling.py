"""Tools: what a request offers and demands becomes a form of the answer, and a way to read the calls in it."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.core.parameter import ParameterError
from octavo.core.structured import Structure, StructuredOutput, StructuredOutputsParams, read_json
from octavo.server.exchange import Exchange
from octavo.server.openai.errors import ApiError, bad_parameter, invalid
from octavo.server.openai.schema import AllowedTools, ChatRequest, NamedTool, Tool
from octavo.server.openai.structured import check_form
from octavo.server.service import Service
from octavo.text.calls.formats import Format, arguments_schema
from octavo.text.calls.json_calls import JsonReader
from octavo.text.calls.reading import Call, Named, Reader

_MOST_TRIED = 32
Schemas = Mapping[str, Mapping[str, Any]]
"""Names of functions -> the schemas of their arguments."""


@dataclass(frozen=True, slots=True)
class Calling:
    """How the answers to one request may call tools."""

    format: Format
    schemas: Schemas
    """Of the functions that may be called."""
    choice: str
    """`auto`, `required`, or `named`: the only one there is."""
    several: bool
    structure: StructuredOutput | None = None
    """What the answer must look like."""
    read: Callable[[bool], None] = lambda called: None
    """Is told of each choice that was read to its end: did it call?"""

    def reader(self) -> Reader:
        """For one choice: as the grammar has written it, where there is one."""
        if self.choice == "named":
            return Named(next(iter(self.schemas)))
        if self.structure is not None:
            return JsonReader(self.format.written.dialect, self.schemas.keys())
        return self.format.read(self.schemas.keys())

    def new_id(self) -> str:
        return secrets.token_hex(5)[:9] if self.format.id_len == 9 else f"call_{secrets.token_hex(12)}"


async def asked_calls(
    service: Service, exchange: Exchange, body: ChatRequest, form: StructuredOutput | None
) -> Calling | None:
    """How tools may be called; None where they may not. `form`: what the answer must look like otherwise.

    Raises ApiError 400 for tools that there cannot be, and for a choice that does not fit them.
    """
    choice, schemas = await service.off_loop(exchange.num_bytes, lambda: chosen(body))
    if choice == "none":
        return None
    if choice == "auto" and not service.config.server.enable_auto_tool_choice:
        message = "tool_choice is auto, and this server runs with --no-enable-auto-tool-choice"
        raise invalid(message, "tool_choice")
    calling = Calling(service.tool_format, schemas, choice, body.parallel_tool_calls is not False)
    taught = service.template is not None and service.template.knows_tools
    demand = _demand(calling, body, form, several=bool(body.parallel_tool_calls) or (taught and calling.several))
    if demand is None:
        return calling
    return replace(calling, structure=await _tried(service, demand, body.tools or (), schemas))


def shown_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """The tools as chat templates expect them: each with a description and parameters."""
    return [_shown(tool) for tool in tools] if tools else None


def _shown(tool: Tool) -> dict[str, Any]:
    function = tool.function.model_dump(exclude_unset=True, exclude={"strict"})
    function["description"] = function.get("description") or ""
    function["parameters"] = function.get("parameters") or {"type": "object", "properties": {}}
    return {**tool.model_dump(exclude={"function"}), "function": function}


def _check_tools(tools: Sequence[Tool]) -> None:
    seen = set[str]()
    for index, tool in enumerate(tools):
        name, parameters = tool.function.name, tool.function.parameters
        if name in seen:
            raise invalid(f"two tools are called {name}", f"tools[{index}].function.name")
        seen.add(name)
        if parameters and parameters.get("type", "object") != "object":
            path = f"tools[{index}].function.parameters"
            raise invalid(f"{path} must be the schema of an object", path)


def chosen(body: ChatRequest) -> tuple[str, Schemas]:
    """What must be chosen, and from which functions. Raises ApiError 400 for tools and choices that there cannot be."""
    _check_tools(body.tools or ())
    given = body.tool_choice
    tools = {tool.function.name: tool.function for tool in body.tools or ()}
    if not tools:
        if given in (None, "none", "auto"):
            return "none", {}
        raise invalid("tool_choice needs tools", "tool_choice")
    names: Sequence[str] = list(tools)
    choice = given if isinstance(given, str) else "auto"
    if isinstance(given, NamedTool):
        choice, names = "named", [_known(given, tools, "tool_choice.function.name")]
    elif isinstance(given, AllowedTools):
        choice, allowed = given.allowed_tools.mode, given.allowed_tools.tools
        path = "tool_choice.allowed_tools.tools[{}].function.name"
        names = [_known(each, tools, path.format(index)) for index, each in enumerate(allowed)]
    return choice, {name: arguments_schema(tools[name].parameters) for name in names}


def _known(tool: NamedTool, tools: Mapping[str, Any], path: str) -> str:
    if tool.function.name not in tools:
        names = ", ".join(list(tools)[:20])
        raise invalid(f"{path} is {tool.function.name!r}, which is none of the tools: {names}", path)
    return tool.function.name


def _demand(
    calling: Calling, body: ChatRequest, form: StructuredOutput | None, *, several: bool
) -> Mapping[str, Any] | None:
    """The format (of a structural tag) of the answer; None where it is free text.

    `several`: may it end in more than one call? A model that was not trained for tools does not know when to stop.
    """
    written, schemas = calling.format.written, calling.schemas
    if form is not None and body.response_format is None:
        raise invalid("a form of the answer and tools can only be together as response_format", "tools")
    if calling.choice == "named":
        return {"type": "json_schema", "json_schema": next(iter(schemas.values()))}
    if calling.choice == "required":
        return written.calls(schemas, several=several)
    if form is not None:
        return {"type": "or", "elements": [written.calls(schemas, several=several), _content(form)]}
    strict = {tool.function.name for tool in body.tools or () if tool.function.strict}
    if strict.isdisjoint(schemas):
        return None
    enforced = {name: schema if name in strict else {"type": "object"} for name, schema in schemas.items()}
    return written.free(enforced, several=several)


def _content(form: StructuredOutput) -> Mapping[str, Any]:
    if form.kind is Structure.JSON_OBJECT:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if form.kind is Structure.JSON_SCHEMA:
        return {"type": "json_schema", "json_schema": read_json("response_format", form.text)}
    raise invalid(
        "response_format of the type structural_tag says itself what calls look like: not with tools", "tools"
    )


async def _tried(
    service: Service, demand: Mapping[str, Any], tools: Sequence[Tool], schemas: Schemas
) -> StructuredOutput:
    """Raises ApiError 400 that names the tool at fault, where it is one of the first: each takes a trial of its own."""
    try:
        return await _form(service, "tools", demand)
    except ApiError as error:
        demanded = [index for index, tool in enumerate(tools) if tool.function.name in schemas]
        for index in demanded[:_MOST_TRIED]:
            schema = {"type": "json_schema", "json_schema": schemas[tools[index].function.name]}
            await _form(service, f"tools[{index}].function.parameters", schema)
        raise error from None


async def _form(service: Service, name: str, demand: Mapping[str, Any]) -> StructuredOutput:
    try:
        output = StructuredOutputsParams(structural_tag={"format": demand}).output()
    except ParameterError as error:
        raise bad_parameter(error, name) from None
    await check_form(service, name, output)
    return output


class CallReader:
    """Reads the calls out of one choice's text, and leaves out of both what its client is not told."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._reader = calling.reader()

    def read(self, text: str, finish: str | None) -> list[str | Call]:
        """What the text adds to content and calls, in their order. `finish` is the reason with the last of it.

        Where calls were demanded nothing is content: what no call accounts for is the beginning of one that was cut.
        """
        said = self._reader.push(text)
        if finish is not None:
            said.write(self._reader.finish())
            self._calling.read(self.called)
        return [part for part in said.parts if self._is_told(part)]

    def _is_told(self, part: str | Call) -> bool:
        if isinstance(part, str):
            return self._calling.choice != "required"
        return self._calling.several or part.index == 0

    @property
    def called(self) -> bool:
        """Has it called, and is the last call complete?"""
        return self._reader.num_calls > 0 and not self._reader.inside


class CallWriter:
    """The content and the calls of one choice, as clients of chat completions read them."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._reader = CallReader(calling)

    def read(self, text: str, finish: str | None) -> tuple[str, list[dict[str, Any]]]:
        """What the text adds to the content and to the calls. `finish` is the reason with the last of it."""
        parts = self._reader.read(text, finish)
        content = "".join(part for part in parts if isinstance(part, str))
        return content, [self._written(part) for part in parts if isinstance(part, Call)]

    def _written(self, call: Call) -> dict[str, Any]:
        if call.name is None:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": self._calling.new_id(), "type": "function", "function": function}

    def reason(self, finish: str | None) -> str | None:
        """Why the choice ended, as OpenAI says it: `tool_calls`, but `stop` for a function that was named."""
        called = self._reader.called and self._calling.choice != "named"
        return "tool_calls" if finish == "stop" and called else finish
