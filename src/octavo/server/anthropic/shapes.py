"""What Messages' answers look like, as types: for the OpenAPI document, and for tests that hold answers against it."""

from typing import Any, Literal, NotRequired, TypedDict

Reason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessagesUsage(TypedDict):
    """Tokens: those that were computed, those that the prefix cache had, and those that were generated."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"]


class MessageBlock(TypedDict):
    """A text; or the use of a tool, with an id, a name and an input."""

    type: Literal["text", "tool_use"]
    text: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[dict[str, Any]]


class Message(TypedDict):
    """The answer to POST /v1/messages. `stop_reason` is null where it begins."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_reason: Reason | None
    stop_sequence: str | None
    usage: MessagesUsage


class BlockDelta(TypedDict):
    """What an event adds to a block (`type`, `text`, `partial_json`), or why the message ended."""

    type: NotRequired[Literal["text_delta", "input_json_delta"]]
    text: NotRequired[str]
    partial_json: NotRequired[str]
    stop_reason: NotRequired[Reason]
    stop_sequence: NotRequired[str | None]


class MessageEvent(TypedDict):
    """An event of a streamed message. Its name in the stream is its type."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    ]
    message: NotRequired[Message]
    index: NotRequired[int]
    content_block: NotRequired[MessageBlock]
    delta: NotRequired[BlockDelta]
    usage: NotRequired[MessagesUsage]


class TokenCount(TypedDict):
    """All tokens of the prompt."""

    input_tokens: int


class MessagesProblem(TypedDict):
    """What was wrong: of which kind, and in words that begin with the field at fault."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "timeout_error",
    ]
    message: str


class MessagesError(TypedDict):
    """Every answer of 400 or more below /v1/messages, and the last event of a stream that failed."""

    type: Literal["error"]
    error: MessagesProblem
    request_id: str
