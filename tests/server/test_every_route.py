"""What holds for all routes alike: a route that is added is held to it by being in the table."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from octavo.config.schema import Config, ModelConfig, ObservabilityConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.routes import ROUTES
from tests.server.collector import attributes, over_http
from tests.server.endpoints import ENDPOINTS
from tests.server.site import Site, running
from tests.server.test_journal import logged
from tests.server.test_otlp import traced

BODIES: Mapping[str, Mapping[str, Any]] = {each.path: each.body for each in ENDPOINTS}
GENERATING = [route.path for route in ROUTES if route.generates]
MESSAGES = [{"role": "user", "content": "the an in of"}]
WITH_TEMPLATE = [
    route.path for route in ROUTES if route.body is not None and "chat_template_kwargs" in route.body.model_fields
]


@pytest.fixture(scope="module")
def strict(checkpoint: Checkpoint) -> Iterator[Site]:
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0, strict=True))) as site:
        yield site


@pytest.mark.parametrize("path", GENERATING)
def test_what_generates_is_remembered_by_its_names(site: Site, path: str) -> None:
    """By the id of its answer and by that of its HTTP request. Of a prompt that is cached a pin makes no request."""
    answer = site.post(path, {**BODIES[path], "cache_salt": path}, headers={"x-request-id": f"for-{path}"})
    assert answer.status_code < 300, answer.text
    for name in (answer.json()["id"], answer.headers["x-request-id"]):
        shown = site.http.get(f"/octavo/v1/requests/{name}").json()
        assert shown["path"] == path and shown["x_request_id"] == answer.headers["x-request-id"]
        assert shown["requests"]


def test_what_generates_is_logged_and_traced(checkpoint: Checkpoint) -> None:
    """With the id of its HTTP request, and as far as it draws tokens, with how it does."""
    with over_http() as collector:
        told = ObservabilityConfig(
            enable_log_requests=True,
            otlp_traces_endpoint=collector.endpoint,
            otlp_traces_protocol="http/protobuf",
        )
        config = Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0), observability=told)
        with running(checkpoint, config) as site, logged() as lines, traced(site):
            for path in GENERATING:
                body = {**BODIES[path], "cache_salt": path}
                assert site.post(path, body, headers={"x-request-id": path}).status_code < 300
    logs = {line["request_id"]: line for line in lines if line["logger"] == "octavo.server.journal"}
    traces = [attributes(span) for span in collector.spans if span.name == "llm_request"]
    by_id = {about["gen_ai.request.id"]: about for about in traces}
    assert logs.keys() == by_id.keys() == set(GENERATING)
    for path in GENERATING:
        draws = path != "/v1/embeddings"
        assert ("params" in logs[path]) == ("gen_ai.request.temperature" in by_id[path]) == draws
        assert ("pooling" in logs[path]) == ("octavo.pooling" in by_id[path]) != draws
        assert logs[path]["prompt_tokens"] == by_id[path]["gen_ai.usage.input_tokens"] > 0


@pytest.mark.parametrize("path", WITH_TEMPLATE)
def test_variables_that_the_template_does_not_read_are_told(site: Site, strict: Site, path: str) -> None:
    about = {"input": BODIES[path].get("input")} if path == "/v1/responses" else {"messages": MESSAGES}
    rest = {name: value for name, value in BODIES[path].items() if name not in ("prompt", "input", "messages")}
    body = {**rest, **about, "chat_template_kwargs": {"unread": 1}}
    answer = site.post(path, body)
    assert answer.status_code < 300, answer.text
    assert answer.headers["x-octavo-unknown-fields"] == "chat_template_kwargs.unread"
    refused = strict.post(path, body)
    assert refused.status_code == 400 and "chat_template_kwargs.unread" in refused.json()["error"]["message"]


MANY = 30_000
IDS = [1, 2, 3] * (MANY // 3)
TEXTS = [{"type": "text", "text": "a"}] * MANY
TOOLS = [{"name": f"f{number}", "input_schema": {"type": "object"}} for number in range(MANY // 4)]
TOOLED = [{"type": "function", "function": {"name": tool["name"]}} for tool in TOOLS]
LARGE: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXTS}], "tools": TOOLED},
    "/v1/completions": {"prompt": IDS},
    "/v1/embeddings": {"input": IDS},
    "/v1/responses": {"input": [{"role": "user", "content": TEXTS}]},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXTS}], "tools": TOOLS},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": TEXTS}], "tools": TOOLS},
    "/tokenize": {"prompt": "a b c " * (MANY // 3), "return_token_strs": True},
    "/detokenize": {"tokens": IDS},
    "/octavo/v1/explain": {"token_ids": IDS},
    "/octavo/v1/pins": {"token_ids": IDS},
}


class Calls:
    """How many functions the loop of a site calls, for the time of a block: work that holds up everybody."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.num = 0

    def __enter__(self) -> "Calls":
        self._site.run(self._watched(self._count))
        return self

    def __exit__(self, *_: object) -> None:
        self._site.run(self._watched(None))

    async def _watched(self, by: Any) -> None:
        sys.setprofile(by)

    def _count(self, _frame: object, event: str, _about: object) -> None:
        self.num += event in ("call", "c_call")


@pytest.mark.parametrize("path", [route.path for route in ROUTES if route.body is not None])
def test_a_large_body_is_not_worked_on_where_everybody_waits(site: Site, path: str) -> None:
    """What each of its parts, tokens or tools takes is done in a thread."""
    with Calls(site) as calls:
        answer = site.post(path, {**BODIES[path], **LARGE[path]})
    assert answer.status_code in (200, 400), answer.text
    assert calls.num < MANY // 4
