"""POST /v1/messages, asked by Anthropic's own client: what it puts together, each field, what is refused by name."""

import inspect
import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic.resources.messages import Messages
from pydantic import BaseModel

from octavo.models.checkpoint import Checkpoint
from octavo.server.anthropic.schema import CountRequest, MessagesRequest, ToolUse
from tests.server.dialects import events_of, message_of
from tests.server.site import PATIENCE_S, Site, running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"name": "get_weather", "description": "It", "input_schema": SCHEMA}
PING: Any = {"name": "ping", "input_schema": {"type": "object"}}
USER: Any = [{"role": "user", "content": "the"}]
ANY = {"type": "any"}


@pytest.fixture(scope="module")
def tooled(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server whose template knows tools: its context is too small to tell of them in words."""
    with running(checkpoint) as site:
        assert site.app.service.template is not None
        site.app.service.template.knows_tools = True
        yield site


@pytest.fixture(scope="module")
def client(tooled: Site) -> Iterator[anthropic.Anthropic]:
    with anthropic.DefaultHttpxClient(trust_env=False) as http:
        yield anthropic.Anthropic(
            base_url=tooled.url, api_key="none", max_retries=0, timeout=PATIENCE_S, http_client=http
        )


def ask(site: Site, messages: Any = USER, **fields: Any) -> Any:
    return site.post("/v1/messages", {"messages": messages, "temperature": 0, "max_tokens": 6, **fields})


def answer(site: Site, messages: Any = USER, **fields: Any) -> dict[str, Any]:
    response = ask(site, messages, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(site: Site, messages: Any = USER, **fields: Any) -> str:
    response = ask(site, messages, **fields)
    assert response.status_code == 400, response.text
    told = response.json()
    assert told.keys() == {"type", "error", "request_id"} and told["type"] == "error"
    assert told["error"]["type"] == "invalid_request_error" and told["request_id"] == response.headers["request-id"]
    return told["error"]["message"]


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"])


def input_tokens(usage: dict[str, Any]) -> int:
    """All of them: what was computed and what was found."""
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def plain(message: Any) -> Any:
    """But for ids, which are new each time, and what depends on the cache."""
    fields = message.to_dict()
    content = [{key: value for key, value in block.items() if key != "id"} for block in fields["content"]]
    return fields["role"], content, fields["stop_reason"], fields.get("stop_sequence"), fields["usage"]["output_tokens"]


def test_a_message_is_the_answer_of_the_same_chat(tooled: Site) -> None:
    chat = tooled.chat([{"role": "system", "content": "Be"}, *USER], max_tokens=6).json()
    message = answer(tooled, system="Be")
    assert text_of(message) == chat["choices"][0]["message"]["content"]
    assert (message["stop_reason"], message["role"], message["model"]) == ("max_tokens", "assistant", "tiny")
    assert input_tokens(message["usage"]) == chat["usage"]["prompt_tokens"]
    assert message["usage"]["output_tokens"] == 6
    blocks = [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}]
    assert text_of(answer(tooled, system=blocks)) == text_of(message)


def test_the_client_reads_whole_answers_and_streams(client: anthropic.Anthropic) -> None:
    free = client.messages.create(model="tiny", messages=USER, max_tokens=9, extra_body={"temperature": 0})
    assert free.content[0].type == "text" and free.stop_reason == "max_tokens"
    stop = free.content[0].text[3:5]
    fields: Any = {"model": "tiny", "messages": USER, "max_tokens": 9, "extra_body": {"temperature": 0}}
    fields["stop_sequences"] = ["never", stop]
    whole = client.messages.create(**fields)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", stop)
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert plain(final) == plain(whole) and text == free.content[0].text.partition(stop)[0]


@pytest.mark.parametrize("choice", [ANY, {"type": "tool", "name": "get_weather"}], ids=str)
def test_the_client_reads_tool_use(client: anthropic.Anthropic, choice: Any) -> None:
    fields: Any = {
        "model": "tiny",
        "messages": USER,
        "tools": [WEATHER],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "max_tokens": 150,
        "extra_body": {"temperature": 1, "seed": 4},
    }
    whole = client.messages.create(**fields)
    (use,) = whole.content
    assert use.type == "tool_use" and use.name == "get_weather" and use.input.keys() == {"city", "unit"}
    assert whole.stop_reason == "tool_use" and use.id
    with client.messages.stream(**fields) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert plain(final) == plain(whole) and json.loads("".join(pieces)) == use.input and len(pieces) > 3


def test_more_than_one_tool_may_be_asked_for() -> None:
    """As with parallel_tool_calls, which where a template knows no tools must be true for it."""
    said = ({"disable_parallel_tool_use": False}, {"disable_parallel_tool_use": True}, {})
    assert [ToolUse.model_validate({**ANY, **each}).several for each in said] == [True, False, None]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    dry: bool


def test_answers_are_parsed_into_classes(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": "tiny", "messages": USER, "max_tokens": 120, "output_format": Weather}
    fields["extra_body"] = {"temperature": 1, "seed": 4}
    parsed = client.messages.parse(**fields).parsed_output
    assert isinstance(parsed, Weather)
    with client.messages.stream(**fields) as stream:
        assert stream.get_final_message().parsed_output == parsed


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic, tooled: Site) -> None:
    """Whatever makes the prompt: blocks, tools, results, a beginning of the answer."""
    use = {"type": "tool_use", "id": "t", "name": "ping", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}]}
    long = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "an"}, use]}]
    long += [{"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
    cases: list[dict[str, Any]] = [
        {"messages": USER},
        {"messages": USER, "system": "Be"},
        {"messages": long, "tools": [PING, WEATHER], "system": [{"type": "text", "text": "Be"}]},
        {"messages": long, "tools": [PING], "tool_choice": {"type": "none"}},
        {"messages": [*USER, {"role": "assistant", "content": "an"}]},
        {"messages": USER, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ]
    for case in cases:
        counted = client.messages.count_tokens(model="tiny", **case)
        for _ in range(2):  # the second time it is in the cache
            usage = client.messages.create(model="tiny", max_tokens=1, **case).usage
            assert input_tokens(usage.to_dict()) == counted.input_tokens
    too_long = tooled.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "an " * 500}]})
    assert too_long.json()["input_tokens"] > 500


def test_what_is_in_the_cache_is_counted_apart(tooled: Site) -> None:
    fields: dict[str, Any] = {"system": "a long prompt of the system " * 3, "cache_salt": "fresh"}
    first, second = (answer(tooled, **fields)["usage"] for _ in range(2))
    assert (first["cache_read_input_tokens"], first["cache_creation_input_tokens"]) == (0, 0)
    assert second["cache_read_input_tokens"] > 30 and input_tokens(second) == input_tokens(first)
    streamed = message_of(events_of(ask(tooled, stream=True, **fields).text))["usage"]
    assert streamed == second


def test_turns_become_the_messages_of_a_chat(tooled: Site) -> None:
    """Results before what the user says, calls within their turn, and turns of one role that follow each other one."""
    uses = [{"type": "tool_use", "id": id_, "name": "ping", "input": {"a": 1}} for id_ in "xy"]
    results = [
        {"type": "tool_result", "tool_use_id": "x", "content": "ok"},
        {"type": "tool_result", "tool_use_id": "y", "content": "no such file", "is_error": True},
    ]
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "an"}, *uses]},
        {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
    ]
    calls = [{"id": id_, "function": {"name": "ping", "arguments": '{"a": 1}'}, "type": "function"} for id_ in "xy"]
    chat = [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "an", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
        {"role": "tool", "tool_call_id": "y", "content": "Error:\nno such file"},
        {"role": "user", "content": "So?"},
    ]
    expected = tooled.chat(chat, max_tokens=6).json()
    message = answer(tooled, turns)
    assert input_tokens(message["usage"]) == expected["usage"]["prompt_tokens"]
    assert text_of(message) == expected["choices"][0]["message"]["content"]


def test_an_answer_that_was_begun_goes_on(tooled: Site) -> None:
    begun = [*USER, {"role": "assistant", "content": "and in"}]
    chat = tooled.chat(begun, continue_final_message=True, max_tokens=6).json()
    assert text_of(answer(tooled, begun)) == chat["choices"][0]["message"]["content"]


def test_why_a_message_ended(tooled: Site) -> None:
    eos = {"logit_bias": {"0": 100, "2": 100}}
    assert answer(tooled, **eos)["stop_reason"] == "end_turn"
    assert answer(tooled)["stop_reason"] == "max_tokens"
    assert answer(tooled, max_tokens=10**6, ignore_eos=True)["stop_reason"] == "model_context_window_exceeded"
    cut = answer(tooled, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=4)
    assert cut["stop_reason"] == "max_tokens" and cut["content"][0]["input"] == {}


def test_a_tool_is_not_used_where_none_may_be(tooled: Site) -> None:
    message = answer(tooled, tools=[PING], tool_choice={"type": "none"})
    assert (
        text_of(message)
        == tooled.chat("the", max_tokens=6, tools=[], tool_choice="none").json()["choices"][0]["message"]["content"]
    )


def test_examples_of_inputs_are_shown_to_the_model(checkpoint: Checkpoint) -> None:
    """As part of the tool, to whatever template there is."""
    with running(checkpoint) as site:

        def count(**more: Any) -> int:
            tool = {"name": "f", "input_schema": {"type": "object"}, **more}
            return site.post("/v1/messages/count_tokens", {"messages": USER, "tools": [tool]}).json()["input_tokens"]

        assert count(input_examples=[{"a": 1}]) > count() == count(cache_control={"type": "ephemeral", "ttl": "1h"})


def test_every_field_of_the_client_is_known() -> None:
    """Honoured or refused by name; some arguments of its methods are headers, and one is its own."""
    not_in_bodies = {"self", "user_profile_id", "workspace_id", "timeout"}
    for method, kind in ((Messages.create, MessagesRequest), (Messages.count_tokens, CountRequest)):
        theirs = {name for name in inspect.signature(method).parameters if not name.startswith("extra_")}
        assert theirs - not_in_bodies <= kind.model_fields.keys() | kind.refused.keys()


USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": None}),
    ("temperature", {"temperature": 1.5}),
    ("temperature", {"temperature": -1}),
    ("top_k", {"top_k": -2}),
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
    ("messages[0].name", {"messages": [{"role": "user", "content": "x", "name": "me"}]}),
    ("messages[0].content[0].type", turn("user", IMAGE)),
    ("messages[0].content[1].type", turn("user", {"type": "text", "text": "a"}, {"type": "document"})),
    ("messages[0].content[0].type", turn("user", USE)),
    ("messages[0].content[0].type", turn("assistant", {"type": "thinking", "thinking": "x", "signature": "y"})),
    ("messages[0].content[0].text", turn("user", {"type": "text"})),
    ("messages[0].content[0].input", turn("assistant", {**USE, "input": "{}"})),
    (
        "messages[0].content[0].content[0].type",
        turn("user", {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}),
    ),
    (
        "messages[0].content[0].cache_control.ttl",
        turn("user", {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1d"}}),
    ),
    ("the last message uses tools", turn("assistant", USE)),
    ("the last message is the assistant's", turn("assistant", {"type": "text", "text": ""})),
    ("system[0].type", {"system": [IMAGE]}),
    ("system", {"system": 3}),
    ("stop_sequences", {"stop_sequences": "x"}),
    ("stop_sequences", {"stop_sequences": [""]}),
    ("stop_sequences", {"stop_sequences": ["x"] * 100}),
    ("thinking.type", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("output_config.effort", {"output_config": {"effort": "high"}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}}),
    ("tools[0].type", {"tools": [{**PING, "type": "web_search_20250305"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}),
    (
        "tools[0].input_schema",
        {
            "tools": [
                {"name": "f", "strict": True, "input_schema": {"type": "object", "properties": {"a": {"type": 3}}}}
            ]
        },
    ),
    ("tools[0].defer_loading", {"tools": [{**PING, "defer_loading": True}]}),
    ("two tools are called ping", {"tools": [PING, PING]}),
    ("tool_choice needs tools", {"tool_choice": ANY}),
    ("tool_choice.name", {"tools": [PING], "tool_choice": {"type": "tool"}}),
    ("tool_choice.name", {"tools": [PING], "tool_choice": {"type": "tool", "name": "pong"}}),
    ("tool_choice.name", {"tools": [PING], "tool_choice": {"type": "auto", "name": "ping"}}),
    ("tool_choice.type", {"tools": [PING], "tool_choice": {"type": "required"}}),
    ("metadata.name", {"metadata": {"name": "me"}}),
    ("priority", {"priority": 1}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"tools": []}}),
]


@pytest.mark.parametrize(("begin", "fields"), WRONG, ids=[begin for begin, _ in WRONG])
def test_what_is_wrong_is_named_as_it_is_called_here(tooled: Site, begin: str, fields: dict[str, Any]) -> None:
    message = refusal(tooled, **fields)
    assert message.startswith(begin), message
    assert "function." not in message and "response_format" not in message


def test_what_no_message_can_have_is_not_counted_either(tooled: Site) -> None:
    """Whether a schema can be enforced is not tried for a count."""
    for begin, fields in WRONG:
        about_tools = fields.keys() <= {"tools", "tool_choice"} and not begin.endswith("input_schema")
        if about_tools:
            counted = tooled.post("/v1/messages/count_tokens", {"messages": USER, **fields})
            assert counted.status_code == 400 and counted.json()["error"]["message"] == refusal(tooled, **fields)


@pytest.mark.parametrize(
    "fields", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}], ids=lambda fields: next(iter(fields))
)
def test_fields_of_sampling_have_their_effect(tooled: Site, fields: dict[str, Any]) -> None:
    hot = {"temperature": 1, "seed": 3, "max_tokens": 30}
    assert text_of(answer(tooled, **hot)) != text_of(answer(tooled, max_tokens=30))
    assert text_of(answer(tooled, **hot, **fields)) == text_of(answer(tooled, max_tokens=30))


def test_thinking_may_be_off_or_the_models_own_affair(tooled: Site) -> None:
    for thinking in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        assert text_of(answer(tooled, thinking=thinking)) == text_of(answer(tooled))


def test_errors_are_the_clients_own_kinds(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="tiny", messages=USER, max_tokens=0)
    assert bad.value.body["error"]["type"] == "invalid_request_error" and bad.value.request_id  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude", messages=USER, max_tokens=1)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
