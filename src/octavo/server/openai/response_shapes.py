"""What Responses' answers look like, as types: for the OpenAPI document, and for tests that hold answers against it."""

from typing import Any, Literal, NotRequired, TypedDict

from octavo.server.shapes import ChatToken, PromptDetails

State = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """The text of a message. Logprobs where they were asked for."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class OutputItem(TypedDict):
    """A message with its text; or the call of a function, with a name and arguments."""

    type: Literal["message", "function_call"]
    id: str
    status: State
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[list[OutputText]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]


class InputDetails(PromptDetails):
    """Where the prompt's tokens came from."""

    cache_write_tokens: Literal[0]


class OutputDetails(TypedDict):
    """Answers have no separate reasoning."""

    reasoning_tokens: Literal[0]


class ResponseUsage(TypedDict):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why there is no more."""

    reason: Literal["max_output_tokens"]


class ResponseProblem(TypedDict):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    type: str
    param: str | None


class Response(TypedDict):
    """The answer to POST /v1/responses. Behind `usage` is what was asked, with the values that were used."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    error: ResponseProblem | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ResponseEvent(TypedDict):
    """An event of a streamed response. Its name in the stream is its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: NotRequired[Response]
    output_index: NotRequired[int]
    item: NotRequired[OutputItem]
    item_id: NotRequired[str]
    content_index: NotRequired[int]
    part: NotRequired[OutputText]
    delta: NotRequired[str]
    text: NotRequired[str]
    logprobs: NotRequired[list[ChatToken]]
    name: NotRequired[str]
    arguments: NotRequired[str]
