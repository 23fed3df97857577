"""The body of POST /v1/responses: every field that is honoured, and those that are known and not."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, ValidationError

from octavo.server.openai.fields import NOT_YET, Known
from octavo.server.openai.parts import Worded
from octavo.server.openai.schema import (
    FUNCTION_NAME,
    Content,
    FirstOnly,
    Generation,
    Only,
    Part,
    Texts,
    optional,
    sampled,
    wrong,
)

_ECHOED = "No effect: it comes from an earlier answer."
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Worded):
    type: Literal["input_text", "text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None

    @property
    def words(self) -> str:
        return self.text


class OutputText(Worded):
    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = optional(_ECHOED)
    logprobs: list[Any] | None = optional(_ECHOED)

    @property
    def words(self) -> str:
        return self.text


class Refusal(Worded):
    type: Literal["refusal"]
    refusal: str

    @property
    def words(self) -> str:
        return self.refusal


PARTS: Mapping[str, type[Worded]] = {
    "input_text": InputText,
    "output_text": OutputText,
    "refusal": Refusal,
    "text": InputText,
}


class Item(Part):
    """What items have in common: names and states of earlier answers, which nothing here remembers."""

    id: str | None = optional(_ECHOED)
    status: Status | None = optional(_ECHOED)


class MessageItem(Item):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = optional(_ECHOED)


class CallItem(Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    caller: Annotated[Any, Only("functions are called by the model alone", {"type": "direct"})] = None
    namespace: Annotated[Any, Only("functions have no namespaces")] = None


class CallOutputItem(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    name: str | None = optional("No effect: the call that it answers has it.")
    caller: Annotated[Any, Only("functions are called by the model alone", {"type": "direct"})] = None
    namespace: Annotated[Any, Only("functions have no namespaces")] = None


ITEMS: Mapping[str, type[Part]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
}


class FunctionTool(Part):
    """A function that the model may call."""

    type: Literal["function"] = Field(description="What it is.")
    name: str = Field(pattern=FUNCTION_NAME, description="Letters, digits, `_`, `.` and `-`.")
    description: str | None = optional("What it does: for the model.")
    parameters: dict[str, Any] | None = optional("A JSON Schema of the arguments, an object. None: it takes none.")
    strict: bool | None = optional(
        "Arguments follow the schema also where the model chooses (tool_choice auto).", False
    )
    defer_loading: Annotated[Any, Only("there is no search for tools", False)] = optional("Not available.")
    allowed_callers: Annotated[Any, Only("functions are called by the model alone", ["direct"])] = optional(
        "Not available."
    )
    output_schema: Annotated[Any, Only("the model is not told what functions answer")] = optional("Not available.")
    async_: Annotated[Any, Only("calls are answered by the next request", False)] = Field(
        default=None, alias="async", description="Not available."
    )


class NamedFunctionTool(Part):
    """The function to call."""

    type: Literal["function"] = Field(description="What it is.")
    name: str = Field(description="A function's name.")


class AllowedFunctionTools(Part):
    """Some of the tools only; the prompt has all."""

    type: Literal["allowed_tools"] = Field(description="What it is.")
    mode: Literal["auto", "required"] = Field(description="Whether one must be called.")
    tools: Annotated[list[NamedFunctionTool], FirstOnly()] = Field(min_length=1, description="The functions.")


ToolChoice = str | NamedFunctionTool | AllowedFunctionTools | None
_CHOICES = ("none", "auto", "required")
_NAMED = '{"type": "function", "name": ...}'
_FORMS = {
    "function": (NamedFunctionTool, _NAMED),
    "allowed_tools": (AllowedFunctionTools, f'{{"type": "allowed_tools", "mode": ..., "tools": [{_NAMED}, ...]}}'),
}


def _tool_choice(value: object) -> ToolChoice:
    if value is None or (isinstance(value, str) and value in _CHOICES):
        return value
    form = _FORMS.get(str(value.get("type"))) if isinstance(value, dict) else None
    if form is None:
        raise wrong("none, auto, required, or an object whose type is function or allowed_tools", value)
    kind, shape = form
    try:
        return kind.model_validate(value)
    except ValidationError:
        raise wrong(shape, value) from None


class TextFormat(Part):
    """The form that the answer's text has."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="What it is.")
    name: str | None = Field(default=None, min_length=1, max_length=64, description="What the schema is called.")
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="With the type json_schema: a JSON Schema."
    )
    description: str | None = optional("No effect: the model is not shown the schema.")
    strict: bool | None = optional("No effect: the answer always follows the schema.")


class TextConfig(Part):
    """What the answer's text is like."""

    format: TextFormat | None = optional("The form that it has.", "any text")
    verbosity: Annotated[Any, Only("it is not available", "medium")] = optional("Not available.")


class Reasoning(Part):
    """Answers have no reasoning beside their text."""

    effort: Annotated[Any, Only("the chat template has no such setting", "none")] = optional("Not available.")
    summary: Annotated[Any, Only("answers have no separate reasoning")] = optional("Not available.")
    generate_summary: Annotated[Any, Only("answers have no separate reasoning")] = optional("Not available.")
    context: Annotated[Any, Only("answers have no separate reasoning", "auto")] = optional("Not available.")
    mode: Annotated[Any, Only("there is one mode", "standard")] = optional("Not available.")


class ResponseStreamOptions(Part):
    include_obfuscation: Literal[False] | None = optional("Padding against traffic analysis: not available.")


LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


_STORE = "nothing is stored here: send the whole conversation as input"
_LENGTH = "it is called max_output_tokens here"

REFUSED: Mapping[str, Known] = {
    **NOT_YET,
    "store": Known("nothing is stored: leave it out, or say false", (False,)),
    "previous_response_id": Known(_STORE),
    "conversation": Known(_STORE),
    "prompt": Known("there are no stored prompts"),
    "background": Known("answers come with the request that asks for them", (False,)),
    "background_options": Known("answers come with the request that asks for them"),
    "truncation": Known(
        "no items are dropped: send fewer, or let truncate_prompt_tokens cut the prompt", ("disabled",)
    ),
    "context_management": Known("nothing is compacted: send fewer items", ([],)),
    "prompt_cache_options": Known("prompts are cached while there is room, with no time", ({}, {"mode": "implicit"})),
    "image": Known("prompts are text"),
    "access_programs": Known("there are none"),
    "max_tokens": Known(_LENGTH),
    "max_completion_tokens": Known(_LENGTH),
    "messages": Known("it is called input here"),
    "response_format": Known("it is text.format here"),
    "logprobs": Known('it is include: ["message.output_text.logprobs"] here', (False,)),
    "n": Known("a response is one answer", (1,)),
}


class ResponsesRequest(Generation):
    """POST /v1/responses"""

    refused: ClassVar[Mapping[str, Known]] = REFUSED

    input: Content = Field(
        description="A text, or items: messages, function calls and what functions answered; at most --max-messages."
    )
    instructions: str | None = optional("A message of the system before the input.")
    tools: Annotated[list[FunctionTool], FirstOnly()] | None = optional("Functions that the model may call.")
    tool_choice: Annotated[
        ToolChoice,
        PlainValidator(
            _tool_choice,
            json_schema_input_type=Literal["none", "auto", "required"]
            | NamedFunctionTool
            | AllowedFunctionTools
            | None,
        ),
    ] = optional("none, auto, required, or the function to call.", "auto with tools, otherwise none")
    parallel_tool_calls: bool | None = optional("Whether an answer may have several calls.", True)
    text: TextConfig | None = optional("The form that the answer has.")
    max_output_tokens: int | None = sampled(
        "max_tokens",
        "Most tokens to generate; lowered to the room that the context leaves (400 with --strict).",
        "the room that the context leaves",
    )
    include: list[Includable] | None = optional(
        "`message.output_text.logprobs` adds the logprob of each token, not with tools. The others name what answers "
        "never have here, and add nothing."
    )
    top_logprobs: int | None = sampled(
        "logprobs", "How many alternatives to report with each logprob; needs them in include.", 0
    )
    stream_options: ResponseStreamOptions | None = optional("Only with stream.")
    stop: Texts = sampled("stop", "Texts that end the answer: at most --max-stop-strings, none empty.")
    chat_template_kwargs: dict[str, Any] | None = optional("More variables for the chat template.")
    reasoning: Reasoning | None = optional("No effect: nothing but defaults is taken.")
    metadata: dict[str, str] | None = optional("Comes back in the answer. Nothing is stored.")
    max_tool_calls: int | None = optional("Comes back in the answer. It limits tools of the server, which has none.")
    user: str | None = optional("Comes back in the answer: nothing is recorded about users.")
    safety_identifier: str | None = optional("Comes back in the answer: nothing is recorded about users.")
    prompt_cache_key: str | None = optional(
        "Comes back in the answer: a hint for routing, and prompts are found by their content."
    )
