"""What operators may forbid or allow: limits of one request, strictness, control tokens in texts."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config.schema import Config, LimitsConfig, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.openai.schema import ChatRequest, CompletionRequest
from octavo.server.service import AT_ONCE, LONG_TEXT
from tests.server.site import MAX_MODEL_LEN, PATIENCE_S, Site, running
from tests.server.test_errors import JSON, error_of

SMALL = LimitsConfig(
    max_body_bytes=2000,
    max_prompts=3,
    max_choices=4,
    max_messages=2,
    max_stop_strings=2,
    max_logit_bias=2,
    max_schema_length=40,
    max_schema_depth=3,
)


@pytest.fixture(scope="module")
def small(checkpoint: Checkpoint) -> Iterator[Site]:
    """A strict server that takes little, and trusts its clients' texts."""
    config = Config(
        model=ModelConfig(model="tiny", allow_special_tokens_in_text=True),
        server=ServerConfig(port=0, strict=True),
        limits=SMALL,
    )
    with running(checkpoint, config) as site:
        yield site


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


SAY = {"role": "user", "content": "x"}
LIMITED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "max_prompts": ("prompt", {"prompt": ["a"] * 3}, {"prompt": ["a"] * 4}),
    "max_choices": ("n", {"prompt": "a", "n": 4}, {"prompt": ["a"] * 3, "n": 2}),
    "max_messages": ("messages", {"messages": [SAY] * 2}, {"messages": [SAY] * 3}),
    "max_stop_strings": ("stop", {"prompt": "a", "stop": ["b"] * 2}, {"prompt": "a", "stop": ["b"] * 3}),
    "max_logit_bias": (
        "logit_bias",
        {"prompt": "a", "logit_bias": {"5": 1, "6": 1}},
        {"messages": [SAY], "logit_bias": {"5": 1, "6": 1, "7": 1}},
    ),
    "max_schema_length": (
        "structured_outputs.regex",
        {"prompt": "a", "structured_outputs": {"regex": "a" * 40}},
        {"prompt": "a", "structured_outputs": {"regex": "a" * 41}},
    ),
    "max_schema_depth": (
        "response_format.json_schema.schema",
        {"messages": [SAY], "response_format": schema({"items": {"enum": [1]}})},
        {"messages": [SAY], "response_format": schema({"items": {"items": {"enum": [1]}}})},
    ),
}
"""Setting -> the field, a body with as many as may be, and one with more."""


def path_of(body: dict[str, Any]) -> str:
    return "/v1/completions" if "prompt" in body else "/v1/chat/completions"


@pytest.mark.parametrize("setting", LIMITED)
def test_a_limit_lets_pass_what_it_says_and_names_its_flag_beyond(small: Site, setting: str) -> None:
    field, most, more = LIMITED[setting]
    assert small.post(path_of(most), {**most, "max_tokens": 1}).status_code == 200
    response = small.post(path_of(more), {**more, "max_tokens": 1})
    error = error_of(response)
    assert response.status_code == 400 and error["param"] == field
    assert "--" + setting.replace("_", "-") in error["message"] and str(getattr(SMALL, setting)) in error["message"]


def test_conversations_that_are_only_counted_have_the_limit_too(small: Site) -> None:
    assert error_of(small.post("/tokenize", {"messages": [SAY] * 3}))["param"] == "messages"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_blocks_that_are_messages_of_a_chat_count_as_such(small: Site, path: str) -> None:
    """Else a turn of many results would be a conversation without a limit."""
    length = {"max_tokens": 1} if path == "/v1/messages" else {}
    results = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": "x"} for number in range(3)]
    fits, more = ({"messages": [{"role": "user", "content": results[:most]}], **length} for most in (2, 3))
    assert small.post(path, fits).status_code == 200
    refused = small.post(path, more)
    assert refused.status_code == 400 and "--max-messages" in refused.json()["error"]["message"]


def test_the_limit_of_a_body_is_exact(small: Site) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    fits = body + b" " * (SMALL.max_body_bytes - len(body))
    assert small.post("/tokenize", content=fits, headers=JSON).status_code == 200
    refused = small.post("/tokenize", content=fits + b" ", headers=JSON)
    assert refused.status_code == 413 and "--max-body-bytes" in error_of(refused)["message"]


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"], ids=lambda path: path[1:]
)
def test_a_strict_server_refuses_what_nobody_knows(small: Site, site: Site, path: str) -> None:
    body = {"prompt": "x", "messages": [SAY], "tokens": [5]}
    kept = {"/v1/completions": "prompt", "/tokenize": "prompt", "/detokenize": "tokens"}.get(path, "messages")
    asked = {kept: body[kept], "temprature": 0.5}
    error = error_of(small.post(path, asked))
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter") and "--strict" in error["message"]
    lenient = site.post(path, asked)
    assert lenient.status_code == 200 and lenient.headers["x-octavo-unknown-fields"] == "temprature"


def test_a_strict_server_knows_every_field_that_it_documents(small: Site) -> None:
    for path, kind, base in (
        ("/v1/completions", CompletionRequest, {"prompt": "x"}),
        ("/v1/chat/completions", ChatRequest, {"messages": [SAY]}),
    ):
        for name in kind.model_fields.keys() - base.keys():
            response = small.post(path, {**base, "max_tokens": 1, name: None if name != "max_tokens" else 1})
            assert response.status_code == 200, response.text


def test_a_strict_server_refuses_a_length_for_which_there_is_no_room(small: Site, site: Site) -> None:
    asked: dict[str, Any] = {"prompt": [[70] * 250], "max_tokens": 7}
    error = error_of(small.post("/v1/completions", asked))
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("250", "7", str(MAX_MODEL_LEN)))
    assert small.post("/v1/completions", {**asked, "max_tokens": 6}).status_code == 200
    assert small.post("/v1/completions", {"prompt": [[70] * 250]}).status_code == 200, "the default is no wish"
    assert site.post("/v1/completions", asked).headers["x-octavo-max-tokens"] == "6"


def test_control_tokens_in_texts_count_where_texts_are_trusted(small: Site, site: Site) -> None:
    control = site.tokenizer.special_tokens["eos_token"]

    def counts(where: Site) -> list[int]:
        plain = {"prompt": control, "max_tokens": 1}
        usages = [where.post("/v1/completions", plain), where.chat(control, max_tokens=1)]
        return [where.post("/tokenize", {"prompt": f"{control} "}).json()["count"] - 1] + [
            answer.json()["usage"]["prompt_tokens"] for answer in usages
        ]

    trusted, safe = counts(small), counts(site)
    extra = len(control.encode()) - 1
    assert [count + extra for count in trusted] == safe
    explicit = {"prompt": control, "parse_special": False}
    assert small.post("/tokenize", explicit).json()["count"] == safe[0]


def test_long_texts_are_tokenized_a_few_at_a_time_also_where_their_clients_have_gone(site: Site) -> None:
    """Each takes a hundred times its size in memory meanwhile: forty that hung up would take all there is."""
    working, most, go_on = 0, 0, threading.Event()
    lock = threading.Lock()

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        assert go_on.wait(PATIENCE_S)
        with lock:
            working -= 1

    async def visitors() -> None:
        service = site.app.service
        gone = [asyncio.ensure_future(service.off_loop(LONG_TEXT + 1, work)) for _ in range(40)]
        while working < AT_ONCE:
            await asyncio.sleep(0)
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        stays = asyncio.ensure_future(service.off_loop(LONG_TEXT + 1, work))
        assert await service.off_loop(LONG_TEXT, lambda: "short") == "short"
        go_on.set()
        await stays

    site.run(visitors())
    assert most == AT_ONCE
