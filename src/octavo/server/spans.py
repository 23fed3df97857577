"""Spans: the events of a request become the parts of a trace: its queue, each chunk of its prompt, decode, preemptions.

    llm_request  |---------------------------------------------------|
    queue        |-----|
    prefill            |---|---|                    |--|
    decode                     |-------|               |-------------|
    preempted                          |------------|

Fed by events and by who came over HTTP; knows nothing of how spans are sent. A request that is not traced costs a look
for each of its events.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.core.events import (
    Admitted,
    Computed,
    EngineLost,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
)
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import RequestId
from octavo.server.listeners import one_by_one
from octavo.server.recent import Origin, Recent
from octavo.server.tracecontext import TraceContext, new_context, read_context

MOST_EXPECTED = 8192
"""Requests that came and were not heard of since."""
MOST_SPANS = 1024
"""Of one request; beyond that their number is told."""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Paths -> `gen_ai.operation.name`."""

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a trace. Times are the engine's."""

    name: str
    context: TraceContext
    """Its trace, and the span above it."""
    span_id: int
    start_s: float
    end_s: float
    attributes: Attributes
    error: str | None = None
    of_server: bool = False
    """It is what a client waited for."""


@dataclass(slots=True)
class _Leg:
    """Where one choice is, and since when."""

    phase: str
    since_s: float
    tokens: int = 0
    about: Attributes = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class _Trip:
    """One request that is traced, from its coming to its end."""

    context: TraceContext
    span_id: int
    attributes: Attributes
    start_s: float = 0.0
    admitted_s: float | None = None
    first_s: float | None = None
    choices_left: int = 1
    legs: dict[int, _Leg] = field(default_factory=dict[int, _Leg])
    spans: list[Span] = field(default_factory=list[Span])
    num_omitted: int = 0
    num_generated: int = 0
    num_preempted: int = 0
    ends: list[str] = field(default_factory=list[str])
    error: str | None = None


class Traces:
    """`emit` is given all spans of a request, once it is over. `handlers` are to be told of events."""

    def __init__(self, emit: Callable[[Sequence[Span]], None], recent: Recent, model: str, ratio: float = 1.0) -> None:
        """`ratio`: the share of requests that is traced, of those whose clients do not say."""
        self._emit = emit
        self._recent = recent
        self._model = model
        self._ratio = ratio
        self._expected: OrderedDict[RequestId, _Trip] = OrderedDict()
        self._trips: dict[RequestId, _Trip] = {}
        self.handlers = one_by_one(
            {
                Queued: self._queued,
                Refused: self._refused,
                Admitted: self._admitted,
                Computed: self._computed,
                Generated: self._generated,
                Preempted: self._preempted,
                Finished: self._finished,
                EngineLost: self._lost,
            }
        )

    def came(self, origin: Origin, requests: Sequence[Request], headers: Mapping[bytes, bytes]) -> TraceContext:
        """These are about to be submitted, for a client that sent these headers. Returns the trace that they are in."""
        context = read_context(headers) or new_context(self._ratio, secrets.randbits)
        for request in requests if context.sampled else ():
            self._expected[request.request_id] = _Trip(context, _new_id(), self._asked(origin, request))
            if len(self._expected) > MOST_EXPECTED:
                self._expected.popitem(last=False)
        return context

    @property
    def num_live(self) -> int:
        """Requests that are followed."""
        return len(self._trips)

    def _asked(self, origin: Origin, request: Request) -> Attributes:
        asked: Attributes = {
            "gen_ai.provider.name": "octavo",
            "gen_ai.operation.name": _OPERATIONS.get(origin.path, origin.path),
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.id": origin.x_request_id,
            "octavo.engine_request_id": request.request_id,
        }
        asked |= _drawn(request.params) if request.pooling is None else {"octavo.pooling": request.pooling.value}
        return asked | ({"octavo.tenant": origin.tenant} if origin.tenant else {})

    # ---- events ----

    def _queued(self, event: Queued) -> None:
        trip = self._expected.pop(event.request_id, None)
        if trip is None:
            return
        self._trips[event.request_id] = trip
        trip.start_s = event.came_s
        trip.choices_left = event.num_choices
        trip.legs[0] = _Leg("queue", trip.start_s)
        trip.attributes |= {"gen_ai.usage.num_sequences": event.num_choices}
        trip.attributes |= dict.fromkeys(("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"), event.prompt_len)

    def _refused(self, event: Refused) -> None:
        trip = self._expected.pop(event.request_id, None)
        if trip is not None:
            trip.start_s = event.time_s
            trip.attributes["error.type"] = event.code
            trip.error = event.message
            self._end(trip, event.time_s)

    def _admitted(self, event: Admitted) -> None:
        trip = self._trips.get(event.request_id)
        if trip is None:
            return
        leg = trip.legs.setdefault(event.choice, _Leg("queue", trip.start_s))
        leg.about |= {f"octavo.waited.{wait.reason}": wait.seconds for wait in event.waited}
        self._part(trip, event.choice, event.time_s)
        if trip.admitted_s is None:
            trip.admitted_s = event.time_s
            trip.attributes["gen_ai.usage.cached_tokens"] = event.cached_tokens
            if event.miss is not None:
                trip.attributes["octavo.cache_miss_reason"] = event.miss.reason.value
        self._begin(trip, event.choice, "prefill", event.time_s)

    def _computed(self, event: Computed) -> None:
        trip = self._trips.get(event.request_id)
        if trip is None or event.choice not in trip.legs:
            return
        leg = trip.legs[event.choice]
        if leg.phase == "prefill":
            leg.about |= {"octavo.tokens": event.num_tokens, "octavo.tokens_left": event.num_left}
        self._part(trip, event.choice, event.time_s)
        self._begin(trip, event.choice, "prefill", event.time_s)

    def _generated(self, event: Generated) -> None:
        trip = self._trips.get(event.request_id)
        if trip is None:
            return
        leg = trip.legs.get(event.choice)
        if leg is None or leg.phase != "decode":
            if trip.first_s is None:
                trip.first_s = event.time_s
            if leg is not None and event.time_s > leg.since_s:
                leg.about["octavo.tokens"] = 1  # all but the last token was cached
                self._part(trip, event.choice, event.time_s)
            leg = self._begin(trip, event.choice, "decode", event.time_s)
        leg.tokens += len(event.tokens)
        trip.num_generated += len(event.tokens)

    def _preempted(self, event: Preempted) -> None:
        trip = self._trips.get(event.request_id)
        if trip is None:
            return
        if event.choice in trip.legs:
            self._part(trip, event.choice, event.time_s)
        leg = self._begin(trip, event.choice, "preempted", event.time_s)
        leg.about = {
            "octavo.cause": event.cause,
            "octavo.reason": event.reason,
            "octavo.tokens_lost": event.tokens_lost,
            "octavo.tokens_kept": event.tokens_swapped,
        }
        trip.num_preempted += 1

    def _finished(self, event: Finished) -> None:
        trip = self._trips.get(event.request_id)
        if trip is None:
            return
        reason = "stop" if self._recent.was_stopped(event.request_id, event.choice) else event.reason.value
        if event.choice in trip.legs:
            self._part(trip, event.choice, event.time_s)
            del trip.legs[event.choice]
        trip.ends.append(reason)
        if event.message is not None:
            trip.error = event.code or event.message  # where there is a code, the words may be the client's own
            trip.attributes["error.type"] = event.code or reason
        trip.choices_left -= 1
        if not trip.choices_left:
            del self._trips[event.request_id]
            self._end(trip, event.time_s)

    def _lost(self, event: EngineLost) -> None:
        for trip in self._trips.values():
            for choice in trip.legs:
                self._part(trip, choice, event.time_s)
            trip.error = event.message.split("\n", 1)[0]
            trip.attributes["error.type"] = "engine_lost"
            self._end(trip, event.time_s)
        self._trips.clear()

    # ---- spans ----

    def _begin(self, trip: _Trip, choice: int, phase: str, time_s: float) -> _Leg:
        leg = trip.legs[choice] = _Leg(phase, time_s)
        return leg

    def _part(self, trip: _Trip, choice: int, time_s: float) -> None:
        """What this choice was at is over. That it begins to compute something and never does is no part."""
        leg = trip.legs[choice]
        if leg.phase == "prefill" and time_s <= leg.since_s:
            return
        if len(trip.spans) >= MOST_SPANS:
            trip.num_omitted += 1
            return
        own = {"octavo.choice": choice} | ({"octavo.tokens": leg.tokens} if leg.phase == "decode" else {})
        above = TraceContext(trip.context.trace_id, trip.span_id, True, trip.context.state)
        trip.spans.append(Span(leg.phase, above, _new_id(), leg.since_s, time_s, own | leg.about))

    def _end(self, trip: _Trip, time_s: float) -> None:
        found = trip.attributes | _latencies(trip, time_s)
        found |= dict.fromkeys(("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"), trip.num_generated)
        found |= {"gen_ai.response.finish_reasons": tuple(trip.ends), "octavo.preemptions": trip.num_preempted}
        if trip.num_omitted:
            found["octavo.spans_omitted"] = trip.num_omitted
        whole = Span("llm_request", trip.context, trip.span_id, trip.start_s, time_s, found, trip.error, True)
        self._emit([whole, *trip.spans])


def _drawn(params: SamplingParams) -> Attributes:
    """How tokens are to be drawn, and how many."""
    asked: Attributes = {
        "gen_ai.request.n": params.num_choices,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
    }
    if params.max_tokens is not None:
        asked["gen_ai.request.max_tokens"] = params.max_tokens
    return asked


def _latencies(trip: _Trip, end_s: float) -> Attributes:
    """Times in seconds, under vLLM's names."""
    found: Attributes = {"gen_ai.latency.e2e": end_s - trip.start_s}
    if trip.admitted_s is not None:
        found["gen_ai.latency.time_in_queue"] = trip.admitted_s - trip.start_s
        found["gen_ai.latency.time_in_model_inference"] = end_s - trip.admitted_s
    if trip.first_s is not None:
        found["gen_ai.latency.time_to_first_token"] = trip.first_s - trip.start_s
        found["gen_ai.latency.time_in_model_decode"] = end_s - trip.first_s
        if trip.admitted_s is not None:
            found["gen_ai.latency.time_in_model_prefill"] = trip.first_s - trip.admitted_s
    return found


def _new_id() -> int:
    return secrets.randbits(64) or 1
