"""What each field of each endpoint does, as a table: `test_each_field.py` sends them alone and looks.

A new endpoint adds an Endpoint to those of `endpoints.py`, a new field an Effect to its endpoint's table; tests fail
until they do.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import httpx

from tests.server.dialects import events_of, message_of, response_of
from tests.server.site import parse_events

ABSENT = ...
"""A field that is not sent."""
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """What came back, as a client sees it."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]
    """Of a stream: what its events add up to."""
    chunks: Sequence[dict[str, Any]] = ()

    @classmethod
    def of(cls, response: httpx.Response) -> "Answered":
        if response.headers["content-type"] == "application/json":
            return cls(response.status_code, response.headers, response.json())
        if any(block.startswith("event: ") for block in response.text.split("\n\n")):  # comments may come first
            events = events_of(response.text)
            made = response_of(events) if events[0]["type"] == "response.created" else message_of(events)
            return cls(response.status_code, response.headers, made, events)
        streamed = parse_events(response.status_code, response.headers, response.text)
        assert streamed.done and not streamed.errors
        return cls(response.status_code, response.headers, gathered(streamed.chunks), streamed.chunks)

    @property
    def seen(self) -> Any:
        """All that depends on what was asked; not on when it was, or what is cached."""
        headers = {name: value for name, value in self.headers.items() if name in _TOLD}
        return self.status, headers, _lasting(self.body)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return self.body["choices"]

    @property
    def texts(self) -> list[str]:
        """Of each choice; in protocols that have blocks, of all that are text together."""
        if "output" in self.body:
            parts = [part for item in self.body["output"] for part in item.get("content", ())]
        elif "content" in self.body:
            parts = self.body["content"]
        else:
            return [each["text"] if "text" in each else each["message"]["content"] for each in self.choices]
        return ["".join(part["text"] for part in parts if "text" in part)]

    @property
    def logprobs(self) -> Any:
        return self.choices[0]["logprobs"]

    @property
    def num_tokens(self) -> int:
        usage = self.body["usage"]
        return usage["output_tokens"] if "output_tokens" in usage else usage["completion_tokens"]

    @property
    def num_prompt(self) -> int:
        """Of a prompt, however it is told."""
        usage = self.body.get("usage", self.body)
        if "tokens" in usage:
            return len(usage["tokens"])
        if "prompt_tokens" in usage:
            return usage["prompt_tokens"]
        return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)

    @property
    def num_cached(self) -> int:
        usage = self.body["usage"]
        if "cache_read_input_tokens" in usage:
            return usage["cache_read_input_tokens"]
        details = "input_tokens_details" if "input_tokens_details" in usage else "prompt_tokens_details"
        return usage[details]["cached_tokens"]

    @property
    def error(self) -> dict[str, Any]:
        """Where its form has no place for the field at fault, the message begins with that."""
        error = self.body["error"]
        return (
            error if "param" in error else {**error, "param": error["message"].split(" ")[0].rstrip(":"), "code": None}
        )


def gathered(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that these chunks are."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        whole |= {name: value for name, value in chunk.items() if value is not None and name != "choices"}
        for each in chunk["choices"]:
            _add(choices.setdefault(each["index"], {}), each)
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Puts what a chunk says to what was said before: texts and lists go on, the rest is there once."""
    for name, value in part.items():
        before = choice.get(name)
        if name == "delta":
            _add(choice.setdefault("message", {}), value)
        elif name == "tool_calls":
            calls = choice.setdefault(name, {})
            for call in value:
                _add(calls.setdefault(call["index"], {}), call)
            choice[name] = calls
        elif before is None or name in ("index", "object"):
            choice[name] = value
        elif isinstance(value, str | list):
            choice[name] = before + value
        elif isinstance(value, dict):
            _add(before, value)


_TOLD = ("x-octavo-max-tokens", "x-octavo-unknown-fields", "content-type")
_MOMENTARY = (
    *("id", "created", "usage", "expires_in", "miss", "cached_tokens", "computed_tokens", "cached_text"),
    *("created_at", "completed_at", "call_id", "request_id"),
)


def _lasting(value: Any) -> Any:
    """Without what is new each time."""
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _lasting(each) for key, each in value.items() if key not in _MOMENTARY}


Shown = Callable[[Answered, Answered], bool]
"""Does the first answer, with the field, beside the second, without it, show what the field does?"""


@dataclass(frozen=True)
class Effect:
    """A field, sent as `value` and then as `other`, both times beside `among`: `shows` says whether that did it."""

    value: Any
    shows: Shown = lambda given, other: given.status == other.status == 200 and given.seen != other.seen
    among: Fields = field(default_factory=dict)
    other: Any = ABSENT
    streams: bool = True
    """Is it the same in a stream?"""


@dataclass(frozen=True)
class Endpoint:
    """One route with a body: a request that works, and what each of its fields does."""

    path: str
    body: Fields
    effects: Mapping[str, Effect]
    names: Mapping[str, str] = field(default_factory=dict)
    """What the tables call a field -> what it is called here."""
    streamed: Fields = field(default_factory=lambda: {"stream": True, "stream_options": {"include_usage": True}})
    """What asks for a stream of which nothing is missing."""
    needs: Mapping[str, Fields] = field(default_factory=dict)
    """What a field has no meaning without."""

    def request(self, effect: Effect, name: str, value: Any) -> dict[str, Any]:
        """The body with the field `name` set to `value`, or without it."""
        among = {self.names.get(name, name): each for name, each in effect.among.items()}
        body = {**self.body, **among, name: value}
        return {name: each for name, each in body.items() if not isinstance(each, EllipsisType)}


def refused(*words: str) -> Shown:
    """A 400 that names the field, and says so."""

    def shows(given: Answered, other: Answered) -> bool:
        assert other.status < 300, other.body
        return given.status == 400 and all(word in given.error["message"] for word in words)

    return shows


def nothing(given: Answered, other: Answered) -> bool:
    """No effect, and the reference says so: see `test_what_has_no_effect_is_said_to_have_none`."""
    return given.status < 300 and given.seen == other.seen


def text(is_so: Callable[[str, str], bool]) -> Shown:
    """About the text of the first choice with the field, and without it."""
    return lambda given, other: is_so(given.texts[0], other.texts[0])


def given(is_so: Callable[[Answered], Any]) -> Shown:
    """It is so with the field, and not without it."""

    def shows(given: Answered, other: Answered) -> bool:
        assert given.status < 300, given.body
        return bool(is_so(given)) and not is_so(other)

    return shows


PROMPT = "the an in of the an in of"
GREEDY: Fields = {"temperature": 0}
MANY: Fields = {**GREEDY, "max_tokens": 30}
ENDING: Fields = {"logit_bias": {"0": 100, "2": 100}}
"""The end-of-text tokens are certain."""
HIDDEN: Fields = {"allowed_token_ids": [2], "ignore_eos": True}
"""All that comes are control tokens."""
LETTERS: Fields = {"allowed_token_ids": [100, 101, 102, 103], "max_tokens": 40, "temperature": 1.5}
"""All that comes are the letters that these spell: see `test_the_tables_know_their_model`."""
SPELLED = "abcd"
BEAMS: Fields = {"use_beam_search": True, "best_of": 4, "max_tokens": 12, "seed": ABSENT, "return_token_ids": True}
ENDED: Fields = {**BEAMS, "n": 4, "stop_token_ids": list(range(100, 180))}
"""Beams that may end at any time."""
YES_OR_NO = {
    "type": "object",
    "properties": {"a": {"enum": ["yes", "no"]}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMED: Fields = {"max_tokens": 40, "temperature": 1.5}


def is_yes_or_no(answer: Answered) -> bool:
    return (
        answer.status == 200 and any(f'"{word}"' in answer.texts[0] for word in ("yes", "no")) and begins_object(answer)
    )


def begins_object(answer: Answered) -> bool:
    return answer.status == 200 and answer.texts[0].startswith("{")


def form(value: Any, is_so: Callable[[Answered], bool], **more: Any) -> Effect:
    return Effect(value, given(is_so), FORMED, **more)


def is_text(*allowed: str) -> Callable[[Answered], bool]:
    return lambda answer: answer.status == 200 and answer.texts[0] in allowed


def json_schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": YES_OR_NO, **more}}


TAG = {"type": "structural_tag", "structures": [{"begin": "<", "schema": YES_OR_NO, "end": ">"}], "triggers": ["<"]}
TAGGED: Fields = {"max_tokens": 40, "temperature": 1.5, "logit_bias": {"63": 100}}
"""What opens the tag is as good as certain."""
CONST = {"type": "structural_tag", "format": {"type": "const_string", "value": "abc"}}

STREAM: Fields = {"stream": True}
USAGE_LAST = Effect(
    {"include_usage": True},
    given(lambda it: not it.chunks[-1]["choices"] and it.chunks[-1]["usage"]["completion_tokens"] == 8),
    STREAM,
)
USAGE_IN_ALL = Effect(
    {"continuous_usage_stats": True}, given(lambda it: all(chunk.get("usage") for chunk in it.chunks)), STREAM
)
GENERATION: Mapping[str, Effect] = {
    "model": Effect("gpt", lambda given, _: given.status == 404 and given.error["code"] == "model_not_found"),
    "temperature": Effect(0),
    "top_p": Effect(1e-9),
    "top_k": Effect(1),
    "typical_p": Effect(0.05),
    "min_p": Effect(1.0),
    "presence_penalty": Effect(2, among=MANY),
    "frequency_penalty": Effect(2, among=MANY),
    "repetition_penalty": Effect(2, among=MANY),
    "seed": Effect(4),
    "stop_token_ids": Effect([101], text(lambda cut, free: cut == free.partition(SPELLED[1])[0] != free), LETTERS),
    "include_stop_str_in_output": Effect(
        True, text(lambda shown, hidden: shown == hidden + SPELLED[1]), {**LETTERS, "stop": [SPELLED[1]]}
    ),
    "ignore_eos": Effect(True, lambda on, ended: (on.num_tokens, ended.num_tokens) == (8, 1), ENDING),
    "min_tokens": Effect(5, lambda late, ended: (late.num_tokens, ended.num_tokens) == (6, 1), ENDING),
    "logit_bias": Effect({"100": 100}, text(lambda biased, free: biased == SPELLED[0] * 8 != free)),
    "allowed_token_ids": Effect([100, 101], text(lambda some, free: set(some) <= set(SPELLED[:2]) and some != free)),
    "bad_words": Effect(["dd"], text(lambda kept, free: "dd" not in kept and "dd" in free), LETTERS),
    "skip_special_tokens": Effect(False, text(lambda shown, hidden: shown == "<|im_end|>" * 8 and not hidden), HIDDEN),
    "structured_outputs": form({"json": YES_OR_NO}, is_yes_or_no),
    "structured_outputs.json": form({"json": YES_OR_NO}, is_yes_or_no),
    "structured_outputs.regex": form({"regex": "[xy]{3}z"}, lambda it: it.texts[0][3:] == "z"),
    "structured_outputs.choice": form({"choice": ["one", "two"]}, is_text("one", "two")),
    "structured_outputs.grammar": form({"grammar": 'start: "abc"'}, is_text("abc")),
    "structured_outputs.json_object": form({"json_object": True}, begins_object),
    "structured_outputs.structural_tag": form({"structural_tag": CONST}, is_text("abc")),
    "stream": Effect(True, lambda given, other: given.headers["content-type"] != other.headers["content-type"]),
    "cache_salt": Effect("another", lambda salted, plain: salted.num_cached == 0 < plain.num_cached),
    "priority": Effect(1, refused("--scheduling-policy")),
    "truncate_prompt_tokens": Effect(3, given(lambda it: it.num_prompt == 3)),
    "request_id": Effect("mine", given(lambda it: it.body["id"][-5:] in ("-mine", "_mine"))),
}
SAMPLING: Mapping[str, Effect] = {
    **GENERATION,
    "n": Effect(3, given(lambda it: len(it.choices) == 3)),
    "best_of": Effect(16, among={"temperature": 1.5}, streams=False),
    "use_beam_search": Effect(True, among={"n": 3, "seed": ABSENT, **GREEDY}),
    "length_penalty": Effect(-3, among=ENDED),
    "early_stopping": Effect(True, among=ENDED),
    "stop": Effect([SPELLED[1]], text(lambda cut, free: cut == free.partition(SPELLED[1])[0] != free), LETTERS),
    "max_tokens": Effect(3, given(lambda it: it.num_tokens == 3)),
    "max_completion_tokens": Effect(3, given(lambda it: it.num_tokens == 3), {"max_tokens": ABSENT}),
    "response_format": form(json_schema(), is_yes_or_no),
    "response_format.json_schema": form(json_schema(), is_yes_or_no),
    "response_format.json_schema.schema": form(json_schema(), is_yes_or_no),
    "response_format.json_schema.name": Effect(json_schema(), nothing, FORMED, json_schema(name="b")),
    "response_format.json_schema.description": Effect(json_schema(description="b"), nothing, FORMED, json_schema()),
    "response_format.json_schema.strict": Effect(json_schema(strict=False), nothing, FORMED, json_schema()),
    "response_format.type": form({"type": "json_object"}, begins_object, other={"type": "text"}),
    "response_format.format": form(CONST, is_text("abc")),
    "response_format.structures": Effect(
        TAG, text(lambda formed, free: formed[:2] == "<{" and free[:2] == "<<"), TAGGED
    ),
    "response_format.triggers": Effect({**TAG, "triggers": ["x"]}, refused("triggers"), FORMED, TAG),
    "guided_json": form(YES_OR_NO, is_yes_or_no),
    "guided_regex": form("[xy]{3}z", lambda it: it.texts[0][3:] == "z"),
    "guided_choice": form(["one", "two"], is_text("one", "two")),
    "guided_grammar": form('start: "abc"', is_text("abc")),
    "stream_options": Effect({"include_usage": True}, refused("stream"), streams=False),
    "stream_options.include_usage": USAGE_LAST,
    "stream_options.continuous_usage_stats": USAGE_IN_ALL,
    "return_token_ids": Effect(True, given(lambda it: len(it.choices[0].get("token_ids", ())) == 8)),
    "prompt_logprobs": Effect(1, given(lambda it: "prompt_logprobs" in str(it.body))),
    "user": Effect("me", nothing),
    "metadata": Effect({"a": "b"}, nothing),
    "safety_identifier": Effect("me", nothing),
    "prompt_cache_key": Effect("key", nothing),
}
COMPLETIONS: Mapping[str, Effect] = {
    **SAMPLING,
    "prompt": Effect("an in of", other=PROMPT),
    "echo": Effect(True, text(lambda echoed, plain: echoed == PROMPT + plain)),
    "logprobs": Effect(2, given(lambda it: it.logprobs and len(it.logprobs["top_logprobs"]) == 8)),
    "return_tokens_as_token_ids": Effect(
        True, given(lambda it: it.logprobs["tokens"][0].startswith("token_id:")), {"logprobs": 0}
    ),
    "add_special_tokens": Effect(
        False, given(lambda it: it.choices[0]["prompt_token_ids"][0] != 1), {"return_token_ids": True}
    ),
}

USER = {"role": "user", "content": "the an in"}
MESSAGES = [USER, {"role": "assistant", "content": "of"}]
CONTINUED: Fields = {"messages": MESSAGES, "continue_final_message": True}
LOGPROBS: Fields = {"logprobs": True}


def function(name: str = "ping", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TOOLS = [function("ping"), function("pong")]
NONSENSE = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
CALLING: Fields = {"tools": TOOLS, "max_tokens": 100}


def called(answer: Answered) -> list[str]:
    if answer.status != 200:
        return []
    blocks = answer.body.get("output", answer.body.get("content"))
    if blocks is not None:
        return [block["name"] for block in blocks if "name" in block]
    calls = answer.choices[0]["message"].get("tool_calls") or ()
    return [call["function"]["name"] for call in (calls.values() if isinstance(calls, dict) else calls)]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]}}


def prompt(is_so: Callable[[int, int], bool]) -> Shown:
    """About the length of the prompt with the field, and without it."""

    return lambda given, other: is_so(given.num_prompt, other.num_prompt)


def longer(given: int, other: int) -> bool:
    return given > other


def shorter(given: int, other: int) -> bool:
    return given < other


NAMED = Effect(function("pong"), given(lambda it: called(it) == ["pong"]), CALLING, "none")
SOME = Effect(allowed("required", "pong"), given(lambda it: set(called(it)) == {"pong"}), CALLING, "none")
SHOWN_TO_TEMPLATE: Mapping[str, Effect] = {
    "tools": Effect(TOOLS, prompt(longer)),
    "tools[].function": Effect(TOOLS, prompt(longer), other=TOOLS[:1]),
    "tools[].function.name": Effect([function("ping_pong")], prompt(longer), other=[function("ping")]),
    "tools[].function.description": Effect([function(description="a game")], prompt(longer), other=[function()]),
    "tools[].function.parameters": Effect([function(parameters=YES_OR_NO)], prompt(longer), other=[function()]),
    "chat_template_kwargs": Effect({"extra": "of the an in of the an"}, prompt(longer)),
    "add_generation_prompt": Effect(False, prompt(shorter)),
    "continue_final_message": Effect(True, prompt(shorter), {"messages": MESSAGES}),
}
CHAT: Mapping[str, Effect] = {
    **SAMPLING,
    **SHOWN_TO_TEMPLATE,
    "messages": Effect([USER], other=MESSAGES),
    "echo": Effect(True, text(lambda echoed, plain: echoed == "of" + plain), CONTINUED),
    "logprobs": Effect(True, given(lambda it: it.logprobs and not it.logprobs["content"][0]["top_logprobs"])),
    "top_logprobs": Effect(2, given(lambda it: len(it.logprobs["content"][0]["top_logprobs"]) == 2), LOGPROBS),
    "return_tokens_as_token_ids": Effect(
        True, given(lambda it: it.logprobs["content"][0]["token"].startswith("token_id:")), LOGPROBS
    ),
    "documents": Effect([{"text": "of the"}], prompt(longer)),
    "tools[].function.strict": Effect(
        [function(parameters=NONSENSE, strict=True)], refused("nonsense"), other=[function(parameters=NONSENSE)]
    ),
    "tool_choice": Effect("required", given(called), CALLING, "none"),
    "tool_choice.function": NAMED,
    "tool_choice.function.name": NAMED,
    "tool_choice.allowed_tools": SOME,
    "tool_choice.allowed_tools.mode": SOME,
    "tool_choice.allowed_tools.tools": SOME,
    "tool_choice.allowed_tools.tools[].function": SOME,
    "tool_choice.allowed_tools.tools[].function.name": SOME,
    "parallel_tool_calls": Effect(
        False,
        lambda one, many: len(called(one)) == 1 < len(called(many)),
        {**CALLING, "tool_choice": "required", "ignore_eos": True, "max_tokens": 160},
    ),
}


def pinned(given: Answered, other: Answered) -> bool:
    """What is pinned begins otherwise: it had to be computed, after the other was."""
    return given.status == other.status == 201 and given.body["computed_tokens"] > 0


OF_MESSAGES: Fields = {"prompt": ABSENT, "messages": [USER]}
TEXT: Mapping[str, Effect] = {
    "model": GENERATION["model"],
    "prompt": Effect("an in of the in of an", other=PROMPT),
    "messages": Effect([USER], lambda given, other: given.status < 300 and other.status == 400, {"prompt": ABSENT}),
    "add_special_tokens": Effect(False),
    "parse_special": Effect(True, among={"prompt": "<|im_end|> the an in of the an"}),
    **{
        name: Effect(effect.value, among={**OF_MESSAGES, **effect.among}, other=effect.other)
        for name, effect in SHOWN_TO_TEMPLATE.items()
    },
    "tools[].function.strict": Effect(
        [function(parameters=NONSENSE, strict=True)], nothing, OF_MESSAGES, [function(parameters=NONSENSE)]
    ),
}
TOKENIZE: Mapping[str, Effect] = {
    **TEXT,
    "content": Effect("the", given(lambda it: it.status == 200), {"prompt": ABSENT}),
    "add_special": Effect(False, prompt(shorter)),
    "return_token_strs": Effect(True, given(lambda it: "token_strs" in it.body)),
}
TO_EMBED: Fields = {"input": ABSENT, "messages": [USER]}


def vector(answer: Answered) -> Any:
    return answer.body["data"][0]["embedding"] if answer.status == 200 else None


def of_length_one(answer: Answered) -> bool:
    return abs(math.hypot(*vector(answer)) - 1) < 1e-5


LONGER = Effect(False, lambda given, other: of_length_one(other) and not of_length_one(given))
EMBEDDINGS: Mapping[str, Effect] = {
    **{name: GENERATION[name] for name in ("model", "priority", "truncate_prompt_tokens", "request_id")},
    "cache_salt": dataclasses.replace(GENERATION["cache_salt"], value="embedded"),
    "input": Effect("an in of", other=PROMPT),
    "messages": Effect([USER], lambda given, other: given.status == 200 and other.status == 400, {"input": ABSENT}),
    "encoding_format": Effect("base64", given(lambda it: isinstance(vector(it), str))),
    "dimensions": Effect(8, given(lambda it: len(vector(it)) == 8)),
    "use_activation": LONGER,
    "normalize": LONGER,
    "add_special_tokens": Effect(False, prompt(shorter)),
    "truncation_side": Effect("right", among={"truncate_prompt_tokens": 3}),
    "add_generation_prompt": Effect(True, prompt(longer), TO_EMBED),
    "continue_final_message": Effect(True, prompt(shorter), {**TO_EMBED, "messages": MESSAGES}),
    "chat_template_kwargs": Effect({"extra": "of the an in of the an"}, prompt(longer), TO_EMBED),
    "user": SAMPLING["user"],
}
IDS = list(range(100, 112))
EXPLAIN: Mapping[str, Effect] = {
    **TEXT,
    "token_ids": Effect(IDS, lambda given, other: given.status < 300 and other.status == 400, {"prompt": ABSENT}),
    "cache_salt": Effect(
        "explained", lambda salted, plain: salted.body["cached_tokens"] == 0 < plain.body["cached_tokens"]
    ),
}
CUT = [USER, {"role": "assistant", "content": "of the an ix"}]
"""With the end of the last turn there is a block more."""
PINS: Mapping[str, Effect] = {
    **{
        name: dataclasses.replace(effect, shows=pinned, among={**effect.among, "cache_salt": f"pins: {name}"})
        for name, effect in EXPLAIN.items()
        if name not in ("model", "messages", "token_ids", "tools[].function.strict")
    },
    **{name: EXPLAIN[name] for name in ("model", "messages", "token_ids", "tools[].function.strict")},
    "cache_salt": Effect("pins", pinned),
    "add_generation_prompt": Effect(True, pinned, {**OF_MESSAGES, "cache_salt": "pins"}),
    "continue_final_message": Effect(
        True, lambda open, closed: open.body["tokens"] < closed.body["tokens"], {"prompt": ABSENT, "messages": CUT}
    ),
    "ttl": Effect(10, given(lambda it: it.body["expires_in"] <= 10)),
}
BEAMED: Fields = {"use_beam_search": True, "seed": None}
ECHOED: Fields = {"echo": True}
ENDPOINTS = (
    Endpoint(
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 8, "seed": 3},
        COMPLETIONS,
        needs={"length_penalty": BEAMED, "max_tokens": ECHOED, "max_completion_tokens": ECHOED},
    ),
    Endpoint(
        "/v1/chat/completions",
        {"messages": [USER], "max_tokens": 8, "seed": 3},
        CHAT,
        needs={
            "length_penalty": BEAMED,
            "top_logprobs": LOGPROBS,
            "max_tokens": {**ECHOED, **CONTINUED},
            "max_completion_tokens": {**ECHOED, **CONTINUED},
        },
    ),
    Endpoint("/v1/embeddings", {"input": PROMPT}, EMBEDDINGS),
    Endpoint("/tokenize", {"prompt": PROMPT}, TOKENIZE),
    Endpoint(
        "/detokenize",
        {"tokens": IDS},
        {"model": GENERATION["model"], "tokens": Effect(IDS[1:], other=IDS)},
    ),
    Endpoint("/octavo/v1/explain", {"prompt": PROMPT}, EXPLAIN),
    Endpoint("/octavo/v1/pins", {"prompt": PROMPT}, PINS),
)
