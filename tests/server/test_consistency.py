"""Numbers of a server under a known load: they agree with each other at each scrape, and with its clients' sums."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.backends.reference import ReferenceBackend
from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.core.types import Limits
from octavo.engine.client import EngineState
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from octavo.server.catalogue.metric import Kind, Sources
from octavo.server.catalogue.page import METRICS
from octavo.server.exposition import exposed, registry_of
from octavo.server.listeners import Listeners
from octavo.server.metrics import Meters
from tests.engine.replicas import request
from tests.engine.test_clients import collect
from tests.engine.test_supervisor import Row, with_row
from tests.server.scrape import Scrape
from tests.server.site import BLOCK_SIZE, MAX_MODEL_LEN, Gate, Site, as_, parse_events, running
from tests.server.test_connection import connected

NUM_BLOCKS = 40
OPERATOR = "operator-key"
TENANTS = """
tenants:
  red: {keys: [red]}
  blue: {keys: [blue], cache: lab}
  gone: {keys: [gone], cache: lab}
  few: {keys: [few], requests_per_minute: 2}
"""
EXACT = ("red", "blue")
"""Those who read each answer to its end, and stop by tokens alone: they know what was generated for them."""


@dataclass
class Told:
    """What one client was told, in sum."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    def usage(self, usage: dict[str, Any], num_prompts: int = 1) -> None:
        self.requests += num_prompts
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        self.completion_tokens += usage["completion_tokens"]


class Client:
    """Sends a random mix under one key, and keeps book."""

    def __init__(self, site: Site, key: str) -> None:
        self.key = key
        self.told = Told()
        self._site = site
        self._draw = random.Random(key)

    def run(self, count: int) -> None:
        """The first is so long that it cannot end beside another one like it."""
        self._take(self._send({"prompt": self.key, "max_tokens": 180, "ignore_eos": True}).json(), 1)
        kinds = (self._whole, self._stream, self._several, self._wrong, self._unknown)
        for _ in range(count):
            self._draw.choice(kinds)()

    def leave(self, count: int) -> None:
        """Requests whose answers nobody reads to the end, and those that a stop string ends."""
        for number in range(count):
            with self._site.opened("/v1/completions", self._body(stream=number % 2 == 0, n=2), self.key):
                threading.Event().wait(self._draw.random() * 0.02)
            self._send(self._body(stop=["e", "a"]))

    def _body(self, **fields: Any) -> dict[str, Any]:
        prompt = "shared beginning of all prompts " * self._draw.randint(0, 1) + "x" * self._draw.randint(1, 30)
        return {"prompt": prompt, "max_tokens": self._draw.randint(1, 50), "temperature": 1.0, **fields}

    def _send(self, body: dict[str, Any]) -> Any:
        response = self._site.post("/v1/completions", body, **as_(self.key))
        self.told.statuses["/v1/completions", response.status_code] += 1
        return response

    def _whole(self) -> None:
        self._take(self._send(self._body(n=self._draw.randint(1, 3))).json(), 1)

    def _several(self) -> None:
        prompts = [self._body()["prompt"] for _ in range(3)]
        self._take(self._send(self._body(prompt=prompts, ignore_eos=True)).json(), 3)

    def _take(self, answer: dict[str, Any], num_prompts: int) -> None:
        self.told.usage(answer["usage"], num_prompts)
        self.told.ends.update(choice["finish_reason"] for choice in answer["choices"])

    def _stream(self) -> None:
        body = self._body(stream=True, stream_options={"include_usage": True}, n=2)
        response = self._send(body)
        streamed = parse_events(200, response.headers, response.text)
        self.told.usage(streamed.chunks[-1]["usage"])
        self.told.ends.update(reason for index in (0, 1) for reason, _ in streamed.finish(index))

    def _wrong(self) -> None:
        error = self._send(self._body(temperature=-1)).json()["error"]
        self.told.codes[error["code"]] += 1

    def _unknown(self) -> None:
        error = self._send(self._body(model="nobody")).json()["error"]
        self.told.codes[error["code"]] += 1


@pytest.fixture
def busy(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[tuple[Site, Gate]]:
    """A server whose blocks do not hold two long choices, and which begins to compute when the gate is opened."""
    file = tmp_path / "tenants.yaml"
    file.write_text(TENANTS, encoding="utf-8")
    server = ServerConfig(port=0, tenants=str(file), api_key=(OPERATOR,))
    backend = Gate(
        ReferenceBackend(
            checkpoint,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            dequantize=dequantize,
        )
    )

    def narrowed(limits: Limits) -> Limits:
        return replace(limits, num_blocks=NUM_BLOCKS, block_manager="v1")

    config = Config(model=ModelConfig(model="tiny"), server=server)
    with running(checkpoint, config, backend=backend, max_num_seqs=8, narrowed=narrowed) as site:
        yield site, backend
        backend.open()


def scrape(site: Site) -> Scrape:
    return Scrape(site.http.get("/metrics", **as_(OPERATOR)).text)


def at_rest(site: Site) -> Scrape:
    meters = site.app.service.meters
    site.until(
        lambda: not meters.num_followed and not meters.gauges.num_running and not site.app.service.duty.in_flight
    )
    found = scrape(site)
    found.check_idle()
    return found


def test_numbers_add_up_at_each_scrape_and_are_what_clients_were_told(busy: tuple[Site, Gate]) -> None:
    site, gate = busy
    clients = [Client(site, key) for key in EXACT]
    leaving = Client(site, "gone")
    threads = [threading.Thread(target=client.run, args=(24,)) for client in clients]
    threads.append(threading.Thread(target=leaving.leave, args=(12,)))
    for thread in threads:
        thread.start()
    site.until(lambda: all_have_come(site, gate))
    gate.open()
    last = scrape(site)
    last.check()
    while any(thread.is_alive() for thread in threads):
        last, before = scrape(site), last
        last.check(before)
    found = at_rest(site)
    assert found.sum("vllm:num_preemptions_total") > 0
    for client in clients:
        told = client.told
        assert found.sum("octavo:tenant_requests_total", tenant=client.key) == told.requests
        assert found.sum("octavo:tenant_prompt_tokens_total", tenant=client.key) == told.prompt_tokens
        assert found.sum("octavo:tenant_cached_tokens_total", tenant=client.key) == told.cached_tokens
        assert found.sum("octavo:tenant_generation_tokens_total", tenant=client.key) == told.completion_tokens
    check_answers(found, [*clients, leaving])
    ends = sum((client.told.ends for client in clients), Counter[str]())
    assert found.sum("vllm:request_success_total", finished_reason="abort") > 0
    assert found.sum("vllm:request_success_total", finished_reason="error") == 0
    assert found.sum("vllm:request_success_total", finished_reason="length") >= ends["length"] > 0


def all_have_come(site: Site, gate: Gate) -> bool:
    """Have both clients begun? If not, one more step: only between two of them the engine takes requests in."""
    if all(site.app.service.meters.tallies.of(key).num_requests for key in EXACT):
        return True
    gate.let(1)
    return False


def check_answers(found: Scrape, clients: list[Client]) -> None:
    """HTTP as its clients saw it. Who left before an answer was there is the only one whose status nobody was told."""
    statuses = sum((client.told.statuses for client in clients), Counter[tuple[str, int]]())
    for (route, status), count in statuses.items():
        if status != 200:
            assert found.sum("octavo:http_answers_total", handler=route, status=str(status)) == count
    codes = sum((client.told.codes for client in clients), Counter[str]())
    assert {code: found.sum("octavo:http_errors_total", code=code) for code in codes} == codes
    assert found.sum("octavo:http_answers_total", handler="/v1/completions") == found.sum("http_requests_total")
    assert found.sum("http_requests_total") == found.sum("http_request_duration_seconds_count")


def test_gauges_are_at_rest_after_all_clients_left_at_once(busy: tuple[Site, Gate]) -> None:
    site, gate = busy
    gate.open()
    body = {"prompt": "y" * 30, "max_tokens": 100, "ignore_eos": True, "stream": True, "n": 2}
    opened = [site.opened("/v1/completions", {**body, "cache_salt": str(number)}, "gone") for number in range(20)]
    for each in opened:
        each.__enter__()
    site.until(lambda: site.app.service.meters.num_queued == 20)
    scrape(site).check()
    for each in opened:
        each.__exit__(None, None, None)
    found = at_rest(site)
    assert found.sum("vllm:request_success_total", finished_reason="abort") == found.sum("vllm:request_success_total")
    assert found.sum("octavo:blocks", state="blank") + found.sum("octavo:blocks", state="cached") == NUM_BLOCKS


def test_refusals_and_errors_are_counted_by_their_codes(busy: tuple[Site, Gate]) -> None:
    site, gate = busy
    gate.open()
    over = [site.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, **as_("few")) for _ in range(4)]
    assert Counter(answer.status_code for answer in over) == {200: 2, 429: 2}
    gate.failure = RuntimeError("the kernel tripped")
    assert site.post("/v1/completions", {"prompt": "x" * 20}, **as_("red")).status_code == 500
    assert site.http.get("/v1/nothing/here", **as_("red")).status_code == 404
    assert site.http.get("/v1/models/tiny", **as_("red")).status_code == 200
    assert site.http.request("PUT", "/v1/models", **as_("red")).status_code == 405
    assert site.post("/v1/completions", {"prompt": "x"}, **as_("nobody")).status_code == 401
    found = at_rest(site)
    assert found.sum("octavo:tenant_over_quota_total", tenant="few", quota="requests_per_minute") == 2
    assert found.sum("octavo:http_errors_total", code="rate_limit_exceeded", status="429") == 2
    assert found.sum("octavo:http_errors_total", code="generation_failed", status="500") == 1
    assert found.sum("octavo:http_errors_total", code="invalid_api_key", status="401") == 1
    assert found.sum("vllm:request_success_total", finished_reason="error") == 1
    assert found.sum("octavo:request_errors_total", code="step_failed") == 1
    assert found.sum("http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert found.sum("http_requests_total", handler="/v1/models/{model}", method="GET", status="2xx") == 1
    assert found.sum("http_requests_total", handler="/v1/models", method="PUT", status="4xx") == 1
    assert found.sum("http_requests_total", handler="/v1/completions", method="POST") == 6


def test_bytes_that_never_became_a_request_are_counted_by_their_code(site: Site) -> None:
    labels = {"code": "malformed_request", "status": "400"}
    before = Scrape(site.http.get("/metrics").text).sum_or_none("octavo:http_errors_total", **labels)
    with connected(site) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 400")
    assert Scrape(site.http.get("/metrics").text).sum("octavo:http_errors_total", **labels) == before + 1


def test_each_row_of_the_catalogue_is_told_and_nothing_else(busy: tuple[Site, Gate]) -> None:
    site, gate = busy
    gate.open()
    site.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, **as_("red"))
    text = site.http.get("/metrics", **as_(OPERATOR)).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    standard = {name for name in families if name.startswith(("process_", "python_"))}
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= standard
    assert {metric.name for metric in METRICS} == families.keys() - standard
    for metric in METRICS:
        family = families[metric.name]
        shared = {"model_name", "engine"} if metric.of_engine else set()
        assert (family.type, family.documentation) == (metric.kind.value, metric.text)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == shared | set(metric.by)
    shortest = {
        min(float(sample.labels["le"]) for sample in families[metric.name].samples if "le" in sample.labels)
        for metric in METRICS
        if metric.kind is Kind.HISTOGRAM and metric.unit == "seconds" and families[metric.name].samples
    }
    assert shortest == {0.001}


def test_counters_go_on_where_another_engine_takes_over() -> None:
    """Real engine processes, one of which is killed in the middle of a request."""
    meters = Meters()

    def told(row: Row) -> Scrape:
        sources = Sources(meters=meters, state=row.client.state)
        return Scrape(exposed(registry_of(lambda: sources)).decode())

    async def story(row: Row) -> None:
        listeners = Listeners()
        listeners.add(meters.handlers)
        row.client.listen(listeners.on_events)
        await row.client.wait_ready()
        first = told(row)
        first.check()
        assert first.sum("octavo:engine_restarts_total") == 0 and first.sum("octavo:num_blocks") > 0
        await collect(row.client.submit(request("a")))
        before = told(row)
        before.check_idle()
        stream = row.client.submit(request("b", max_tokens=100_000))
        await anext(stream)
        row.kill()
        await row.absent()
        lost = told(row)
        lost.check(before)
        lost.check_idle()
        assert lost.sum("vllm:request_success_total", finished_reason="error") == 1
        while row.client.state is not EngineState.READY:
            await row.client.wait_ready()
        await collect(row.client.submit(request("c")))
        after = told(row)
        after.check(lost)
        after.check_idle()
        assert after.sum("octavo:engine_restarts_total") == after.sum("octavo:engine_losses_total") == 1
        assert after.sum("vllm:prompt_tokens_total") > lost.sum("vllm:prompt_tokens_total")

    with_row(story)
