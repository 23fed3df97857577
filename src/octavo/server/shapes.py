"""What answers look like, as types. The OpenAPI document is made from them, and tests hold each answer against it."""

from typing import Any, Literal, NotRequired, TypedDict

Finish = Literal["stop", "length", "tool_calls"]


class Card(TypedDict):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class Cards(TypedDict):
    """The models."""

    object: Literal["list"]
    data: list[Card]


class PromptDetails(TypedDict):
    """Where the prompt's tokens came from: the prefix cache had the first `cached_tokens`, and why no more."""

    cached_tokens: int
    cache_miss_reason: NotRequired[str]
    cache_miss_at: NotRequired[int]


class Usage(TypedDict):
    """Tokens. Each prompt counts once, whatever its n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class PromptToken(TypedDict):
    """A token that could have been here; `rank` 1 is the likeliest."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""One entry for each token of a prompt: null for the first, then token id -> what is known of it."""


class TokenLogprob(TypedDict):
    """A token, and what it spells; `bytes:` and escapes where that is no text by itself."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenLogprob):
    """A token of the answer, and the likeliest that could have been here."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """The tokens that spell the text."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(TypedDict):
    """A call: arguments are JSON, as a string."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """What the model wants to have called."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    """The answer; content may be null beside calls only."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCall]]


class Choice(TypedDict):
    """What the choices of all whole answers have. `stop_reason`: the stop string, or a token of stop_token_ids."""

    index: int
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatChoice(Choice):
    """One answer to a conversation."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class Head(TypedDict):
    """What all answers begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatAnswer(Head):
    """The answer to POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class FunctionDelta(TypedDict):
    """The name comes once, the arguments in pieces."""

    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """What a chunk adds to the call with this index: id and type come once."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class MessageDelta(TypedDict):
    """What a chunk adds to a message: the role comes with the first text."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    tool_calls: NotRequired[list[CallDelta]]


class ChoiceDelta(TypedDict):
    """What the choices of all chunks have. The last chunk of a choice has its finish_reason, and only that."""

    index: int
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatChoiceDelta(ChoiceDelta):
    """What a chunk adds to a choice."""

    delta: MessageDelta
    logprobs: ChatLogprobs | None


class ChatChunk(Head):
    """An event of a streamed chat. With include_usage the last one has the usage, and no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChoiceDelta]
    usage: NotRequired[Usage | None]
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class Logprobs(TypedDict):
    """The tokens that spell the text: arrays of equal length. The first token of an echoed prompt has nulls."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Choice):
    """One answer to one prompt: prompts have n each, in their order."""

    text: str
    logprobs: Logprobs | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class EmbeddingUsage(TypedDict):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Embedding(TypedDict):
    """The vector of an input: numbers, or base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(Head):
    """The answer to POST /v1/embeddings: vectors in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    usage: EmbeddingUsage


class CompletionAnswer(Head):
    """The answer to POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChoiceDelta(ChoiceDelta):
    """What a chunk adds to a choice."""

    text: str
    logprobs: Logprobs | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunk(Head):
    """An event of a streamed completion. With include_usage the last one has the usage, and no choices."""

    object: Literal["text_completion"]
    choices: list[CompletionChoiceDelta]
    usage: NotRequired[Usage | None]


class Tokens(TypedDict):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class Text(TypedDict):
    """What the ids spell, under two names."""

    prompt: str
    content: str


class TokenizerInfo(TypedDict):
    """What a client needs to prepare prompts itself."""

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    add_bos_token: bool
    chat_template: str | None
    bos_token: NotRequired[str]
    eos_token: NotRequired[str]
    unk_token: NotRequired[str]
    sep_token: NotRequired[str]
    pad_token: NotRequired[str]
    cls_token: NotRequired[str]
    mask_token: NotRequired[str]


class Version(TypedDict):
    """The fingerprint is there once the engine is ready."""

    version: str
    fingerprint: NotRequired[str]


class Health(TypedDict):
    """`stalled_steps`: how often the engine had work and did none."""

    status: Literal["starting", "ready"]
    stalled_steps: int


class Ready(TypedDict):
    """A request would be served now."""

    status: Literal["ready"]


class Load(TypedDict):
    """Requests that are answered, and choices that run or wait in the engine."""

    server_load: int
    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage_perc: float


class Side(TypedDict):
    """Tokens from the place of a miss on."""

    token_ids: list[int]
    tokens: list[str]
    text: str


class MissShown(TypedDict):
    """Where what is cached ends, and why: the prompt there, and what is cached instead where the tokens differ."""

    reason: str
    message: str
    at: int
    evicted_s: float | None
    before: str
    prompt: Side
    cached: Side | None


class Explanation(TypedDict):
    """What the prefix cache has of a prompt."""

    object: Literal["cache_explanation"]
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    block_size: int
    cached_text: str
    miss: MissShown | None


class PinShown(TypedDict):
    """A pin; `expires_in` seconds are left."""

    id: str
    object: Literal["pin"]
    tenant: str | None
    tokens: int
    blocks: int
    expires_in: float


class PinAdded(PinShown):
    """A new pin, and how many tokens had to be computed for it."""

    computed_tokens: int


class Pins(TypedDict):
    """The pins, and what they hold together."""

    object: Literal["list"]
    data: list[PinShown]
    blocks: int
    quota_blocks: int


class PinRemoved(TypedDict):
    """It is gone."""

    id: str
    object: Literal["pin"]
    deleted: Literal[True]


class BlocksDropped(TypedDict):
    """How many cached blocks were forgotten."""

    blocks_dropped: int


class Success(TypedDict):
    """It was done."""

    success: Literal[True]


class Problem(TypedDict):
    """What was wrong: in words, of which kind, the path of the field at fault, and a word for programs."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """Every answer of 400 or more, and the last event of a stream that failed."""

    error: Problem


Document = dict[str, Any]
"""An OpenAPI document."""
