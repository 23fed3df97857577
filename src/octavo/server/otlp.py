"""Traces on their way to a collector, over OTLP: a bounded queue, and a thread that sends. Needs the extra `otel`.

Nobody waits for the collector: what does not fit into the queue, or cannot be sent, is dropped and counted.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from octavo import __version__
from octavo.server.service import Service
from octavo.server.spans import Span, Traces

log = logging.getLogger(__name__)

MOST_WAITING = 8192
"""Spans that wait to be sent."""
AT_ONCE = 512
LINGER_S = 0.5
"""So long the first span waits for others that are sent with it."""
LAST_WORDS_S = 3.0
"""How long a server that ends tries to send what is left."""
_SCOPE = InstrumentationScope("octavo", __version__)
_LOUD = logging.getLogger("opentelemetry.exporter.otlp")


class Client(Protocol):
    """What sends spans, and may take its time."""

    def export(self, spans: Sequence[ReadableSpan], /) -> SpanExportResult: ...

    def shutdown(self) -> None: ...


@contextlib.asynccontextmanager
async def tracing(service: Service) -> AsyncIterator["Sender"]:
    """Traces of the service's requests go to the configured collector, from now until the end of the block."""
    settings = service.config.observability
    assert settings.otlp_traces_endpoint is not None
    client = client_of(settings.otlp_traces_endpoint, settings.otlp_traces_protocol)
    sender = Sender(client, resource(), service.epoch_s)
    traces = Traces(sender.put, service.recent, service.names[0], settings.otlp_traces_sample_ratio)
    service.trace(traces, sender.counts)
    log.info("traces go to %s over %s", settings.otlp_traces_endpoint, settings.otlp_traces_protocol)
    try:
        yield sender
    finally:
        await asyncio.to_thread(sender.close, LAST_WORDS_S)


def client_of(endpoint: str, protocol: str) -> Client:
    """Headers, certificates and timeouts come from the environment, as OpenTelemetry's documents say."""
    _LOUD.setLevel(logging.CRITICAL)  # what cannot be sent is told here, once
    if protocol == "grpc":
        return OverGrpc(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    return OverHttp(endpoint=endpoint)


def resource() -> Resource:
    """Who we are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES may say otherwise."""
    own = {"service.name": "octavo", "service.version": __version__, "process.pid": os.getpid()}
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


class Sender:
    """Takes spans on any thread, without waiting, and sends them on its own."""

    def __init__(self, client: Client, resource: Resource, epoch_s: float, most: int = MOST_WAITING) -> None:
        """`epoch_s`: the time at which the engine's clock was 0."""
        self._client = client
        self._resource = resource
        self._epoch_s = epoch_s
        self._most = most
        self._waiting: deque[Span] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._failing = False
        self.counts = {"sent": 0, "dropped": 0}
        """What became of spans."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """All of them, or none where they do not fit."""
        with self._news:
            if self._closing or len(self._waiting) + len(spans) > self._most:
                self.counts["dropped"] += len(spans)
                return
            self._waiting += spans
            self._news.notify()

    def close(self, timeout_s: float) -> None:
        """Sends what is left, as far as there is time. Calling it again does nothing."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(timeout_s)
        self._client.shutdown()
        self._thread.join(timeout_s)
        with self._news:
            self.counts["dropped"] += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        while batch := self._next():
            self._send(batch)

    def _next(self) -> list[Span]:
        """Waits for some; empty at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closing)
            self._news.wait_for(lambda: len(self._waiting) >= AT_ONCE or self._closing, LINGER_S)
            return [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]

    def _send(self, batch: list[Span]) -> None:
        try:
            sent = self._client.export([self._readable(span) for span in batch]) is SpanExportResult.SUCCESS
            why = "the collector did not take them"
        except Exception as error:  # noqa: BLE001  whatever it is, the server has other things to do
            sent, why = False, f"{type(error).__name__}: {error}"
        self.counts["sent" if sent else "dropped"] += len(batch)
        if not sent and not self._failing:
            log.warning("traces cannot be sent, and are dropped until they can: %s", why)
        elif sent and self._failing:
            log.info("traces can be sent again; %d spans were dropped so far", self.counts["dropped"])
        self._failing = not sent

    def _readable(self, span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.context.state]) if span.context.state else None
        flags = TraceFlags(TraceFlags.SAMPLED)
        trace_id, above = span.context.trace_id, span.context.span_id
        parent = SpanContext(trace_id, above, is_remote=span.of_server, trace_flags=flags, trace_state=state)
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace_id, span.span_id, is_remote=False, trace_flags=flags, trace_state=state),
            parent=parent if above else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if span.of_server else SpanKind.INTERNAL,
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=self._ns(span.start_s),
            end_time=self._ns(span.end_s),
            instrumentation_scope=_SCOPE,
        )

    def _ns(self, time_s: float) -> int:
        return int((self._epoch_s + time_s) * 1e9)
