"""The bodies of /v1/messages and its count_tokens: every field that is honoured, and those that are known and not."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator

from octavo.server.openai.fields import NOT_YET, Known
from octavo.server.openai.parts import Worded
from octavo.server.openai.schema import (
    FUNCTION_NAME,
    Body,
    Content,
    FirstOnly,
    Generation,
    Objects,
    Only,
    Part,
    optional,
    sampled,
    wrong,
)


class CacheControl(Part):
    """A wish to have the prompt up to here cached: it is in any case, while there is room."""

    type: Literal["ephemeral"] = Field(description="What it is.")
    ttl: Literal["5m", "1h"] | None = optional("No effect: what is cached stays while there is room.")


_CACHED = "No effect on the answer: prompts are cached in any case, and found by their content."
_BY_MODEL = "tools are used by the model alone"


class Block(Part):
    cache_control: CacheControl | None = optional(_CACHED)


class TextBlock(Block, Worded):
    type: Literal["text"]
    text: str
    citations: Annotated[Any, Only("there are no documents to cite", [])] = None

    @property
    def words(self) -> str:
        return self.text


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[Any, Only(_BY_MODEL, {"type": "direct"})] = None
    toolset_name: Annotated[Any, Only("there are no toolsets")] = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None
    toolset_name: Annotated[Any, Only("there are no toolsets")] = None


TEXTS: Mapping[str, type[Worded]] = {"text": TextBlock}
BLOCKS: Mapping[str, Mapping[str, type[Part]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "tool_use": ToolUseBlock},
    "system": TEXTS,
}
"""Role -> the blocks that its messages may have."""


class Turn(Part):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: Content


class ClientTool(Part):
    """A tool of the client's that the model may use."""

    type: Literal["custom"] | None = optional("What it is: `custom`, as tools of the server are not available.")
    name: str = Field(pattern=FUNCTION_NAME, description="Letters, digits, `_`, `.` and `-`.")
    description: str | None = optional("What it does: for the model.")
    input_schema: dict[str, Any] = Field(description="A JSON Schema of the input, an object.")
    strict: bool | None = optional("Inputs follow the schema also where the model chooses (auto).", False)
    input_examples: list[dict[str, Any]] | None = optional("Inputs that it could be used with: for the model.")
    cache_control: CacheControl | None = optional(_CACHED)
    eager_input_streaming: Annotated[Any, Only("inputs are always streamed as they come", True)] = optional(
        "Inputs are always streamed as they come."
    )
    defer_loading: Annotated[Any, Only("there is no search for tools", False)] = optional("Not available.")
    allowed_callers: Annotated[Any, Only(_BY_MODEL, ["direct"])] = optional("Not available.")


class ToolUse(Part):
    """Whether tools are used, and which."""

    type: Literal["auto", "any", "tool", "none"] = Field(description="The model decides; at least one; this one; none.")
    name: str | None = optional("With the type tool: its name.")
    disable_parallel_tool_use: bool | None = optional("Whether an answer uses one tool at most.", False)

    @property
    def several(self) -> bool | None:
        """May an answer use more than one tool? None: that is not said."""
        return None if self.disable_parallel_tool_use is None else not self.disable_parallel_tool_use


class Thinking(Part):
    """Answers have no thinking beside their text."""

    type: Literal["disabled", "adaptive"] = Field(
        description="No effect: `adaptive` leaves it to the model, whose answers have none here."
    )
    display: Literal["summarized", "omitted"] | None = optional("No effect: there is none to show.")


class OutputFormat(Part):
    type: Literal["json_schema"] = Field(description="What it is.")
    schema_: dict[str, Any] = Field(alias="schema", description="A JSON Schema.")


class OutputConfig(Part):
    """What the answer's text is like."""

    format: OutputFormat | None = optional("The form that it has.", "any text")
    effort: Annotated[Any, Only("the chat template has no such setting")] = optional("Not available.")


class RequestMetadata(Part):
    user_id: str | None = optional("No effect: nothing is recorded about users.")


def _stops(value: object) -> list[str] | None:
    if value is None or (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        return value  # type: ignore[return-value]
    raise wrong("an array of strings, or null", value)


_PROMPT: Mapping[str, Known] = {
    "speed": Known("there is one speed", ("standard",)),
    "output_format": Known("it is output_config.format here"),
    "mcp_servers": Known("there are no tools of the server", ([],)),
    "context_management": Known("nothing is cleared or compacted: send fewer messages", ({}, {"edits": []})),
    "response_format": Known("it is output_config.format here"),
}
REFUSED: Mapping[str, Known] = {
    **NOT_YET,
    **_PROMPT,
    "service_tier": Known("there is one tier", ("auto", "standard_only")),
    "container": Known("there are no containers"),
    "diagnostics": Known("no earlier request is remembered: x-octavo-cache-miss says why a prompt was missed"),
    "inference_geo": Known("there is one place"),
    "fallbacks": Known("there is one model", ([],)),
    "stop": Known("it is called stop_sequences here"),
    "max_completion_tokens": Known("it is called max_tokens here"),
    "n": Known("a message is one answer", (1,)),
}


class Turns(Body):
    """What makes the prompt."""

    messages: Objects = Field(
        description="The conversation, at most --max-messages. Content is text or blocks: text, tool_use, tool_result."
    )
    system: Content | None = optional("A message of the system before the conversation: a string or text blocks.")
    tools: Annotated[list[ClientTool], FirstOnly()] | None = optional("Tools that the model may use.")
    tool_choice: ToolUse | None = optional("Whether tools are used, and which.", "auto with tools, otherwise none")
    thinking: Thinking | None = optional(
        "No effect: answers have none, and nothing but `disabled` and `adaptive` is taken."
    )
    output_config: OutputConfig | None = optional("The form that the answer has.")
    cache_control: CacheControl | None = optional(_CACHED)
    chat_template_kwargs: dict[str, Any] | None = optional("More variables for the chat template.")


class CountRequest(Turns):
    """POST /v1/messages/count_tokens"""

    refused: ClassVar[Mapping[str, Known]] = _PROMPT


class MessagesRequest(Turns, Generation):
    """POST /v1/messages"""

    refused: ClassVar[Mapping[str, Known]] = REFUSED

    max_tokens: int = Field(
        description="Most tokens to generate; lowered to the room that the context leaves (400 with --strict).",
        json_schema_extra={"minimum": 1},
    )
    temperature: float | None = sampled("temperature", "How freely tokens are drawn. 0 is greedy.", maximum=1)
    stop_sequences: Annotated[list[str] | None, PlainValidator(_stops, json_schema_input_type=list[str] | None)] = (
        optional("Texts that end the answer: at most --max-stop-strings, none empty.")
    )
    metadata: RequestMetadata | None = optional("No effect: nothing is recorded about users.")
