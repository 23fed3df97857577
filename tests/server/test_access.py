"""Keys, origins, request ids, a path prefix: what stands between the outside and the endpoints."""

import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest

from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.models.catalog import default_name
from octavo.models.checkpoint import Checkpoint
from octavo.server.auth import OPEN_PATHS
from octavo.server.routes import ROUTES
from tests.server.site import Site, running

KEYS = ("first-key", "second-key")
ORIGIN = "https://chat.example.org"


@pytest.fixture(scope="module")
def closed(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server with keys, an allowed origin, two names for its model, and a proxy's prefix."""
    server = ServerConfig(port=0, api_key=KEYS, allowed_origins=(ORIGIN,), root_path="/llm")
    with running(checkpoint, Config(model=ModelConfig(served_model_name=("one", "org/two")), server=server)) as site:
        yield site


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": KEYS[0]}], ids=str)
def test_every_route_but_the_probes_needs_a_key(closed: Site, headers: dict[str, str]) -> None:
    paths = [(route.method, route.path) for route in ROUTES] + [("GET", "/nothing"), ("POST", "/v1/embeddings")]
    for method, path in paths:
        response = closed.http.request(method, path, headers=headers, json={})
        if path in OPEN_PATHS:
            assert response.status_code == 200
        else:
            error = response.json()["error"]
            told = error["type"] if path.startswith("/v1/messages") else error["code"]
            assert response.status_code == 401 and told in ("invalid_api_key", "authentication_error"), path
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(closed: Site, key: str) -> None:
    response = closed.post("/tokenize", {"prompt": "x"}, headers={"authorization": f"bearer {key}"})
    assert response.status_code == 200
    assert closed.http.get("/nothing", headers={"authorization": f"Bearer {key}"}).status_code == 404


def with_key(closed: Site, path: str) -> dict[str, Any]:
    return closed.http.get(path, headers={"authorization": f"Bearer {KEYS[0]}"}).json()


def test_each_name_of_the_model_is_served(closed: Site) -> None:
    models = with_key(closed, "/v1/models")["data"]
    assert [model["id"] for model in models] == ["one", "org/two"]
    assert all(model["root"] == "tiny" and model["max_model_len"] == 256 for model in models)
    assert with_key(closed, "/v1/models/org/two")["id"] == "org/two"
    for sent, answered in (("org/two", "org/two"), ("one", "one"), (None, "one")):
        body = {"prompt": "x", "max_tokens": 1, "model": sent}
        response = closed.post("/v1/completions", body, headers={"authorization": f"Bearer {KEYS[0]}"})
        assert response.json()["model"] == answered


def test_allowed_origins_only(closed: Site, site: Site) -> None:
    ask = {"origin": ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = closed.http.options("/v1/chat/completions", headers=ask)
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == ORIGIN
    other = closed.http.options("/v1/chat/completions", headers={**ask, "origin": "https://evil.example.org"})
    assert "access-control-allow-origin" not in other.headers
    assert closed.http.get("/health", headers={"origin": ORIGIN}).headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in site.http.get("/health", headers={"origin": ORIGIN}).headers


def test_request_ids_are_echoed(site: Site) -> None:
    for path in ("/health", "/nothing", "/v1/models"):
        assert site.http.get(path, headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
        assert site.http.get(path).headers["x-request-id"]
    assert site.complete("x", max_tokens=1, stream=True).headers["x-request-id"]
    for strange in (b"a b", b"\xff", b"x" * 200):
        assert site.http.get("/health", headers={b"x-request-id": strange}).headers["x-request-id"].isalnum()


@pytest.mark.parametrize(
    "path", ["/a\n2026 INFO x: y", "/a\r\n", "/\x1b[31m", "/\0", "/a 200 in 0 s", "/\x85\u2028\u202e", "/%"]
)
def test_a_path_is_one_word_of_the_log(site: Site, caplog: pytest.LogCaptureFixture, path: str) -> None:
    with caplog.at_level(logging.INFO, "octavo.server.access"):
        assert site.http.get(quote(path), headers={"x-request-id": "me"}).status_code == 404
        site.until(lambda: any("(me)" in record.getMessage() for record in caplog.records))
    (line,) = (record.getMessage() for record in caplog.records if "(me)" in record.getMessage())
    assert line.isascii() and line.isprintable()
    method, shown, status, *_ = line.split(" ")
    assert (method, unquote(shown), status) == ("GET", path, "404")


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_says_how_many_tokens_a_request_was(site: Site, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    ask = {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 4, "n": 2, "ignore_eos": True, "stream": stream}
    with caplog.at_level(logging.INFO, "octavo.server.access"):
        assert site.post("/v1/completions", ask, headers={"x-request-id": "counted"}).status_code == 200
        site.until(lambda: any("(counted)" in record.getMessage() for record in caplog.records))
    (line,) = (record.getMessage() for record in caplog.records if "(counted)" in record.getMessage())
    assert re.fullmatch(r"POST /v1/completions 200 in \d+\.\d+ s, 5 \+ 16 tokens \(counted\)", line)


def test_two_requests_may_have_one_request_id(site: Site) -> None:
    answers = [
        site.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"x-request-id": "same"}) for _ in "ab"
    ]
    assert answers[0].json()["id"] != answers[1].json()["id"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "smollm2-135m-instruct"),
        ("org/model", "org/model"),
        ("/models/Some-Model.Q4_1.gguf", "Some-Model.Q4_1"),
        ("Some.gguf", "Some"),
        ("./folder/model/", "model"),
        ("/", "/"),
    ],
)
def test_a_model_is_called_as_it_was_asked_for(model: str | None, name: str) -> None:
    assert default_name(model) == name
