"""Answers in Responses' and Anthropic's form are the same however they come; and errors have the form of their path."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.schema import Config, LimitsConfig, ModelConfig, ServerConfig
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.models.checkpoint import Checkpoint
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.anthropic.wire import MessageWire
from octavo.server.openai.answer import Answer, Delta
from octavo.server.openai.calling import Calling
from octavo.server.openai.chat import Reply
from octavo.server.openai.job import Job
from octavo.server.openai.respond import Gathered, Wire
from octavo.server.openai.response_schema import ResponsesRequest
from octavo.server.openai.response_wire import ResponseWire
from octavo.server.openai.schema import ChatRequest
from octavo.text.calls.formats import FORMATS
from tests.server.dialects import events_of, message_of, response_of
from tests.server.site import Gate, Site, backend_of, running

SCHEMAS: dict[str, Any] = {"f": {}, "g": {}}
PARTS = [
    *("Hello", " ", "\n", "é", "\u2028", "\U0001f600", '"', "\\", "{", "}", "[", "]", "(", ")", "<tool", ",", "1"),
    *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', '"a": ', "[TOOL_CALLS]", "f(a=1)", "g{", "f()"),
    *('<tool_call>{"name": "f", "arguments": {"a": [1, "x"]}}</tool_call>', '{"name": "g", "parameters": {"b": null}}'),
]
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=14).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=8)
ends = st.sampled_from([("stop", None), ("length", None), ("stop", "END"), ("stop", 7)])
callings = st.none() | st.builds(
    lambda name, choice, several: Calling(FORMATS[name], {"f": {}} if choice == "named" else SCHEMAS, choice, several),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(["auto", "required", "named"]),
    st.booleans(),
)


def reply_of(site: Site, calling: Calling | None) -> Reply:
    """An answer that comes from the test."""
    params = SamplingParams(max_tokens=9)
    request = Request(request_id="made", prompt=(1, 2, 3), params=params, arrival_s=0.0)
    job = Job(site.app.service, [request], [Answer(site.tokenizer, params)], prompt_only=False)
    return Reply(ChatRequest(messages=[]), job, calling, "")


def wire_of(site: Site, protocol: str, calling: Calling | None) -> Wire:
    reply = reply_of(site, calling)
    if protocol == "responses":
        return ResponseWire(site.app.service, ResponsesRequest(input="x", request_id="me"), reply)
    body = MessagesRequest(messages=[], max_tokens=9, request_id="me")
    return MessageWire(site.app.service, body, reply, "me")


def pieces(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(bounds)]


def streamed(wire: Wire, parts: list[str], end: tuple[str, Any]) -> list[dict[str, Any]]:
    """The events of an answer in parts; the end comes with the last one, or for itself."""
    deltas = [Delta(0, part) for part in parts]
    if not deltas or deltas[-1].text.endswith(" "):
        deltas.append(Delta(0, ""))
    deltas[-1].finish, deltas[-1].stop = end
    return events_of((b"".join(wire.step([delta]) for delta in deltas) + wire.end()).decode())


def whole(wire: Wire, text: str, end: tuple[str, Any]) -> dict[str, Any]:
    return json.loads(wire.whole([Gathered([text], finish=end[0], stop=end[1])]))


def comparable(value: Any) -> Any:
    """Without what is different each time: times, and the ids of calls, which only must not be equal."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    drawn = {"created_at", "completed_at", "call_id", *(["id"] if value.get("type") == "tool_use" else [])}
    return {key: comparable(item) for key, item in value.items() if key not in drawn}


MAKE = {"responses": response_of, "messages": message_of}


@pytest.mark.parametrize("protocol", MAKE)
@given(text=texts, places=cuts, end=ends, calling=callings)
def test_the_events_make_the_whole_answer(
    site: Site, protocol: str, text: str, places: list[int], end: tuple[str, Any], calling: Calling | None
) -> None:
    made = MAKE[protocol](streamed(wire_of(site, protocol, calling), pieces(text, places), end))
    assert comparable(made) == comparable(whole(wire_of(site, protocol, calling), text, end))


@given(text=texts, end=ends, calling=callings)
def test_both_say_the_same(site: Site, text: str, end: tuple[str, Any], calling: Calling | None) -> None:
    """What one has as items the other has as blocks."""
    response = whole(wire_of(site, "responses", calling), text, end)
    message = whole(wire_of(site, "messages", calling), text, end)
    items = [item["content"][0]["text"] if item["type"] == "message" else item["name"] for item in response["output"]]
    blocks = [block["text"] if block["type"] == "text" else block["name"] for block in message["content"]]
    assert items == blocks and blocks
    assert len({item["id"] for item in response["output"]}) == len(items)
    if calling is None:
        assert blocks == [text]
    assert (response["status"] == "incomplete") == (end[0] == "length") == (message["stop_reason"] == "max_tokens")
    assert message["stop_sequence"] == (end[1] if isinstance(end[1], str) else None)


def told(response: httpx.Response) -> tuple[int, str]:
    """The status, and the kind of error in the form of the path that was asked."""
    body = response.json()
    if response.url.path.startswith("/v1/messages"):
        assert body["type"] == "error" and body["request_id"] == response.headers["request-id"]
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body.keys() == {"error"} and "request-id" not in response.headers
        assert body["error"].keys() == {"message", "type", "param", "code"}
    return response.status_code, body["error"]["type"]


TENANTS = """
tenants:
  few:
    keys: ["few"]
    requests_per_minute: 1
"""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": [{"role": "user", "content": "the"}], "max_tokens": 1},
    "/v1/responses": {"input": "the", "max_output_tokens": 1},
}


def test_errors_of_all_layers_have_the_form_of_the_path(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Keys, quotas, unknown paths, methods, sizes, media, a server that is about to end."""
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    server = ServerConfig(port=0, api_key=("key",), tenants=str(tmp_path / "tenants.yaml"))
    limits = LimitsConfig(max_body_bytes=2000)
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server, limits=limits)) as site:
        key, few = {"x-api-key": "key", "anthropic-version": "2023-06-01"}, {"x-api-key": "few"}

        def kinds(ask: Callable[[str, dict[str, Any]], httpx.Response]) -> list[tuple[int, str]]:
            return [told(ask(path, body)) for path, body in BODIES.items()]

        for path, body in BODIES.items():
            answered = site.post(path, body, headers=key)
            assert answered.status_code == 200
            assert answered.headers.get("request-id") in (None, answered.headers["x-request-id"])
        invalid = "invalid_request_error"
        assert kinds(lambda path, body: site.post(path, body)) == [(401, "authentication_error"), (401, invalid)]
        missing = [(404, "not_found_error"), (404, invalid)]
        assert kinds(lambda path, body: site.post(f"{path}/batches", body, headers=key)) == missing
        assert kinds(lambda path, body: site.post(path, {**body, "model": "other"}, headers=key)) == missing
        assert kinds(lambda path, _: site.http.get(path, headers=key)) == [(405, invalid)] * 2
        assert kinds(lambda path, _: site.post(path, content=b"{}", headers=key)) == [(415, invalid)] * 2
        large = [(413, "request_too_large"), (413, invalid)]
        assert kinds(lambda path, _: site.post(path, {"zz": "x" * 3000}, headers=key)) == large
        assert site.post("/v1/messages", BODIES["/v1/messages"], headers=few).status_code == 200
        spent = [(429, "rate_limit_error"), (429, "requests")]
        assert kinds(lambda path, body: site.post(path, body, headers=few)) == spent
        site.app.service.duty.drain()
        busy = [(503, "overloaded_error"), (503, "service_unavailable_error")]
        assert kinds(lambda path, body: site.post(path, body, headers=key)) == busy


def test_a_late_answer_is_told_in_the_form_of_the_path(checkpoint: Checkpoint) -> None:
    gate = Gate(backend_of(checkpoint))
    server = ServerConfig(port=0, request_timeout=0.2)
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server), backend=gate) as site:
        for path, body in BODIES.items():
            assert told(site.post(path, body)) == (504, "timeout_error")
        gate.open()
