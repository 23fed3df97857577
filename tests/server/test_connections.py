"""Clients that leave, engines that fail, prompts that take long: what the others then see."""

import random
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from octavo.core.types import FinishReason
from octavo.models.checkpoint import Checkpoint
from tests.server.dialects import events_of
from tests.server.site import NUM_BLOCKS, PATIENCE_S, Gate, Site, parse_events, running

LONG = {"prompt": "the", "max_tokens": 200, "ignore_eos": True}
Gated = tuple[Site, Gate]
USER = [{"role": "user", "content": "the"}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "the", "max_output_tokens": 200, "ignore_eos": True},
    "/v1/messages": {"messages": USER, "max_tokens": 200, "ignore_eos": True},
}


def aborted(site: Site) -> int:
    return site.app.service.meters.finished[FinishReason.ABORT]


def idle(site: Site) -> bool:
    state = site.app.service.meters.gauges
    waiting = site.app.service.meters.num_waiting
    return site.app.service.duty.in_flight == 0 and state.num_running == 0 and waiting == 0 and state.blocks_leased == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_running_request_ends_with_its_connection(gated: Gated, stream: bool, n: int) -> None:
    site, gate = gated
    with site.opened("/v1/completions", {**LONG, "stream": stream, "n": n}):
        gate.let(3)
        site.until(lambda: site.app.service.meters.generation_tokens >= 3 * n)
    site.until(lambda: site.app.service.duty.in_flight == 0)
    gate.open()
    site.until(lambda: idle(site))
    assert aborted(site) == n
    assert site.app.service.meters.generation_tokens < 10 * n


@pytest.mark.parametrize("path", DIALECTS)
def test_a_running_request_ends_with_its_connection_in_each_protocol(gated: Gated, path: str) -> None:
    site, gate = gated
    for round_, stream in enumerate((False, True), 1):
        with site.opened(path, {**DIALECTS[path], "stream": stream}):
            site.until(lambda: site.app.service.duty.in_flight == 1)
            site.until(lambda: gate.let(1) or site.app.service.meters.gauges.num_running == 1)
        site.until(lambda: site.app.service.duty.in_flight == 0)
        site.until(lambda: gate.let(1) or idle(site))
        assert aborted(site) == round_


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_queued_request_ends_with_its_connection(gated: Gated, stream: bool) -> None:
    """It never gets a step: those before it hold both places until it is gone."""
    site, gate = gated
    with site.opened("/v1/completions", {**LONG, "n": 2}):
        site.until(lambda: site.app.service.meters.num_waiting == 1)
        with site.opened("/v1/completions", {**LONG, "stream": stream}):
            gate.let(2)
            site.until(lambda: site.app.service.duty.in_flight == 2)
        site.until(lambda: site.app.service.duty.in_flight == 1)
    gate.open()
    site.until(lambda: idle(site))
    assert aborted(site) == 3


def test_all_prompts_of_a_request_end_with_its_connection(gated: Gated) -> None:
    site, gate = gated
    with site.opened("/v1/completions", {**LONG, "prompt": ["a", "b", "c", "d"]}):
        gate.let(2)
        site.until(lambda: site.app.service.meters.generation_tokens >= 2)
    gate.open()
    site.until(lambda: idle(site))
    assert aborted(site) == 4


def test_a_choice_that_found_its_stop_string_is_computed_no_more(site: Site, gated: Gated) -> None:
    """One step may be on its way when it is found. The other choice goes on to its end, and its text is the same."""
    fields = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "ignore_eos": True, "n": 2, "return_token_ids": True}
    free = [choice["text"] for choice in site.complete("the", **fields).json()["choices"]]
    stop = next(free[1][at : at + 3] for at in range(8, len(free[1])) if free[1][at : at + 3] not in free[0])
    whole = site.complete("the", **fields, stop=stop).json()["choices"]
    num_shown = len(whole[1]["token_ids"])
    assert [choice["text"] for choice in whole] == [free[0], free[1].partition(stop)[0]] and num_shown < 30
    own, gate = gated
    body = {"prompt": "the", **fields, "stop": stop, "stream": True}
    gate.let(num_shown)
    with own.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        text = ""
        while '"finish_reason":"stop"' not in text:
            text += next(lines) + "\n"
        gate.open()
        text += "".join(f"{line}\n" for line in lines)
    streamed = parse_events(response.status_code, response.headers, text)
    assert [streamed.text(index) for index in (0, 1)] == [choice["text"] for choice in whole]
    own.until(lambda: idle(own))
    meters = own.app.service.meters
    assert meters.generation_tokens - 40 in (num_shown, num_shown + 1)
    assert (meters.finished[FinishReason.STOP], meters.finished[FinishReason.ABORT]) == (1, 0)


def in_thread(work: Callable[[], httpx.Response]) -> Callable[[], httpx.Response]:
    """Starts `work` in a thread; calling the result waits for what it returns."""
    result: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()

    def wait() -> httpx.Response:
        thread.join(60)
        return result[0]

    return wait


BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "the", "max_tokens": 30}),
    ("/v1/completions", {"prompt": ["a b", "c d"], "n": 2, "temperature": 1.0, "max_tokens": 20, "logprobs": 1}),
    ("/v1/completions", {"prompt": "x" * 100, "max_tokens": 5, "best_of": 3, "temperature": 1.0}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 5, "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "stop": "e"}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 30}),
    ("/v1/messages", {"messages": USER, "max_tokens": 30, "stop_sequences": ["e"]}),
    ("/v1/messages/count_tokens", {"messages": USER}),
)


def test_three_hundred_clients_that_leave_at_random_leave_nothing(site: Site) -> None:
    """Before their request was read, while it waits, in a prefill, in the middle of a stream, or after its end."""
    draw = random.Random(7)
    for number in range(300):
        path, body = draw.choice(BODIES)
        with site.opened(path, {**body, "stream": draw.random() < 0.5, "cache_salt": str(number % 50)}):
            threading.Event().wait(draw.random() * 0.01)
    service = site.app.service
    site.until(lambda: idle(site) and service.meters.num_followed == 0)
    assert service.doorway.num_inside == service.doorway.num_waiting_tokens == 0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert site.metric(name) == 0
    assert site.metric("octavo:tenant_requests_live") == 0
    assert site.metric("octavo:blocks") == NUM_BLOCKS
    assert site.complete("x", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "word", "first"),
    [
        ("/v1/completions", LONG, b"\r\n\n\n\r\n", b"data: {"),
        ("/v1/responses", DIALECTS["/v1/responses"], b"\r\n\n\n\r\n", b"event: response.created\n"),
        (
            "/v1/messages",
            DIALECTS["/v1/messages"],
            b'event: ping\ndata: {"type":"ping"}\n\n',
            b"event: message_start\n",
        ),
    ],
)
def test_a_silent_stream_is_kept_alive(gated: Gated, path: str, body: Any, word: bytes, first: bytes) -> None:
    """Empty lines or pings come while the first step takes long, and the answer begins behind them."""
    site, gate = gated
    site.app.service.keep_alive_s = 0.02
    with site.opened(path, {**body, "stream": True}) as sock:
        head = b""
        while head.count(word) < 2:
            head += sock.recv(4096)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and first not in head
        site.until(lambda: site.app.service.duty.in_flight == 1)
        while first not in head:
            gate.let(1)
            head += sock.recv(4096)


def test_a_failed_step_has_a_status_before_the_first_token(gated: Gated) -> None:
    site, gate = gated
    for stream in (False, True):
        gate.failure = RuntimeError("the kernel tripped")
        gate.let(1)
        response = site.complete("the", stream=stream)
        assert response.status_code == 500
        assert "the kernel tripped" in response.json()["error"]["message"]
    gate.open()
    assert site.complete("the", max_tokens=2).status_code == 200


@pytest.mark.parametrize("n", [1, 2])
def test_a_failed_step_ends_a_stream_with_an_error_and_nothing_else(gated: Gated, n: int) -> None:
    site, gate = gated
    wait = in_thread(lambda: site.complete("the", stream=True, max_tokens=50, ignore_eos=True, n=n))
    gate.let(3)
    site.until(lambda: site.app.service.meters.generation_tokens >= 3 * n)
    gate.failure = RuntimeError("the kernel tripped")
    gate.let(1)
    streamed = site.stream(wait())
    assert streamed.status == 200 and not streamed.done
    assert [error["code"] for error in streamed.errors] == ["generation_failed"]
    assert streamed.errors == [streamed.chunks[-1]["error"]]
    assert all(streamed.finish(index) == [] for index in range(n))


def failing(gated: Gated, path: str) -> httpx.Response:
    """A stream whose fourth step fails, or the one after."""
    site, gate = gated
    wait = in_thread(lambda: site.post(path, {**DIALECTS[path], "stream": True}))
    site.until(lambda: gate.let(1) or site.app.service.meters.generation_tokens >= 3)
    gate.failure = RuntimeError("the kernel tripped")
    gate.let(1)
    return wait()


def test_a_failed_step_fails_a_response(gated: Gated) -> None:
    """What came stays, as incomplete; and OpenAI's client does not take it for an answer."""
    events = events_of(failing(gated, "/v1/responses").text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"].startswith("response.completed")] == []
    last = events[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "the kernel tripped" in last["response"]["error"]["message"]
    (item,) = last["response"]["output"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert item["status"] == "incomplete" and item["content"][0]["text"] == text != ""


def test_a_failed_step_ends_a_message_with_an_error(gated: Gated) -> None:
    """There is no reason why it stopped, and no stop."""
    response = failing(gated, "/v1/messages")
    *events, last = events_of(response.text)
    assert {event["type"] for event in events} == {"message_start", "content_block_start", "content_block_delta"}
    assert last["type"] == "error" and last["error"]["type"] == "api_error"
    assert "the kernel tripped" in last["error"]["message"]
    assert last["request_id"] == response.headers["request-id"]


def test_a_failure_before_the_first_token_has_a_status_and_the_protocols_form(gated: Gated) -> None:
    site, gate = gated
    for path, body in DIALECTS.items():
        gate.failure = RuntimeError("the kernel tripped")
        gate.let(1)
        response = site.post(path, {**body, "stream": True})
        kind = "api_error" if path == "/v1/messages" else "server_error"
        assert response.status_code == 500 and response.json()["error"]["type"] == kind


def die(site: Site) -> None:
    async def close() -> None:
        await site.app.service.client.close()

    site.run(close())


def test_a_dead_engine_is_said_to_everybody(gated: Gated) -> None:
    site, gate = gated
    waits = [
        in_thread(lambda stream=stream: site.complete("the", stream=stream, max_tokens=50)) for stream in (False, True)
    ]
    site.until(lambda: site.app.service.duty.in_flight == 2)
    gate.open()
    die(site)
    responses = [wait() for wait in waits]
    responses += [
        site.complete("the"),
        site.chat("the", stream=True),
        site.http.get("/health"),
        site.http.get("/v1/models"),
    ]
    for response in responses:
        assert response.status_code == 503 or site.stream(response).errors
        assert "engine" in response.text
    assert site.http.get("/health/ready").status_code == 503
    assert site.http.get("/metrics").status_code == 200


def test_a_stuck_engine_is_unhealthy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.http.get("/health").status_code == 200
    monkeypatch.setattr("octavo.server.service.PATIENCE_S", -1.0)
    assert site.http.get("/health").status_code == 503
    assert site.http.get("/health/ready").json()["error"]["code"] == "engine_stuck"


def test_a_stop_string_ends_the_work_in_the_engine(gated: Gated) -> None:
    """The engine, which knows no text, would go on to max_tokens."""
    site, gate = gated
    gate.open()
    letter = site.tokenizer.encode("a")
    forced: dict[str, Any] = {"allowed_token_ids": letter, "max_tokens": 200, "stop": "aaa"}
    answer = site.complete("the", **forced).json()
    assert answer["choices"][0]["stop_reason"] == "aaa" and answer["usage"]["completion_tokens"] == 3
    site.until(lambda: idle(site))
    meters = site.app.service.meters
    assert (meters.finished[FinishReason.STOP], aborted(site)) == (1, 0)
    assert meters.generation_tokens < 100


def test_requests_before_the_engine_is_ready(checkpoint: Checkpoint) -> None:
    """Alive, not ready, and every other answer says what it is doing."""
    loaded = threading.Event()

    def load(report: Callable[[str], None]) -> None:
        report("packing weights (40 %)")
        assert loaded.wait(PATIENCE_S)

    with running(checkpoint, load=load) as site:
        site.until(lambda: "packing" in site.http.get("/health/ready").text)
        assert site.http.get("/health").status_code == site.http.get("/metrics").status_code == 200
        for response in (site.http.get("/v1/models"), site.complete("x"), site.chat("x")):
            error = response.json()["error"]
            assert response.status_code == 503 and error["code"] == "loading"
            assert "packing weights (40 %)" in error["message"] and response.headers["retry-after"]
        loaded.set()
        site.until(lambda: site.http.get("/health/ready").status_code == 200)
        assert site.complete("x", max_tokens=1).status_code == 200


def test_the_answer_for_a_client_that_is_there(gated: Gated) -> None:
    """A half-open request is not mistaken for one that has gone."""
    site, gate = gated
    wait = in_thread(lambda: site.complete("the", max_tokens=4, ignore_eos=True))
    gate.let(4)
    assert wait().json()["usage"]["completion_tokens"] == 4
