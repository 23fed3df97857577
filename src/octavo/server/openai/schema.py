"""The bodies of requests: every field that is honoured, with its type. All optional ones may be null.

Ranges are told here and checked in `core.sampling`, once, for every way in. Fields that are known and not honoured yet
are in `fields.py`. What is in neither is unknown, and the client is told so.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from octavo.config.tenants import HIGHEST_PRIORITY, LOWEST_PRIORITY
from octavo.core.sampling import BOUNDS, SamplingParams
from octavo.server.openai.body import kind_of, shown
from octavo.server.openai.errors import ApiError
from octavo.server.openai.fields import NOT_YET, Known


def wrong(allowed: str, value: object) -> PydanticCustomError:
    """The error of a value that is not `allowed`, for validators of our own."""
    return PydanticCustomError("allowed", "{allowed}", {"allowed": allowed, "value": shown(value)})


def _early(value: object) -> bool | str | None:
    if value is None or isinstance(value, bool) or value == "never":
        return value  # type: ignore[return-value]
    raise wrong('true, false, "never", or null', value)


def _texts(value: object) -> list[str] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong("a string, an array of strings, or null", value)
    return texts


def _bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong("an object from token ids to numbers, or null", value)
    return {_token(key): _number(key, bias) for key, bias in value.items()}


def _token(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 19):
        raise wrong("an object whose names are token ids", key)
    return int(key)


def _number(key: str, value: object) -> float:
    """The number as it came: whoever knows the range makes it a float, which not every integer can become."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"an object whose values are numbers (that of {key!r} is not)", value)
    return value


def prompts(value: object) -> list[str] | list[list[int]]:
    """One list of prompts, all texts or all ids, whichever of the four forms came."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong(_PROMPT, value)
    kinds = set(map(type, value))
    if kinds == {str}:
        return value
    if kinds == {int}:
        return [value]
    if kinds == {list} and all(ids and set(map(type, ids)) == {int} for ids in value):
        return value
    raise wrong(_PROMPT, value)


_PROMPT = "a string, an array of strings, an array of token ids, or an array of arrays of token ids, none of them empty"
_TEXT_LIST_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _IDS_SCHEMA,
        {"type": "array", "items": _IDS_SCHEMA},
    ]
}
_EARLY_SCHEMA = {"anyOf": [{"type": "boolean"}, {"const": "never"}, {"type": "null"}]}
_BIAS_SCHEMA = {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}

Texts = Annotated[list[str] | None, PlainValidator(_texts), WithJsonSchema(_TEXT_LIST_SCHEMA)]
Early = Annotated[bool | str | None, PlainValidator(_early), WithJsonSchema(_EARLY_SCHEMA)]
Bias = Annotated[dict[int, float] | None, PlainValidator(_bias), WithJsonSchema(_BIAS_SCHEMA)]


class FirstOnly(FailFast):
    """One element at fault is enough: a list of a million others would make a million errors."""

    def __hash__(self) -> int:  # `| None` puts it into a set
        return id(self)


ShortText = Annotated[str, StringConstraints(max_length=128)]
Ids = Annotated[list[int], FirstOnly()]
Words = Annotated[list[str], FirstOnly()]
Objects = Annotated[list[dict[str, Any]], FirstOnly()]
Prompts = Annotated[list[str] | list[list[int]], PlainValidator(prompts), WithJsonSchema(PROMPT_SCHEMA)]


FUNCTION_NAME = r"^[A-Za-z0-9_.-]{1,128}$"


def _content(value: object) -> str | list[dict[str, Any]]:
    if isinstance(value, str) or (isinstance(value, list) and all(type(part) is dict for part in value)):
        return value  # type: ignore[return-value]
    raise wrong("a string or an array of objects", value)


_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
Content = Annotated[str | list[dict[str, Any]], PlainValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)]
"""A text, or the parts of one."""


class Only:
    """For a field of a part of a body, of which these values and null ask for what happens anyway, and nothing else."""

    def __init__(self, why: str, *neutral: Any) -> None:
        self._known = Known(why, neutral)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": [*({"const": value} for value in self._known.neutral), {"type": "null"}]}

    def _checked(self, value: Any) -> Any:
        if self._known.asks_for_nothing(value):
            return value
        allowed = " or ".join([*map(json.dumps, self._known.neutral), "null"])
        raise wrong(f"{allowed} ({self._known.why})", value)


def optional(description: str, means: Any = None, **schema: Any) -> Any:
    """A field that may be left out or null. `means` says what both are the same as: a value, or a text in words.

    `schema` is what else a reader should know: its range, where that is checked later.
    """
    named = {DEFAULT_IN_WORDS: means, "default": None} if isinstance(means, str) else {"default": means}
    return Field(default=None, description=description, json_schema_extra={**named, **schema})


def sampled(name: str, description: str, means: Any = ..., **schema: Any) -> Any:
    """An optional field that becomes SamplingParams' `name`: its range and default are those, but for what is given."""
    bounds, default = BOUNDS.get(name), _DEFAULTS[name] if means is ... else means
    limits: dict[str, Any] = {}
    if bounds is not None:
        low = "exclusiveMinimum" if bounds.above else "minimum"
        limits = {low: bounds.lowest, "maximum": bounds.highest}
    known = {key: value for key, value in limits.items() if value is not None}
    return optional(description, list(default) if isinstance(default, tuple) else default, **{**known, **schema})


DEFAULT_IN_WORDS = "x-octavo-default"
"""What leaving a field out means, in its schema, where no value says it."""
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(SamplingParams)}


class Body(BaseModel):
    """Strict: a string is no number, 1 is not true. Unknown names are kept in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    refused: ClassVar[Mapping[str, Known]] = {}
    """Names that clients know and this kind of request cannot have. One that is a field of it too is honoured."""
    counted: ClassVar[Mapping[str, str]] = {}
    """Fields that hold many of something else than elsewhere -> the setting that says how many."""

    model: str | None = optional("The served model's name.", "the one that is served")


class Part(BaseModel):
    """An object in a body. As strict, and nothing unknown may be in it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(Part):
    include_usage: bool | None = optional("One more chunk at the end, with `choices: []` and the usage.", False)
    continuous_usage_stats: bool | None = optional("The usage so far in every chunk.", False)
    include_obfuscation: Literal[False] | None = optional("Padding against traffic analysis: not available.", False)


class JsonSchema(Part):
    name: str = Field(min_length=1, max_length=64, description="What the schema is called.")
    schema_: dict[str, Any] = Field(alias="schema", description="A JSON Schema.")
    description: str | None = optional("No effect: the model is not shown the schema.")
    strict: bool | None = optional("No effect: the answer always follows the schema.")


class ResponseFormat(Part):
    """OpenAI's form of an answer."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = Field(description="What it is.")
    json_schema: JsonSchema | None = optional("With the type json_schema.")
    structures: list[Any] | None = optional("With the type structural_tag: objects with begin, schema and end.")
    triggers: list[Any] | None = optional("With the type structural_tag: what a structure begins with.")
    format: dict[str, Any] | None = optional("With the type structural_tag: the newer notation, instead of both.")


class StructuredOutputs(Part):
    """vLLM's form of an answer: one of these."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json", description="A JSON Schema.")
    regex: str | None = optional("A regular expression for the whole answer.")
    choice: list[str] | None = optional("The texts of which the answer is one.")
    grammar: str | None = optional("A grammar in Lark's notation or in GBNF.")
    json_object: bool | None = optional("Any JSON object.")
    structural_tag: dict[str, Any] | str | None = optional("Free text with structures, as response_format has them.")
    disable_fallback: Literal[True] | None = optional("No effect: there is one backend.")
    disable_any_whitespace: Literal[False] | None = optional("White space is bounded, not left out.")
    disable_additional_properties: Literal[False] | None = optional("The schema says it.")
    whitespace_pattern: None = optional("Not available: white space is bounded.")


class Function(BaseModel):
    """A function that a model may call. More fields are shown to the chat template."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: str = Field(pattern=FUNCTION_NAME, description="Letters, digits, `_`, `.` and `-`.")
    description: str | None = optional("What it does: for the model.")
    parameters: dict[str, Any] | None = optional("A JSON Schema of the arguments, an object. None: it takes none.")
    strict: bool | None = optional("Arguments follow the schema also where the model chooses (tool_choice auto).")


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["function"] = Field(description="What it is.")
    function: Function = Field(description="The function.")


class NamedFunction(Part):
    name: str = Field(description="A function's name.")


class NamedTool(Part):
    """The function to call."""

    type: Literal["function"] = Field(description="What it is.")
    function: NamedFunction = Field(description="The function.")


class Allowed(Part):
    mode: Literal["auto", "required"] = Field(description="Whether one must be called.")
    tools: Annotated[list[NamedTool], FirstOnly()] = Field(min_length=1, description="The functions.")


class AllowedTools(Part):
    """Some of the tools only; the prompt has all."""

    type: Literal["allowed_tools"] = Field(description="What it is.")
    allowed_tools: Allowed = Field(description="Which.")


_CHOICES = ("none", "auto", "required")


def _tool_choice(value: object) -> "str | NamedTool | AllowedTools | None":
    if value is None or (isinstance(value, str) and value in _CHOICES):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function" or kind == "allowed_tools":
        try:
            return NamedTool.model_validate(value) if kind == "function" else AllowedTools.model_validate(value)
        except ValidationError:
            raise wrong(_FORMS[kind], value) from None
    raise wrong("none, auto, required, or an object whose type is function or allowed_tools", value)


_NAMED = '{"type": "function", "function": {"name": ...}}'
_FORMS = {
    "function": _NAMED,
    "allowed_tools": f'{{"type": "allowed_tools", "allowed_tools": {{"mode": ..., "tools": [{_NAMED}, ...]}}}}',
}
Tools = Annotated[list[Tool], FirstOnly()]
ToolChoice = Annotated[
    str | NamedTool | AllowedTools | None,
    PlainValidator(
        _tool_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool | AllowedTools | None
    ),
]


class Generation(Body):
    """What every request that generates may say, in whichever protocol."""

    temperature: float | None = sampled("temperature", "How freely tokens are drawn. 0 is greedy.")
    top_p: float | None = sampled("top_p", "Sample from the most likely tokens that make up this probability.")
    top_k: int | None = sampled("top_k", "Sample from the k most likely tokens; 0 or -1: all.", minimum=-1)
    typical_p: float | None = sampled(
        "typical_p", "Sample from the tokens that surprise about as much as is to be expected, of this probability."
    )
    min_p: float | None = sampled("min_p", "Sample from tokens at least this share as likely as the best one.")
    presence_penalty: float | None = sampled("presence_penalty", "Lowers tokens that were generated before.")
    frequency_penalty: float | None = sampled(
        "frequency_penalty", "Lowers tokens by how often they were generated before."
    )
    repetition_penalty: float | None = sampled(
        "repetition_penalty", "Divides the logits of tokens in prompt or answer."
    )
    seed: int | None = sampled(
        "seed", "Repeats a sample; the one used comes back in the header x-octavo-seed.", "drawn"
    )
    stop_token_ids: Ids | None = sampled("stop_token_ids", "Tokens that end the answer.")
    include_stop_str_in_output: bool | None = sampled(
        "include_stop_str_in_output", "Whether the text that ended the answer is part of it."
    )
    ignore_eos: bool | None = sampled(
        "ignore_eos", "Do not end at the model's end-of-text tokens. A form of the answer that is complete ends it."
    )
    min_tokens: int | None = sampled(
        "min_tokens",
        "No token and no stop string ends the answer before this many; but a form of the answer that is complete does.",
    )
    logit_bias: Bias = sampled(
        "logit_bias",
        "Token id -> a number from -100 to 100 that is added to its logit: at most --max-logit-bias tokens.",
        {},
    )
    allowed_token_ids: Ids | None = sampled("allowed_token_ids", "Sample from these tokens only.", "all tokens")
    bad_words: Words | None = sampled(
        "bad_words",
        "Words that are not generated as they are spelled at the beginning and behind a space: at most "
        "--max-bad-words. Not with use_beam_search.",
    )
    skip_special_tokens: bool | None = sampled("skip_special_tokens", "Leave control tokens out of the text.")
    structured_outputs: StructuredOutputs | None = optional("The form that the answer has, vLLM's way.")
    stream: bool | None = optional("Send server-sent events as the tokens come.", False)
    cache_salt: str | None = optional("Share cached prompts only with requests of the same salt. Not empty.")
    priority: int | None = optional(
        "Lower goes first; needs --scheduling-policy priority if not 0.",
        "the tenant's, or 0",
        minimum=HIGHEST_PRIORITY,
        maximum=LOWEST_PRIORITY,
    )
    truncate_prompt_tokens: int | None = optional(
        "Keep only this many tokens of the prompt, the last; -1: as many as fit.", "a prompt that is too long: 400"
    )
    request_id: ShortText | None = optional(
        "Becomes part of the answer's id, which is in each chunk of a stream.", "drawn"
    )


class Sampling(Generation):
    """What chat and completions have in common."""

    refused: ClassVar[Mapping[str, Known]] = NOT_YET

    n: int | None = sampled("n", "Choices for each prompt: at most --max-num-seqs, and with all prompts --max-choices.")
    best_of: int | None = sampled(
        "best_of",
        "Generate this many, return the n with the highest sum of logprobs, best first; usage counts those. Not with "
        "stream. With use_beam_search: the number of beams. At most --max-num-seqs.",
        "n",
    )
    use_beam_search: bool | None = sampled(
        "use_beam_search",
        "Search for the most likely answers instead of drawing: n of best_of beams, best first, all at once when they "
        "are known, in a stream too. Stop strings cut the answers that were found. Not with temperature (but 0 or 1), "
        "top_p, top_k, min_p, typical_p, penalties, logit_bias, allowed_token_ids, bad_words, or a form of the answer.",
    )
    length_penalty: float | None = sampled(
        "length_penalty",
        "A beam scores its sum of logprobs / its number of generated tokens ** this: higher favours long answers. Only "
        "with use_beam_search.",
    )
    early_stopping: Early = sampled(
        "early_stopping",
        "When a beam search is over, as in Transformers: true: as soon as best_of answers have ended; false: when the "
        'beams that go on are unlikely to be better than the worst of those; "never": when they cannot be. Only with '
        "use_beam_search.",
    )
    stop: Texts = sampled("stop", "Texts that end the answer: at most --max-stop-strings, none empty.")
    max_tokens: int | None = sampled(
        "max_tokens",
        "Most tokens to generate; lowered to the room that the context leaves (400 with --strict). 0 only with echo.",
        "16 in completions; in a chat the room that the context leaves",
        minimum=0,
    )
    max_completion_tokens: int | None = sampled("max_tokens", "The same as max_tokens.", "max_tokens", minimum=0)
    prompt_logprobs: int | None = sampled(
        "prompt_logprobs", "Logprobs of the prompt's tokens, with this many alternatives."
    )
    response_format: ResponseFormat | None = optional("The form that the answer has, OpenAI's way.")
    guided_json: dict[str, Any] | str | None = optional("The older name of structured_outputs.json.")
    guided_regex: str | None = optional("The older name of structured_outputs.regex.")
    guided_choice: list[str] | None = optional("The older name of structured_outputs.choice.")
    guided_grammar: str | None = optional("The older name of structured_outputs.grammar.")
    stream_options: StreamOptions | None = optional("Only with stream.")
    echo: bool | None = optional("Put the prompt (in chat: the message that is continued) before the answer.", False)
    return_token_ids: bool | None = optional("Also answer prompt_token_ids and token_ids.", False)
    return_tokens_as_token_ids: bool | None = optional("Write tokens in logprobs as `token_id:N`.", False)
    user: str | None = optional("No effect: nothing is recorded about users.")
    metadata: dict[str, Any] | None = optional("No effect: nothing is stored.")
    safety_identifier: str | None = optional("No effect: nothing is recorded about users.")
    prompt_cache_key: str | None = optional("No effect: a hint for routing, and prompts are found by their content.")


class ChatRequest(Sampling):
    """POST /v1/chat/completions"""

    messages: Objects = Field(
        description="The conversation, at most --max-messages. Content is a string or text parts."
    )
    logprobs: bool | None = optional("Report the logprob of each token.", False)
    top_logprobs: int | None = sampled("logprobs", "How many alternatives to report with it; needs logprobs.", 0)
    add_generation_prompt: bool | None = optional(
        "Let the template open the assistant's turn.", "true, and false with continue_final_message"
    )
    continue_final_message: bool | None = optional("Go on with the last message, instead of a new turn.", False)
    chat_template_kwargs: dict[str, Any] | None = optional(
        "More variables for the chat template. Those that it does not read are told of as unknown fields are."
    )
    documents: Objects | None = optional("Documents for chat templates that use them: others refuse them.")
    tools: Tools | None = optional("Functions that the model may call.")
    tool_choice: ToolChoice | None = optional(
        "none, auto, required, or the function to call.", "auto with tools, otherwise none"
    )
    parallel_tool_calls: bool | None = optional("Whether an answer may have several calls.", True)


class CompletionRequest(Sampling):
    """POST /v1/completions"""

    prompt: Prompts = Field(description="One prompt or many (--max-prompts), as text or as token ids.")
    logprobs: int | None = sampled("logprobs", "Report the logprob of each token, with this many alternatives.")
    add_special_tokens: bool | None = optional("Add the tokenizer's BOS to a text.", True)


class TextRequest(Body):
    """A text, as it is or through the chat template: what becomes token ids."""

    prompt: str | None = optional("A text.")
    messages: Objects | None = optional("A conversation, put through the chat template.")
    add_special_tokens: bool | None = optional("Add the tokenizer's BOS to a text.", True)
    parse_special: bool | None = optional(
        "Read control tokens in the text as such.", "as in a prompt (--allow-special-tokens-in-text)"
    )
    add_generation_prompt: bool | None = optional("For messages.", "true, and false with continue_final_message")
    continue_final_message: bool | None = optional("For messages.", False)
    chat_template_kwargs: dict[str, Any] | None = optional("For messages.")
    tools: Tools | None = optional("For messages: shown to the template.")


class TokenizeRequest(TextRequest):
    """POST /tokenize: `prompt` (or `content`), or `messages`."""

    content: str | None = optional("The same as prompt.")
    parse_special: bool | None = optional(
        "Read control tokens in the text as such.",
        "as in a prompt (--allow-special-tokens-in-text), but a text that is one control token, whole, is that token",
    )
    add_special: bool | None = optional("The same as add_special_tokens.", True)
    return_token_strs: bool | None = optional("Also answer the text of each token.", False)


class PrefixRequest(TextRequest):
    """POST /octavo/v1/explain: `prompt`, `token_ids` or `messages`."""

    token_ids: Ids | None = optional("Token ids.")
    cache_salt: str | None = optional("The salt of the requests that it is about.")


DEFAULT_TTL_S, MAX_TTL_S = 3600.0, 30 * 86400.0


class PinRequest(PrefixRequest):
    """POST /octavo/v1/pins: `prompt`, `token_ids` or `messages`."""

    add_generation_prompt: bool | None = optional("For messages.", False)
    ttl: float | None = optional("How long it stays, in seconds.", DEFAULT_TTL_S, minimum=1, maximum=MAX_TTL_S)


class DetokenizeRequest(Body):
    """POST /detokenize"""

    tokens: Ids = Field(description="Token ids.")


Model = TypeVar("Model", bound=Body)
Object = TypeVar("Object", bound=BaseModel)


def validate(kind: type[Object], value: dict[str, Any], within: tuple[int | str, ...] = ()) -> Object:
    """`value`, which lies `within` a body, as a `kind`.

    Raises ApiError 400 that names the first field at fault and what it must be.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _explain(error, within) from None


_ALLOWED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def _explain(error: ValidationError, within: tuple[int | str, ...]) -> ApiError:
    first = error.errors(include_url=False)[0]
    param = path_of((*within, *first["loc"]))
    code, context, value = "invalid_type", first.get("ctx", {}), first["input"]
    if first["type"] == "missing":
        return ApiError(400, f"{param} is required", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not a known field", param=param, code="unknown_parameter")
    if first["type"] == "allowed":
        message = f"{param} must be {context['allowed']}, got {context['value']}"
    elif first["type"] == "string_too_long":
        message = f"{param} must be a string of at most {context['max_length']} characters, got {len(value)}"
    elif first["type"] in _ALLOWED:
        message = f"{param} must be {_ALLOWED[first['type']]}, got {kind_of(value)}: {shown(value)}"
    else:
        code = "invalid_value"
        message = f"{param}: {first['msg']}, got {shown(value)}"
    return ApiError(400, message, param=param, code=code)


def path_of(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "content") -> messages[0].content"""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return path.removeprefix(".")
