"""POST /v1/responses, asked by OpenAI's own client: what it puts together, each field, and what is refused by name."""

import json
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.responses import response_create_params
from pydantic import BaseModel, Field

from octavo.models.checkpoint import Checkpoint
from octavo.server.openai.response_schema import ResponsesRequest
from tests.server.dialects import events_of, response_of
from tests.server.site import PATIENCE_S, Site, running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "It", "strict": True, "parameters": SCHEMA}
PING: Any = {"type": "function", "name": "ping", "strict": None, "parameters": None}
LOGPROBS: Any = ["message.output_text.logprobs"]


@pytest.fixture(scope="module")
def tooled(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server whose template knows tools: its context is too small to tell of them in words."""
    with running(checkpoint) as site:
        assert site.app.service.template is not None
        site.app.service.template.knows_tools = True
        yield site


@pytest.fixture(scope="module")
def client(tooled: Site) -> Iterator[openai.OpenAI]:
    with openai.DefaultHttpxClient(trust_env=False) as http:
        yield openai.OpenAI(
            base_url=f"{tooled.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, http_client=http
        )


def ask(site: Site, given: Any = "the", **fields: Any) -> Any:
    return site.post("/v1/responses", {"input": given, "temperature": 0, "max_output_tokens": 6, **fields})


def answer(site: Site, given: Any = "the", **fields: Any) -> dict[str, Any]:
    response = ask(site, given, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def error(site: Site, given: Any = "the", **fields: Any) -> dict[str, Any]:
    response = ask(site, given, **fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def text_of(response: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


def same(first: openai.BaseModel, second: openai.BaseModel) -> bool:
    """But for ids and times, which are new each time, and what the client's stream has parsed."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, dict):
            drawn = ("id", "call_id", "created_at", "completed_at", "usage", "parsed", "parsed_arguments")
            return {key: plain(each) for key, each in value.items() if key not in drawn}
        return value

    return plain(first.to_dict()) == plain(second.to_dict())


def test_a_response_is_the_answer_of_the_same_chat(tooled: Site) -> None:
    chat = tooled.chat("the", max_tokens=6).json()
    response = answer(tooled)
    assert text_of(response) == chat["choices"][0]["message"]["content"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert response["usage"]["output_tokens"] == chat["usage"]["completion_tokens"] == 6
    assert response["store"] is False and response["object"] == "response"


def test_the_client_reads_whole_answers_and_streams(client: openai.OpenAI) -> None:
    """It wants each event in its place, and of a stream that was complete the same response."""
    fields: Any = {"model": "tiny", "input": "the", "temperature": 0, "extra_body": {"stop": "i"}}
    whole = client.responses.create(**fields)
    assert whole.status == "completed" and whole.completed_at and whole.output_text
    with client.responses.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert same(final, whole) and final.usage and whole.usage
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens_details.cached_tokens >= 0


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=str)
def test_the_client_reads_calls(client: openai.OpenAI, choice: Any) -> None:
    fields: Any = {
        "model": "tiny",
        "input": "Go",
        "tools": [WEATHER],
        "tool_choice": choice,
        "temperature": 1,
        "parallel_tool_calls": False,
        "extra_body": {"seed": 4},
    }
    whole = client.responses.create(**fields)
    (call,) = whole.output
    assert call.type == "function_call" and call.name == "get_weather" and call.status == "completed"
    assert json.loads(call.arguments).keys() == {"city", "unit"} and whole.status == "completed"
    with client.responses.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == call.arguments and len(deltas) > 3
    assert same(final, whole) and whole.output_text == ""


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    degrees: list[Annotated[int, Field(ge=-5, le=9)]] = Field(min_length=1, max_length=2)


def test_answers_are_parsed_into_classes(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "input": "the", "temperature": 1, "text_format": Weather, "extra_body": {"seed": 4}}
    parsed = client.responses.parse(**fields).output_parsed
    assert isinstance(parsed, Weather)
    with client.responses.stream(**fields) as stream:
        assert stream.get_final_response().output_parsed == parsed


def test_a_conversation_goes_on_with_what_was_answered(tooled: Site) -> None:
    """The output of one response is input of the next: as the chat of the same messages."""
    first = answer(tooled, tools=[WEATHER, PING], tool_choice="required", max_output_tokens=120)
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "7 C"} for item in first["output"]
    ]
    items = [{"role": "user", "content": "the"}, *first["output"], *results, {"role": "user", "content": "So?"}]
    calls = [
        {"id": each["call_id"], "type": "function", "function": {"name": each["name"], "arguments": each["arguments"]}}
        for each in first["output"]
    ]
    chat = [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "the"},
        {"role": "assistant", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": each["call_id"], "content": "7 C"} for each in first["output"]),
        {"role": "user", "content": "So?"},
    ]
    response = answer(tooled, items, instructions="Be", max_output_tokens=1)
    assert response["usage"]["input_tokens"] == tooled.chat(chat, max_tokens=1).json()["usage"]["prompt_tokens"]
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the"}]}]
    assert text_of(answer(tooled, parts)) == text_of(answer(tooled))


def test_text_behind_calls_belongs_to_the_message_with_the_calls(tooled: Site) -> None:
    """However the items of one answer are ordered, a template sees one message of the assistant."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "an"}]}
    call = {"type": "function_call", "call_id": "c", "name": "ping", "arguments": "{}"}
    ends = [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]}]
    ends.append({"role": "user", "content": "in"})
    orders = ([said, call], [call, said])
    counts = {
        answer(tooled, [{"role": "user", "content": "a"}, *order, *ends])["usage"]["input_tokens"] for order in orders
    }
    assert len(counts) == 1


def test_logprobs(tooled: Site) -> None:
    chat = tooled.chat("the", max_tokens=6, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    whole = answer(tooled, include=LOGPROBS, top_logprobs=2)
    assert whole["output"][0]["content"][0]["logprobs"] == chat
    streamed = response_of(events_of(ask(tooled, include=LOGPROBS, top_logprobs=2, stream=True).text))
    assert streamed["output"][0]["content"][0]["logprobs"] == chat
    assert error(tooled, top_logprobs=2)["param"] == "top_logprobs"
    assert error(tooled, include=LOGPROBS, tools=[PING])["param"] == "include"
    assert error(tooled, include=["everything"])["param"] == "include[0]"


def test_forms_of_the_text(tooled: Site) -> None:
    form = {"type": "json_schema", "name": "it", "schema": SCHEMA}
    enforced = answer(tooled, text={"format": form}, max_output_tokens=60)
    assert text_of(enforced).startswith("{") and enforced["text"]["format"] == form
    assert text_of(answer(tooled, text={"format": {"type": "json_object"}}))[0] == "{"
    assert text_of(answer(tooled, text={"format": {"type": "text"}, "verbosity": "medium"})) == text_of(answer(tooled))
    assert error(tooled, text={"format": {"type": "json_schema", "name": "it"}})["param"] == "text.format.schema"
    assert error(tooled, text={"format": {"type": "text", "schema": {}}})["param"] == "text.format.schema"
    bad = error(tooled, text={"format": {**form, "schema": {"type": "nonsense"}}})
    assert bad["param"] == "text.format.schema" and bad["message"].startswith("text.format.schema")
    assert error(tooled, text={"format": form}, structured_outputs={"regex": "a"})["param"] == "structured_outputs"


def test_what_was_asked_comes_back(tooled: Site) -> None:
    asked: dict[str, Any] = {
        "metadata": {"a": "b"},
        "user": "me",
        "safety_identifier": "me",
        "prompt_cache_key": "mine",
        "max_tool_calls": 3,
        "top_p": 0.5,
        "instructions": "Be",
        "tools": [{**PING, "description": None, "strict": False}],
        "tool_choice": "none",
        "parallel_tool_calls": False,
    }
    response = answer(tooled, **asked)
    assert {name: response[name] for name in asked} == asked
    assert (response["temperature"], response["max_output_tokens"], response["truncation"]) == (0, 6, "disabled")
    plain = answer(tooled, temperature=None)
    assert (plain["temperature"], plain["top_p"], plain["tool_choice"], plain["metadata"]) == (1, 1, "auto", {})


def test_an_allowed_tool_is_called(tooled: Site) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]}
    response = answer(
        tooled, tools=[WEATHER, PING], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=60
    )
    assert [item["name"] for item in response["output"]] == ["ping"] and response["tool_choice"] == choice


def test_a_call_that_was_cut_is_incomplete(tooled: Site) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    whole = answer(tooled, **fields, max_output_tokens=4)
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")
    streamed = response_of(events_of(ask(tooled, **fields, max_output_tokens=4, stream=True).text))
    assert streamed["output"][0]["arguments"] == whole["output"][0]["arguments"] != ""


def test_every_field_of_the_client_is_known() -> None:
    """Honoured or refused by name: what OpenAI's client can send is never only an unknown field."""
    theirs = typing.get_type_hints(response_create_params.ResponseCreateParamsBase).keys() | {"stream"}
    assert theirs <= ResponsesRequest.model_fields.keys() | ResponsesRequest.refused.keys()


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("store", {"store": True}),
    ("previous_response_id", {"previous_response_id": "resp_1"}),
    ("background", {"background": True}),
    ("truncation", {"truncation": "auto"}),
    ("input", {"given": []}),
    ("input", {"given": 3}),
    ("input", {"given": "a " * 300}),
    ("input[0].type", {"given": [{"type": "item_reference", "id": "x"}]}),
    ("input[0].type", {"given": [{"id": "x"}]}),
    ("input[0].role", {"given": [{"role": "tool", "content": "x"}]}),
    ("input[0].content", {"given": [{"role": "user", "content": None}]}),
    ("input[0].content", {"given": [{"role": "user"}]}),
    ("input[0].content[0].type", {"given": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("input[0].content[0].text", {"given": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ("input[1].output", {"given": [CALL, {"type": "function_call_output", "call_id": "c"}]}),
    ("input[1].output[0].type", {"given": [CALL, {"type": "function_call_output", "call_id": "c", "output": [{}]}]}),
    ("input[0].arguments", {"given": [{**CALL, "arguments": {}}]}),
    ("input[0].arguments", {"given": [{**CALL, "arguments": "[" * 200 + "]" * 200}]}),
    ("input[0].colour", {"given": [{**CALL, "colour": "red"}]}),
    ("instructions", {"instructions": ["x"]}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("stream_options", {"stream_options": {}}),
    ("stream_options.include_obfuscation", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ("reasoning.effort", {"reasoning": {"effort": "high"}}),
    ("reasoning.summary", {"reasoning": {"summary": "auto"}}),
    ("text.verbosity", {"text": {"verbosity": "low"}}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[1].name", {"tools": [PING, PING]}),
    ("tools[0].parameters", {"tools": [{**WEATHER, "parameters": {"type": "array"}}]}),
    (
        "tools[0].parameters",
        {"tools": [{**WEATHER, "parameters": {"type": "object", "properties": {"a": {"type": 3}}}}]},
    ),
    ("tools[0].defer_loading", {"tools": [{**PING, "defer_loading": True}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [PING], "tool_choice": {"type": "function"}}),
    ("tool_choice", {"tools": [PING], "tool_choice": {"type": "web_search"}}),
    ("tool_choice.name", {"tools": [PING], "tool_choice": {"type": "function", "name": "pong"}}),
    (
        "tool_choice.tools[0].name",
        {
            "tools": [PING],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "pong"}]},
        },
    ),
    ("metadata.a", {"metadata": {"a": 1}}),
    ("temperature", {"temperature": -1}),
    ("priority", {"priority": 1}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"tools": []}}),
    ("cache_salt", {"cache_salt": ""}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[param for param, _ in WRONG])
def test_what_is_wrong_is_named_as_it_is_called_here(tooled: Site, param: str, fields: dict[str, Any]) -> None:
    refusal = error(tooled, **fields)
    assert refusal["param"] == param, refusal
    assert "messages" not in refusal["message"] and "function." not in refusal["message"], refusal


@pytest.mark.parametrize(
    "fields",
    [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_of_vllm_have_their_effect(tooled: Site, fields: dict[str, Any]) -> None:
    hot = {"temperature": 1.5, "seed": 3}
    assert text_of(answer(tooled, **hot)) != text_of(answer(tooled))
    assert text_of(answer(tooled, **hot, **fields)) == text_of(answer(tooled))


def test_the_id_is_the_requests_own(tooled: Site) -> None:
    assert answer(tooled, request_id="mine")["id"] == "resp_mine"


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="tiny", input="the", store=True)
    assert bad.value.param == "store"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="the")
