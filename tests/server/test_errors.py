"""What a client did wrong is said to it in one form, names the field, and never hurts the server."""

import json
import re
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.openai.body import MAX_DEPTH
from octavo.server.openai.fields import NOT_YET
from octavo.server.openai.schema import ChatRequest, CompletionRequest, TokenizeRequest
from tests.server.site import Site

JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    if response.url.path.startswith("/v1/messages"):
        assert body["type"] == "error" and body["request_id"] == response.headers["request-id"]
        assert set(body["error"]) == {"type", "message"} and body["error"]["message"]
        return body["error"]
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and isinstance(body["error"]["code"], str)
    return body["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": 1, "allowed_token_ids": [2, 0, 2]}, "min_tokens"),
        ({"min_tokens": 1, "stop_token_ids": list(range(288)), "ignore_eos": True}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 289}, "stop_token_ids"),
        ({"allowed_token_ids": [1] * 289}, "allowed_token_ids"),
        ({"logit_bias": {str(token): 1 for token in range(289)}}, "logit_bias"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "b"}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]"),
        ({"logit_bias": {"1": 10**400}}, "logit_bias[1]"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"model": 5}, "model"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[5], [288]]}, "prompt"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": ["a"] * 5000, "n": 64}, "prompt"),
        ({"prompt": ["a"] * 2048, "n": 3}, "n"),
        ({"prompt": [[5]] * 65, "n": 64}, "n"),
        ({"n": 65}, "n"),
    ],
    ids=str,
)
def test_completion_fields_at_fault_are_named(site: Site, fields: dict[str, Any], param: str) -> None:
    response = site.post("/v1/completions", {"prompt": "the", **fields})
    error = error_of(response)
    assert response.status_code == 400 and error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "refusal"}]}]}, "messages[0].content[0].refusal"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": False}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": "abc"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [{"role": "tool", "tool_calls": [{"function": 5}]}]}, "messages[0].tool_calls[0].function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": 5}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 500}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"echo": True}, "echo"),
    ],
    ids=str,
)
def test_chat_fields_at_fault_are_named(site: Site, fields: dict[str, Any], param: str) -> None:
    response = site.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **fields})
    assert response.status_code == 400 and error_of(response)["param"] == param


def test_a_required_field_that_is_missing(site: Site) -> None:
    for path, param in (("/v1/completions", "prompt"), ("/v1/chat/completions", "messages"), ("/detokenize", "tokens")):
        error = error_of(site.post(path, {}))
        assert (error["param"], error["code"]) == (param, "missing_required_parameter")


LONGEST = "This model's maximum context length is 256 tokens"
"""OpenAI's words and vLLM's: litellm and many an agent find in them that a shorter prompt would help."""


def test_too_long_says_the_numbers(site: Site) -> None:
    response = site.complete([[70] * 300], max_tokens=7)
    error = error_of(response)
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("300", "7", "256"))
    assert error["message"].startswith(LONGEST)
    assert error_of(site.chat("a" * 400))["code"] == "context_length_exceeded"


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(site: Site) -> None:
    """What is cut to fit, and what is only counted, is encoded whatever its length."""
    text = "x" * 10**5
    for response in (site.complete(text), site.complete(["a", text]), site.chat(text)):
        error = error_of(response)
        assert response.status_code == 400 and error["code"] == "context_length_exceeded"
        assert re.fullmatch(f"{LONGEST}, but the prompt has at least [\\d,]+", error["message"])
    assert site.complete(text, truncate_prompt_tokens=5, max_tokens=1).json()["usage"]["prompt_tokens"] == 5
    assert site.chat(text, truncate_prompt_tokens=5, max_tokens=1).json()["usage"]["prompt_tokens"] == 5
    assert site.post("/tokenize", {"prompt": text}).json()["count"] == 10**5
    options = {"at_most": "no number"}
    assert site.chat("a", chat_template_kwargs=options, max_tokens=1).status_code == 200


def test_a_prompt_that_fills_the_context_cannot_be_scored_and_is_told_why(site: Site) -> None:
    asked: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 1}
    error = error_of(site.complete([[70] * 256], **asked))
    assert error["code"] == "context_length_exceeded" and "room for 1 more" in error["message"]
    scored = site.complete([[70] * 255], **asked).json()["choices"][0]
    assert len(scored["logprobs"]["token_logprobs"]) == 255


def test_choices_are_counted_before_there_is_work_for_any(site: Site) -> None:
    """Prompts that are refused when they are looked at show that they were not."""
    for prompt in ([[10**6]] * 2048, ["a" * 400] * 2048, [[70] * 300] * 2048):
        for n in (3, 64, 65, 128):
            error = error_of(site.complete(prompt, n=n))
            assert (error["param"], error["code"]) == ("n", "too_many_choices")
    assert error_of(site.chat("a" * 400, n=65))["code"] == "too_many_choices"


def test_nothing_of_a_request_makes_its_stream_long(site: Site) -> None:
    """Each text that may be as long as a body: no chunk repeats it."""
    long, usual = "x" * 5000, {"prompt": "the an in", "stream": True, "max_tokens": 20, "ignore_eos": True, "seed": 1}
    for name, field in CompletionRequest.model_fields.items():
        if "str" in str(field.annotation) and name != "prompt":
            response = site.post("/v1/completions", {**usual, name: {"a": long} if name == "metadata" else long})
            assert len(response.content) < 20_000, name


def test_an_unknown_model_is_not_found(site: Site) -> None:
    for response in (site.complete("x", model="gpt"), site.chat("x", model="gpt"), site.http.get("/v1/models/gpt")):
        assert response.status_code == 404 and error_of(response)["code"] == "model_not_found"
    assert site.complete("x", model="tiny", max_tokens=1).status_code == 200


BAD_BODIES = {
    "empty": b"",
    "cut": b'{"prompt": "x"',
    "not an object": b'["x"]',
    "NaN": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": 1e999}',
    "twice": b'{"prompt": "x", "prompt": "y"}',
    "twice inside": b'{"prompt": "x", "logit_bias": {"5": 1, "5": 2}}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "encoded surrogate": b'{"prompt": "\xed\xa0\x80"}',
    "not UTF-8": b'{"prompt": "\xff"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "deep": b"[" * 100_000,
    "deep inside": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "trailing": b'{"prompt": "x"} {}',
    "a name twice, escaped": rb'{"prompt": "x\"", "a\\": "\\\"{:", "a\u005c": 1}',
    "millions of arrays": b'{"prompt": "x", "metadata": {"a": [' + b"[]," * 2_000_000 + b"[]]}}",
    "long number": b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_bodies_that_are_no_usable_json(site: Site, path: str, name: str) -> None:
    response = site.post(path, content=BAD_BODIES[name], headers=JSON)
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", rb'{"prompt": "x", "stop": ["a", "\ud800"]}', "stop[1]"),
        ("/v1/completions", rb'{"prompt": "\udfff x"}', "prompt"),
        ("/v1/completions", rb'{"prompt": "x", "logit_bias": {"\ud83d": 1}}', "logit_bias"),
        (
            "/v1/chat/completions",
            rb'{"messages": [{"role": "user", "content": "\ud83d\u0041"}]}',
            "messages[0].content",
        ),
        (
            "/v1/chat/completions",
            rb'{"messages": [], "tools": [{"function": {"name": "\uDC00"}}]}',
            "tools[0].function.name",
        ),
        ("/tokenize", rb'{"prompt": "\ud83d \ude00"}', "prompt"),
    ],
    ids=str,
)
def test_half_a_character_is_refused_where_it_is(site: Site, path: str, body: bytes, param: str) -> None:
    error = error_of(site.post(path, content=body, headers=JSON))
    assert error["param"] == param and param in error["message"] and "surrogate" in error["message"]
    whole = rb'{"prompt": "\ud83e\udd17"}'
    assert site.post("/tokenize", content=whole, headers=JSON).status_code == 200


def test_only_json_is_read(site: Site) -> None:
    """Any web page may post text/plain to a server on the same machine; JSON it may not."""
    for headers in ({"content-type": "text/plain"}, {}, {**JSON, "content-encoding": "gzip"}):
        response = site.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
        assert response.status_code == 415 and error_of(response)["code"] == "unsupported_media_type"
    with_charset = {"content-type": "application/json; charset=utf-8"}
    assert site.post("/tokenize", content=b'{"prompt": "x"}', headers=with_charset).status_code == 200


def test_bodies_have_a_limit(site: Site) -> None:
    claimed = site.post("/v1/completions", content=b" " * (33 << 20), headers=JSON)
    assert claimed.status_code == 413 and error_of(claimed)["code"] == "body_too_large"

    def pieces() -> Any:
        for _ in range(33):
            yield b" " * (1 << 20)

    assert site.post("/tokenize", content=pieces(), headers=JSON).status_code == 413


def test_unknown_paths_and_methods(site: Site) -> None:
    missing, wrong = site.http.get("/v1/nothing"), site.http.get("/v1/completions")
    assert missing.status_code == 404 and error_of(missing)["code"] == "unknown_url"
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST" and error_of(wrong)
    assert site.http.head("/version").status_code == 200
    assert site.post("/version").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1//models", "/v1/completions/", "///v1/models", "//x/v1/models", "//x/models/y"]
)
def test_slashes_too_many_are_told(site: Site, path: str) -> None:
    """A base URL that ends in one gives the first."""
    host = site.http.base_url.host
    with socket.create_connection((host, site.http.base_url.port or 0), 60) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
    message = json.loads(answer.partition("\r\n\r\n")[2])["error"]["message"]
    assert answer.startswith("HTTP/1.1 404 ")
    assert message.startswith(f"there is no {path} here") and ("but /v1/" in message) == ("y" not in path)


def test_a_streamed_request_is_refused_before_the_stream(site: Site) -> None:
    for response in (
        site.complete("x", stream=True, n=0),
        site.complete([[70] * 300], stream=True),
        site.chat("x", stream=True, model="gpt"),
    ):
        assert 400 <= response.status_code < 500
        error_of(response)


ODD = [10**400, -(10**400), 2**63, 2**64, 1e308, 5e-324, -0.0, "\0", "\ud7ff\ue000", "\u2028", "x" * 300, "1" * 30]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


MESSAGES = [{"role": "user", "content": "x"}]


def nested(shape: str, depth: int) -> str:
    """A JSON value of arrays and objects within each other, as `shape` says, over and over."""
    opened = "".join({"[": "[", "{": '{"a":'}[shape[index % len(shape)]] for index in range(depth))
    closed = "".join({"[": "]", "{": "}"}[shape[index % len(shape)]] for index in reversed(range(depth)))
    return f"{opened}1{closed}"


HOLE, QUOTED = "@", "@quoted"
"""Where a nested value stands in a body; and where one does as JSON within a string."""


def within(field: Any) -> list[dict[str, Any]]:
    """Messages that have `field` in each place that is looked into."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = [field, [field], [{**call, "function": field}], [{**call, "function": {"name": "f", "arguments": field}}]]
    parts = [field, [field], [{"type": field}], [{"type": "text", "text": field}]]
    return [
        *({"role": "assistant", "content": "x", "tool_calls": each} for each in calls),
        *({"role": "user", "content": each} for each in parts),
        {"role": field, "content": "x"},
        {"role": "user", "content": "x", "name": field, "zz": field},
    ]


PING = {"type": "function", "function": {"name": "ping"}}
TOOLS = {"type": "function", "function": {"name": "f", "parameters": HOLE}}
ITEMS_WITH = [("message", "content"), ("function_call", "arguments"), ("function_call_output", "output")]
BLOCKS_WITH: list[tuple[str, Any]] = [
    ("user", HOLE),
    ("user", {"type": "text", "text": "x", "cache_control": HOLE}),
    ("user", {"type": "tool_result", "tool_use_id": "1", "content": HOLE}),
    ("assistant", {"type": "tool_use", "id": "1", "name": "f", "input": {"a": HOLE}}),
]
PLACES: list[tuple[str, dict[str, Any]]] = [
    *(("/v1/completions", {"prompt": "x", name: HOLE}) for name in [*CompletionRequest.model_fields, "zz"]),
    *(("/v1/chat/completions", {"messages": MESSAGES, name: HOLE}) for name in [*ChatRequest.model_fields, *NOT_YET]),
    *(("/tokenize", {name: HOLE}) for name in TokenizeRequest.model_fields),
    *(("/detokenize", {"tokens": [5], name: HOLE}) for name in ("tokens", "model", "zz")),
    *((path, {"messages": [each]}) for path in ("/v1/chat/completions", "/tokenize") for each in within(HOLE)),
    *(("/v1/chat/completions", {"messages": [each]}) for each in within(QUOTED)),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOLS], "tool_choice": "none"}),
    ("/v1/chat/completions", {"messages": MESSAGES, "documents": [{"a": HOLE}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "chat_template_kwargs": {"a": HOLE}}),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": HOLE}}),
    ("/v1/completions", {"prompt": "x", "stream": True, "stream_options": {"include_usage": HOLE}}),
    *(("/v1/completions", {"prompt": "x", name: [HOLE]}) for name in ("prompt", "stop", "stop_token_ids")),
    *(
        ("/v1/responses", {"input": "x", name: HOLE})
        for name in ("input", "tools", "text", "reasoning", "metadata", "zz")
    ),
    *(("/v1/responses", {"input": [{"type": kind, name: HOLE}]}) for kind, name in ITEMS_WITH),
    ("/v1/responses", {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": QUOTED}]}),
    *(
        ("/v1/messages", {"messages": MESSAGES, name: HOLE})
        for name in ("messages", "system", "tools", "thinking", "zz")
    ),
    *(("/v1/messages", {"messages": [{"role": role, "content": [block]}]}) for role, block in BLOCKS_WITH),
]


@pytest.mark.parametrize("depth", [1, 120, 126, 127, 128, 129, 240, 480, 990, 3000])
def test_any_depth_in_any_place_is_taken_or_refused(site: Site, depth: int) -> None:
    for path, body in PLACES:
        for shape in ("[", "{", "{["):
            value = nested(shape, depth)
            text = json.dumps({"max_tokens": 1, **body} if path.startswith("/v1") else body)
            text = text.replace(f'"{HOLE}"', value).replace(f'"{QUOTED}"', json.dumps(value))
            response = site.post(path, content=text.encode(), headers=JSON)
            assert response.status_code in (200, 400), f"{path} {body} {shape}: {response.text}"
            if response.status_code == 400:
                error_of(response)


def test_the_depth_that_is_allowed(site: Site) -> None:
    for path, body, above in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "zz": HOLE}]}, 3),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{**PING, "a": HOLE}], "tool_choice": "none"}, 3),
        ("/v1/completions", {"prompt": "x", "metadata": {"a": HOLE}}, 2),
    ):
        text = json.dumps({**body, "max_tokens": 1})
        deepest, deeper = (text.replace(f'"{HOLE}"', nested("[{", MAX_DEPTH - above + more)) for more in (0, 1))
        assert site.post(path, content=deepest.encode(), headers=JSON).status_code == 200
        refusal = error_of(site.post(path, content=deeper.encode(), headers=JSON))
        assert refusal["code"] == "invalid_json" and str(MAX_DEPTH) in refusal["message"]


messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", "zz"]),
        st.sampled_from(["user", "assistant", "tool"]) | values,
        max_size=4,
    ),
    max_size=3,
)


KINDS = [
    "message",
    "function_call",
    "function_call_output",
    "input_text",
    "output_text",
    "text",
    "tool_use",
    "tool_result",
]
NAMES = ["type", "text", "id", "call_id", "tool_use_id", "name", "arguments", "input", "output", "content", "is_error"]
parts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS) | values, max_size=5)
typed = st.lists(
    st.dictionaries(
        st.sampled_from([*NAMES, "role"]),
        st.sampled_from([*KINDS, "user", "assistant"]) | st.lists(parts, max_size=2) | values,
        max_size=5,
    ),
    max_size=3,
)


@given(messages, typed)
@settings(deadline=None)
def test_no_conversation_is_the_servers_fault(
    site: Site, messages: list[dict[str, Any]], typed: list[dict[str, Any]]
) -> None:
    turns = [{"role": part.get("role", "user"), "content": typed} for part in typed]
    for response in (
        site.chat(messages, max_tokens=1),
        site.post("/v1/responses", {"input": typed, "max_output_tokens": 1}),
        site.post("/v1/messages", {"messages": typed, "max_tokens": 1}),
        site.post("/v1/messages", {"messages": turns, "max_tokens": 1}),
    ):
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            error_of(response)
