"""What each field of /v1/responses and /v1/messages does: the tables of `effects.py`, in other words."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.server.effects import (
    GENERATION,
    NONSENSE,
    YES_OR_NO,
    Answered,
    Effect,
    Endpoint,
    Fields,
    Shown,
    begins_object,
    called,
    given,
    is_yes_or_no,
    longer,
    nothing,
    prompt,
    refused,
    text,
)

ASK = "the an in"
COOL = {"temperature": 1}
"""As hot as it may be in Messages."""
LETTERS: Fields = {"allowed_token_ids": [100, 101, 102, 103], "max_tokens": 40, **COOL}


def salted(salt: str) -> Effect:
    """Nobody else's."""
    return dataclasses.replace(GENERATION["cache_salt"], value=salt)


def comes_back(name: str, value: Any) -> Effect:
    """It is in the answer, and changes nothing else."""
    return Effect(value, given(lambda it: it.body[name] == value))


def function(name: str = "ping", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


TOOLS = [function("ping"), function("pong")]
CALLING: Fields = {"tools": TOOLS, "max_output_tokens": 100}
NAMED = Effect(function("pong"), given(lambda it: called(it) == ["pong"]), CALLING, "none")
SOME = Effect(
    {"type": "allowed_tools", "mode": "required", "tools": [function("pong")]},
    given(lambda it: set(called(it)) == {"pong"}),
    CALLING,
    "none",
)
ONE_CALL: Shown = lambda one, many: len(called(one)) == 1 < len(called(many))  # noqa: E731


def json_schema(**more: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "a", "schema": YES_OR_NO, **more}}


def scored(answer: Answered) -> list[Any]:
    return answer.body["output"][0]["content"][0]["logprobs"]


INCLUDED: Fields = {"include": ["message.output_text.logprobs"]}
ROOM: Fields = {"max_output_tokens": 40, "temperature": 1.5}
RESPONSES: Mapping[str, Effect] = {
    **GENERATION,
    "cache_salt": salted("of responses"),
    "input": Effect("an in of", other=ASK),
    "instructions": Effect("of the an", prompt(longer)),
    "tools": Effect(TOOLS, prompt(longer)),
    "tools[].name": Effect([function("ping_pong")], prompt(longer), other=[function()]),
    "tools[].description": Effect([function(description="a game")], prompt(longer), other=[function()]),
    "tools[].parameters": Effect([function(parameters=YES_OR_NO)], prompt(longer), other=[function()]),
    "tools[].strict": Effect(
        [function(parameters=NONSENSE, strict=True)], refused("nonsense"), other=[function(parameters=NONSENSE)]
    ),
    "tool_choice": Effect("required", given(called), CALLING, "none"),
    "tool_choice.name": NAMED,
    "tool_choice.mode": SOME,
    "tool_choice.tools": SOME,
    "tool_choice.tools[].name": SOME,
    "parallel_tool_calls": Effect(
        False,
        ONE_CALL,
        {**CALLING, "tool_choice": "required", "ignore_eos": True, "max_output_tokens": 160},
    ),
    "text": Effect(json_schema(), given(is_yes_or_no), ROOM),
    "text.format": Effect(json_schema(), given(is_yes_or_no), ROOM),
    "text.format.schema": Effect(json_schema(), given(is_yes_or_no), ROOM),
    "text.format.type": Effect(
        {"format": {"type": "json_object"}}, given(begins_object), ROOM, {"format": {"type": "text"}}
    ),
    "text.format.name": Effect(json_schema(), text(lambda given, other: given == other), ROOM, json_schema(name="b")),
    "text.format.description": Effect(
        json_schema(description="b"), text(lambda given, other: given == other), ROOM, json_schema()
    ),
    "text.format.strict": Effect(
        json_schema(strict=False), text(lambda given, other: given == other), ROOM, json_schema()
    ),
    "max_output_tokens": Effect(3, given(lambda it: it.num_tokens == 3)),
    "include": Effect(INCLUDED["include"], given(scored)),
    "top_logprobs": Effect(2, given(lambda it: len(scored(it)[0]["top_logprobs"]) == 2), INCLUDED),
    "stream_options": Effect({}, refused("stream"), streams=False),
    "stop": Effect(["b"], text(lambda cut, free: cut == free.partition("b")[0] != free), LETTERS),
    "chat_template_kwargs": Effect({"extra": "of the an in of the an"}, prompt(longer)),
    "reasoning": Effect({}, nothing),
    "metadata": comes_back("metadata", {"a": "b"}),
    "max_tool_calls": comes_back("max_tool_calls", 3),
    "user": comes_back("user", "me"),
    "safety_identifier": comes_back("safety_identifier", "me"),
    "prompt_cache_key": comes_back("prompt_cache_key", "mine"),
}

USER = {"role": "user", "content": ASK}
CACHED = {"type": "ephemeral"}
KEPT = {**CACHED, "ttl": "1h"}


def tool(name: str = "ping", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **more}


USED: Fields = {"tools": [tool("ping"), tool("pong")], "max_tokens": 100}
TURNS: Mapping[str, Effect] = {
    "model": Effect("gpt", lambda given, _: given.status == 404 and given.error["type"] == "not_found_error"),
    "messages": Effect(
        [USER], prompt(lambda one, two: one < two), other=[USER, {"role": "assistant", "content": "of"}]
    ),
    "system": Effect("of the an", prompt(longer)),
    "tools": Effect([tool()], prompt(longer)),
    "tools[].name": Effect([tool("ping_pong")], prompt(longer), other=[tool()]),
    "tools[].description": Effect([tool(description="a game")], prompt(longer), other=[tool()]),
    "tools[].input_schema": Effect([tool(input_schema=YES_OR_NO)], prompt(longer), other=[tool()]),
    "tools[].input_examples": Effect([tool(input_examples=[{"a": "yes"}])], prompt(longer), other=[tool()]),
    "tools[].cache_control": Effect([tool(cache_control=CACHED)], nothing, other=[tool()]),
    "tools[].cache_control.ttl": Effect([tool(cache_control=KEPT)], nothing, other=[tool(cache_control=CACHED)]),
    "cache_control": Effect(CACHED, nothing),
    "cache_control.ttl": Effect(KEPT, nothing, other=CACHED),
    "thinking": Effect({"type": "disabled"}, nothing),
    "thinking.type": Effect({"type": "adaptive"}, nothing, other={"type": "disabled"}),
    "thinking.display": Effect({"type": "adaptive", "display": "omitted"}, nothing, other={"type": "adaptive"}),
    "chat_template_kwargs": Effect({"extra": "of the an in of the an"}, prompt(longer)),
}
STRICT = [tool(input_schema=NONSENSE, strict=True)]
OUTPUT = {"format": {"type": "json_schema", "schema": YES_OR_NO}}
NONE: Fields = {"type": "none"}
FORM = Effect(OUTPUT, given(is_yes_or_no), {"max_tokens": 40, **COOL})
PONG = Effect({"type": "tool", "name": "pong"}, given(lambda it: called(it) == ["pong"]), USED, NONE)
MESSAGES: Mapping[str, Effect] = {
    **{
        name: dataclasses.replace(effect, among={**effect.among, **(COOL if "temperature" in effect.among else {})})
        for name, effect in GENERATION.items()
    },
    **TURNS,
    "cache_salt": salted("of messages"),
    "tools[].strict": Effect(STRICT, refused("nonsense"), other=[tool(input_schema=NONSENSE)]),
    "tool_choice": Effect({"type": "any"}, given(called), USED, NONE),
    "tool_choice.type": Effect({"type": "any"}, given(called), USED, NONE),
    "tool_choice.name": PONG,
    "tool_choice.disable_parallel_tool_use": Effect(
        {"type": "any", "disable_parallel_tool_use": True},
        ONE_CALL,
        {**USED, "ignore_eos": True, "max_tokens": 160},
        {"type": "any"},
    ),
    "output_config": FORM,
    "output_config.format": FORM,
    "output_config.format.schema": FORM,
    "max_tokens": Effect(3, given(lambda it: it.num_tokens == 3), other=8),
    "stop_sequences": Effect(["b"], text(lambda cut, free: cut == free.partition("b")[0] != free), LETTERS),
    "metadata": Effect({"user_id": "me"}, nothing),
    "metadata.user_id": Effect({"user_id": "me"}, nothing, other={}),
}
COUNTED: Mapping[str, Effect] = {
    **TURNS,
    "tools[].strict": Effect(STRICT, nothing, other=[tool(input_schema=NONSENSE)]),
    "tool_choice": Effect(NONE, nothing, {"tools": [tool()]}),
    "tool_choice.type": Effect({"type": "any"}, nothing, {"tools": [tool()]}, NONE),
    "tool_choice.name": Effect({"type": "tool", "name": "ping"}, nothing, {"tools": [tool()]}),
    "tool_choice.disable_parallel_tool_use": Effect(
        {"type": "any", "disable_parallel_tool_use": True}, nothing, {"tools": [tool()]}
    ),
    "output_config": Effect(OUTPUT, nothing),
    "output_config.format": Effect(OUTPUT, nothing),
    "output_config.format.schema": Effect(OUTPUT, nothing),
}
STREAMED: Fields = {"stream": True}
ENDPOINTS = (
    Endpoint(
        "/v1/responses",
        {"input": ASK, "max_output_tokens": 8, "seed": 3},
        RESPONSES,
        names={"max_tokens": "max_output_tokens"},
        streamed=STREAMED,
        needs={"top_logprobs": INCLUDED},
    ),
    Endpoint(
        "/v1/messages",
        {"messages": [USER], "max_tokens": 8, "seed": 3},
        MESSAGES,
        names={"stop": "stop_sequences"},
        streamed=STREAMED,
    ),
    Endpoint("/v1/messages/count_tokens", {"messages": [USER]}, COUNTED),
)
