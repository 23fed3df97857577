"""What a server logs: each line of a request has its id, and no word of what was asked unless that was wanted."""

import io
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.config.logs import JsonLines
from octavo.config.schema import Config, ModelConfig, ObservabilityConfig, ServerConfig
from octavo.core.events import Preempted, Queued
from octavo.models.checkpoint import Checkpoint
from octavo.server.listeners import Listeners, one_by_one
from tests.server.site import BLOCK_SIZE, Gate, Site, backend_of, running

SECRET = "xyzzy"
Line = dict[str, Any]


@contextmanager
def logged(level: int = logging.DEBUG) -> Iterator[list[Line]]:
    """The lines of the block, filled in at its end."""
    stream, lines = io.StringIO(), list[Line]()
    handler, ours = logging.StreamHandler(stream), logging.getLogger("octavo")
    handler.setFormatter(JsonLines("serve"))
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(level)
    try:
        yield lines
    finally:
        ours.removeHandler(handler)
        ours.setLevel(before)
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


def config(**settings: Any) -> Config:
    told = ObservabilityConfig(**settings)
    return Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0), observability=told)


@pytest.fixture(scope="module")
def chatty(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server that logs each request, with no text of it."""
    with running(checkpoint, config(enable_log_requests=True)) as site:
        yield site


@pytest.fixture
def telling(checkpoint: Checkpoint) -> Iterator[tuple[Site, Gate]]:
    """The same, and it computes when it is let."""
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, config(enable_log_requests=True), backend=gate) as site:
        yield site, gate
        gate.open()


BODIES: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {"prompt": SECRET, "max_tokens": 2, "stop": [SECRET], "a_typo": 1}),
    ("/v1/completions", {"prompt": f"tell {SECRET}", "max_tokens": 2, "stream": True}),
    ("/v1/completions", {"prompt": SECRET, "structured_outputs": {"choice": [SECRET, "x"]}}),
    ("/v1/completions", {"prompt": SECRET, "structured_outputs": {"grammar": f"root ::= {SECRET} ("}}),
    ("/v1/completions", {"prompt": SECRET, "structured_outputs": {"json": {"type": SECRET}}}),
    ("/v1/completions", {"prompt": SECRET, "temperature": SECRET}),
    ("/v1/completions", {"prompt": SECRET, "suffix": SECRET, "user": SECRET}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": SECRET}]}),
    ("/v1/embeddings", {"input": SECRET}),
    ("/tokenize", {"prompt": SECRET}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/octavo/v1/explain", {"prompt": SECRET}),
    ("/octavo/v1/pins", {"prompt": SECRET * BLOCK_SIZE}),
)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_each_line_of_a_request_has_its_id_and_no_word_of_it(chatty: Site, path: str, body: Any) -> None:
    with logged() as lines:
        chatty.post(path, body, headers={"x-request-id": "mine"})
        chatty.until(lambda: chatty.app.service.duty.in_flight == 0)
        chatty.http.get("/version", headers={"x-request-id": "next"})
    mine = [line for line in lines if line.get("request_id") == "mine"]
    assert any(line["logger"] == "octavo.server.access" and line["path"] == path for line in mine)
    strangers = [line for line in lines if line not in mine and line.get("request_id") != "next"]
    assert not [line for line in strangers if line["logger"].startswith("octavo.server")]
    assert SECRET not in json.dumps(lines)


def test_what_is_no_json_is_not_in_the_log(site: Site) -> None:
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    with logged() as lines:
        site.http.post("/v1/completions", content=f'{{"prompt": "{SECRET}', headers=headers)
        site.http.get(f"/v1/models?{SECRET}", headers=headers)
    assert [line["status"] for line in lines if line["logger"] == "octavo.server.access"][:1] == [400]
    assert SECRET not in json.dumps(lines)


def test_an_error_in_the_middle_of_a_stream_is_a_line_of_its_request(telling: tuple[Site, Gate]) -> None:
    site, gate = telling
    site.app.service.keep_alive_s = 0.01
    with logged() as lines:
        head = {"x-request-id": "mine"}
        body = {"prompt": SECRET, "max_tokens": 50, "stream": True}
        with site.http.stream("POST", "/v1/completions", json=body, headers=head) as answer:
            gate.let(2)
            told = answer.iter_lines()
            next(told)
            gate.failure = RuntimeError("the kernel tripped")
            gate.open()
            assert any("generation_failed" in each for each in told)
        site.until(lambda: site.app.service.duty.in_flight == 0)
    error = next(line for line in lines if line["level"] == "WARNING")
    assert (error["request_id"], error["logger"]) == ("mine", "octavo.server.openai.respond")
    failure = next(line for line in lines if line["level"] == "ERROR")
    assert failure["logger"] == "octavo.engine.loop" and "the kernel tripped" in failure["exception"]
    access = next(line for line in lines if line["logger"] == "octavo.server.access")
    assert (access["status"], access["error"]) == (200, "generation_failed")
    assert SECRET not in json.dumps(lines)


def test_parameters_of_requests_are_logged_where_that_is_asked_for(chatty: Site, site: Site) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0.5, "stop": [SECRET], "seed": 7}
    with logged() as lines:
        for each in (chatty, site):
            assert each.post("/v1/completions", body, headers={"x-request-id": "mine"}).status_code == 200
    (line,) = (line for line in lines if line["logger"] == "octavo.server.journal")
    text = f"<{len(str((SECRET,)))} characters>"
    assert line["params"] == {
        "temperature": 0.5,
        "max_tokens": 2,
        "seed": 7,
        "stop": text,
    }
    assert (line["prompt_tokens"], line["seed"], line["request_id"]) == (3, 7, "mine") and "prompt" not in line


def test_as_much_of_a_prompt_is_logged_as_was_asked_for(checkpoint: Checkpoint) -> None:
    with running(checkpoint, config(enable_log_requests=True, max_log_len=9)) as site, logged() as lines:
        site.complete(f"{SECRET} and more", max_tokens=1, stop=[SECRET])
        site.chat(SECRET, max_tokens=1)
    told = [line for line in lines if line["logger"] == "octavo.server.journal"]
    assert told[0]["prompt"] == f"{SECRET} and" and told[0]["params"]["stop"] == str((SECRET,))[:9]
    assert len(told[1]["prompt"]) == 9


def test_paths_that_machines_ask_are_logged_when_debugging_only(checkpoint: Checkpoint, site: Site) -> None:
    with running(checkpoint, config(disable_access_log_for_endpoints=("version", "/v1/models"))) as own:
        with logged(logging.INFO) as lines:
            for path in ("/version", "/v1/models", "/health"):
                own.http.get(path)
                site.http.get(path)
        assert sorted(line["path"] for line in lines) == ["/health", "/v1/models", "/version"]
        with logged(logging.DEBUG) as lines:
            own.http.get("/version")
        assert [(line["path"], line["level"]) for line in lines] == [("/version", "DEBUG")]


def test_a_preemption_is_a_line_of_the_request_that_lost(checkpoint: Checkpoint, site: Site) -> None:
    with logged() as lines:
        answer = site.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"x-request-id": "loser"})
        engine_id = f"{answer.json()['id'].partition('-')[2]}-0"
        both = [Preempted(name, 0, 1.0, 7, "others need its blocks") for name in (engine_id, "stranger")]
        site.app.service.listeners.on_events(both)
    told = [line for line in lines if line["message"].startswith("preempted")]
    assert [line.get("request_id") for line in told] == ["loser", None]
    assert "7 tokens lost, 0 kept; others need its blocks" in told[0]["message"]


def test_a_listener_that_fails_hurts_no_other(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []

    def broken(event: Queued) -> None:
        raise ValueError("no")

    def breaks(_: Sequence[object]) -> None:
        raise ValueError("no")

    listeners = Listeners()
    listeners.add_all(breaks)
    listeners.add_all(heard.extend)
    listeners.add(one_by_one({Queued: broken}))
    listeners.add(one_by_one({Queued: heard.append, Preempted: heard.append}))
    both = [Queued(name, 0.0, 1) for name in "rs"]
    listeners.on_events(both)
    assert heard == [*both, *both]
    assert caplog.text.count("a listener failed on a Queued") == 2
    assert caplog.text.count("a listener failed on a message") == 1
