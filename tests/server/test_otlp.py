"""Traces of a real server at a real collector, over HTTP and gRPC; and one that is slow, refuses, or is not there."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from octavo.config.schema import Config, ModelConfig, ObservabilityConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.otlp import Sender, client_of, resource, tracing
from octavo.server.spans import Span
from octavo.server.tracecontext import TraceContext
from tests.server.collector import Collector, attributes, over_grpc, over_http
from tests.server.site import Site, running
from tests.server.test_journal import logged

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COLLECTORS: dict[str, Callable[[], AbstractContextManager[Collector]]] = {"grpc": over_grpc, "http/protobuf": over_http}


@pytest.fixture(params=COLLECTORS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def collector(protocol: str) -> Iterator[Collector]:
    with COLLECTORS[protocol]() as collector:
        yield collector


def config(endpoint: str, protocol: str, ratio: float = 1.0) -> Config:
    told = ObservabilityConfig(
        otlp_traces_endpoint=endpoint, otlp_traces_protocol=protocol, otlp_traces_sample_ratio=ratio
    )
    return Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0), observability=told)


def traced(site: Site) -> AbstractContextManager[Sender]:
    """`tracing` of a site's service, for the time of a block; all is sent at its end."""
    return site.within(tracing(site.app.service))


def test_a_request_is_a_trace_that_continues_its_clients(
    checkpoint: Checkpoint, collector: Collector, protocol: str
) -> None:
    before_ns = time.time_ns()
    with running(checkpoint, config(collector.endpoint, protocol)) as site:
        with traced(site) as sender:
            headers = {"x-request-id": "mine", "traceparent": PARENT, "tracestate": "vendor=1"}
            body = {"prompt": "tell me more", "max_tokens": 4, "temperature": 0.5, "ignore_eos": True}
            with logged() as lines:
                usage = site.post("/v1/completions", body, headers=headers).json()["usage"]
                site.until(lambda: site.app.service.duty.in_flight == 0)
                site.http.get("/version")
            site.chat("hello", max_tokens=2)
        told = {line["path"]: line.get("trace_id") for line in lines if line["logger"] == "octavo.server.access"}
        assert told == {"/v1/completions": PARENT.split("-")[1], "/version": None}
        assert sender.counts == {"sent": len(collector.spans), "dropped": 0}
        assert site.metric("octavo:trace_spans_total", outcome="sent") == len(collector.spans)
    trace = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
    mine = [span for span in collector.spans if span.trace_id == trace]
    assert [span.name for span in mine] == ["llm_request", "queue", "prefill", "decode"]
    whole, *parts = mine
    assert whole.parent_span_id == bytes.fromhex("b7ad6b7169203331") and whole.kind == whole.SPAN_KIND_SERVER
    assert {span.parent_span_id for span in parts} == {whole.span_id}
    assert {span.trace_state for span in mine} == {"vendor=1"}
    assert before_ns < whole.start_time_unix_nano < whole.end_time_unix_nano < time.time_ns()
    about = attributes(whole)
    assert (about["gen_ai.request.id"], about["gen_ai.response.model"]) == ("mine", "tiny")
    assert about["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert about["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 4
    assert about["gen_ai.response.finish_reasons"] == ["length"]
    others = [span for span in collector.spans if span.trace_id != trace]
    assert [attributes(span).get("gen_ai.operation.name") for span in others] == ["chat", None, None, None]
    assert collector.resource["service.name"] == "octavo"


def test_who_is_not_sampled_is_not_traced(checkpoint: Checkpoint) -> None:
    with over_http() as collector:
        with running(checkpoint, config(collector.endpoint, "http/protobuf", ratio=0.0)) as site, traced(site):
            site.complete("x", max_tokens=1)
            site.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"traceparent": PARENT})
            unsampled = {"traceparent": f"{PARENT[:-2]}00"}
            site.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=unsampled)
        assert [span.name for span in collector.spans].count("llm_request") == 1


def span(number: int) -> Span:
    return Span("queue", TraceContext(number + 1), number + 1, 1.0, 2.0, {"octavo.choice": 0})


class Slow:
    """A client whose collector answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.answer.wait()
        self.taken += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.answer.set()


def test_nobody_waits_for_a_slow_collector_and_what_does_not_fit_is_counted() -> None:
    client = Slow()
    sender = Sender(client, Resource({}), 0.0, most=10)
    sender.put([span(0)])
    client.asked.wait()
    for first in range(0, 30, 3):
        sender.put([span(first + number) for number in range(3)])
    assert sender.counts == {"sent": 0, "dropped": 21}
    client.answer.set()
    sender.close(60)
    assert sender.counts == {"sent": 10, "dropped": 21} and client.taken == 10
    sender.put([span(0)])
    sender.close(60)
    assert sender.counts == {"sent": 10, "dropped": 22}


def test_at_the_end_nobody_waits_for_a_collector_that_hangs() -> None:
    client = Slow()
    sender = Sender(client, Resource({}), 0.0)
    sender.put([span(0)])
    client.asked.wait()
    sender.put([span(1), span(2)])
    sender.close(0.01)
    assert sum(sender.counts.values()) == 3


def test_a_collector_that_refuses_is_told_of_once_and_so_is_its_return(
    collector: Collector, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    sender = Sender(client_of(collector.endpoint, protocol), resource(), 0.0)
    told = threading.Semaphore(0)
    client = sender._client
    export = client.export

    def exported(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        outcome = export(spans)
        told.release()
        return outcome

    client.export = exported  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        for collector.refuses in (True, True, False, False):
            sender.put([span(0)])
            assert told.acquire(timeout=60)
        sender.close(60)
    mine = [record.message for record in caplog.records if record.name == "octavo.server.otlp"]
    assert len(mine) == 2 and "cannot be sent" in mine[0] and "2 spans were dropped" in mine[1]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert sender.counts == {"sent": 2, "dropped": 2} and len(collector.spans) == 2


def test_the_environment_may_say_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource().attributes["service.name"] == "octavo"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=blue,deployment.environment=test")
    assert resource().attributes["service.name"] == "blue"
    assert resource().attributes["deployment.environment"] == "test"
    assert resource().attributes["service.version"]
