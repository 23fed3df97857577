"""Tool calls over HTTP: what grammars enforce, streamed as whole, and what is refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.openai.calling import Calling, CallWriter
from octavo.text.calls.formats import FORMATS
from tests.server.site import Site, Streamed, running

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module", params=sorted(FORMATS))
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tooled(checkpoint: Checkpoint, form: str) -> Iterator[Site]:
    """A server whose model writes calls in this form. Its context is too small for tools in words."""
    server = ServerConfig(port=0, tool_call_parser=form)
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server)) as site:
        assert site.app.service.template is not None
        site.app.service.template.knows_tools = True
        yield site


def plain(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls") or []
    assert all(call["id"] and call["type"] == "function" and "index" not in call for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def joined(streamed: Streamed, index: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls of a stream."""
    content, calls = "", list[tuple[str, str]]()
    assert streamed.done and not streamed.errors
    for delta in (each["delta"] for each in streamed.choices(index)):
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls) and call["type"] == "function"
                calls.append((call["function"]["name"], ""))
            assert call["index"] == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
    return content, calls


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_call_that_is_demanded_comes_as_its_schema_says(tooled: Site, choice: Any, temperature: float) -> None:
    fields = {
        "tools": [PING, WEATHER],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": temperature,
        "seed": 4,
        "n": 2,
        "max_tokens": 150,
    }
    whole = tooled.chat("Go", **fields).json()["choices"]
    streamed = tooled.stream(tooled.chat("Go", stream=True, **fields))
    for index, each in enumerate(whole):
        [(name, arguments)] = plain(each)
        value = json.loads(arguments)
        if name == "ping":
            assert value == {} and choice == "required"
        else:
            assert value.keys() == {"city", "unit"} and value["city"] in ("Rome", "Oslo")
        assert each["message"]["content"] is None
        assert each["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
        assert joined(streamed, index) == ("", [(name, arguments)])
        assert streamed.finish(index) == [(each["finish_reason"], None)]
        first = streamed.choices(index)[0]["delta"]
        assert first["role"] == "assistant" and first["content"] is None and first["tool_calls"][0]["id"]


def test_choices_that_are_searched_for_calls_are_counted_once_each(tooled: Site) -> None:
    counts = tooled.app.service.meters.tool_calls
    before = counts.copy()
    fields = {"tools": [PING], "max_tokens": 60, "n": 2}
    tooled.chat("Go", tool_choice=NAMED | {"function": {"name": "ping"}}, **fields)
    tooled.chat("Go", tool_choice=NAMED | {"function": {"name": "ping"}}, stream=True, **fields)
    tooled.chat("Go", **{**fields, "max_tokens": 1})
    tooled.chat("Go", tool_choice="none", **fields)
    kind = "chat_completions"
    assert counts - before == {
        ("non_streaming", "tool_call", kind): 2,
        ("streaming", "tool_call", kind): 2,
        ("non_streaming", "no_tool_call", kind): 2,
    }
    name = "vllm:tool_call_parser_invocations_total"
    assert (
        tooled.metric(name, mode="streaming", outcome="tool_call", request_type=kind)
        == counts["streaming", "tool_call", kind]
    )


def test_a_stream_that_says_nothing_at_first_has_each_header_once(tooled: Site) -> None:
    fields = {"tools": [PING], "tool_choice": "required", "max_tokens": 60, "cache_salt": "fresh"}
    streamed = tooled.stream(tooled.chat("Go", stream=True, **fields))
    assert len(streamed.headers.get_list("x-octavo-cache-miss")) == 1


def test_calls_beside_each_other_and_stops_and_logprobs(tooled: Site) -> None:
    fields = {"tools": [PING, WEATHER], "tool_choice": "required", "max_tokens": 120, "temperature": 1, "seed": 1}
    for more in ({}, {"stop": ["city"]}, {"logprobs": True}, {"max_tokens": 12}):
        whole = tooled.chat("Go", **{**fields, **more}).json()["choices"][0]
        streamed = tooled.stream(tooled.chat("Go", stream=True, **{**fields, **more}))
        assert joined(streamed) == (whole["message"]["content"] or "", plain(whole))
        assert [reason for reason, _ in streamed.finish()] == [whole["finish_reason"]]
        if "logprobs" in more:
            entries = [entry for each in streamed.choices() for entry in each["logprobs"]["content"]]
            assert entries == whole["logprobs"]["content"]


@pytest.mark.parametrize("tool", [PING, WEATHER], ids=["free", "strict"])
def test_the_model_may_choose(tooled: Site, tool: dict[str, Any]) -> None:
    fields = {"tools": [tool], "max_tokens": 20, "temperature": 1, "seed": 2}
    whole = tooled.chat("Go", **fields).json()["choices"][0]
    streamed = tooled.stream(tooled.chat("Go", stream=True, **fields))
    assert joined(streamed) == (whole["message"]["content"] or "", plain(whole))


def test_an_answer_is_calls_or_has_its_form(tooled: Site) -> None:
    point = {"type": "json_schema", "json_schema": {"name": "p", "schema": {"enum": [{"x": 1}]}}}
    for seed in range(4):
        fields = {"temperature": 1.5, "seed": seed, "max_tokens": 200, "parallel_tool_calls": False}
        choice = tooled.chat("Go", tools=[WEATHER], response_format=point, **fields).json()["choices"][0]
        if not plain(choice):
            assert json.loads(choice["message"]["content"]) == {"x": 1} and choice["finish_reason"] == "stop"
        else:
            assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [PING], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice.function.name"),
    ({"tools": [PING], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [PING], "tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
    ({"tools": [PING, PING]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters",
    ),
    (
        {
            "tools": [PING, {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
        "tools[1].function.parameters",
    ),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": bad}}}}
                for name, bad in (("f", {"not": {}}), ("g", {"uniqueItems": True}))
            ],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "tools[1].function.parameters",
    ),
    ({"tools": [PING], "guided_regex": "a"}, "tools"),
    (
        {
            "tools": [PING],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        },
        "tool_choice.allowed_tools.tools[0].function.name",
    ),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=str)
def test_what_does_not_fit_is_a_400_that_names_it(site: Site, fields: dict[str, Any], param: str) -> None:
    response = site.chat("Go", max_tokens=1, **fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def test_what_asks_for_nothing_is_taken(site: Site) -> None:
    for fields in ({"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}):
        assert site.chat("Go", max_tokens=1, **fields).status_code == 200
    assert site.chat("Go", max_tokens=1, tools=[WEATHER], tool_choice="none").status_code == 200


def test_only_some_tools_may_be_allowed(tooled: Site) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 200, "parallel_tool_calls": False}
    answer = tooled.chat("Go", tools=[PING, WEATHER], tool_choice=choice, **fields).json()["choices"][0]
    assert [name for name, _ in plain(answer)] == ["get_weather"]


def test_an_operator_may_want_no_free_choice(checkpoint: Checkpoint) -> None:
    server = ServerConfig(port=0, enable_auto_tool_choice=False)
    config = Config(model=ModelConfig(model="tiny"), server=server)
    with running(checkpoint, config) as site:
        refusal = site.chat("Go", tools=[PING]).json()["error"]
        assert refusal["param"] == "tool_choice" and "--no-enable-auto-tool-choice" in refusal["message"]
        assert site.chat("Go", tools=[PING], tool_choice="none", max_tokens=1).status_code == 200


def test_of_several_calls_one_is_left_where_no_more_were_asked_for() -> None:
    schemas: dict[str, Any] = {"f": {}}
    text = '<tool_call>{"name": "f"}</tool_call>' * 2
    for several, count in ((True, 2), (False, 1)):
        writer = CallWriter(Calling(FORMATS["hermes"], schemas, "auto", several))
        content, calls = writer.read(text, "stop")
        assert content == "" and [call["index"] for call in calls] == list(range(count))
        assert writer.reason("stop") == "tool_calls" and writer.reason("length") == "length"


def test_of_a_call_that_was_demanded_and_cut_nothing_is_content() -> None:
    for text, calls in (('<tool_call>{"na', 0), ('<tool_call>{"name": "f", "arguments": {"', 1)):
        writer = CallWriter(Calling(FORMATS["hermes"], {"f": {}}, "required", True))
        content, written = writer.read(text, "length")
        assert (content, len(written), writer.reason("length")) == ("", calls, "length")


def test_ids_are_as_templates_want_them() -> None:
    lengths = {
        name: {len(Calling(form, {}, "auto", True).new_id()) for _ in range(3)} for name, form in FORMATS.items()
    }
    assert lengths["mistral"] == {9} and lengths["hermes"] == {29}
