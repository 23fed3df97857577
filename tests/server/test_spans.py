"""Traces: spans that cover each request's life without gaps, made from events alone; and whose trace they belong to."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import (
    Admitted,
    Computed,
    EngineLost,
    Event,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
)
from octavo.core.misses import Miss, MissReason
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import FinishReason
from octavo.core.waits import Waited
from octavo.server.recent import Origin, Recent
from octavo.server.spans import MOST_SPANS, Span, Traces
from octavo.server.tracecontext import TraceContext, new_context, read_context
from octavo.server.window import Window

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = Origin("r", "/v1/completions", "red", "mine")
TOKEN = (ScoredToken(5),)


class Book:
    """Traces, and the spans that they gave."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.spans: list[Span] = []
        self.recent = Recent(Window(0.0))
        self.traces = Traces(self.spans.extend, self.recent, "tiny", ratio)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.recent.on_event(event)
            handler = self.traces.handlers.get(type(event))
            if handler is not None:
                handler((event,))

    def came(self, headers: dict[bytes, bytes] | None = None, *names: str, n: int = 1) -> None:
        requests = [
            Request(request_id=name, prompt=(1, 2, 3), params=SamplingParams(n=n, max_tokens=9, temperature=0.5))
            for name in names or ("r-0",)
        ]
        self.traces.came(ORIGIN, requests, headers or {})

    def shown(self) -> list[tuple[str, float, float]]:
        return [(span.name, span.start_s, span.end_s) for span in self.spans]


def test_a_request_is_its_queue_its_chunks_its_decode_and_its_preemptions() -> None:
    book = Book()
    book.came({b"traceparent": PARENT, b"tracestate": b"vendor=1"})
    miss = Miss(MissReason.NEVER_SEEN, 0)
    book.tell(
        Queued("r-0", 1.0, 3, 1, "red", 9, 0.5),
        Admitted("r-0", 0, 2.0, 1, miss=miss, waited=(Waited("seqs", 1.25, 1, 0),)),
        Computed("r-0", 0, 3.0, 1, 1),
        Computed("r-0", 0, 4.0, 1, 0),
        Generated("r-0", 0, 4.0, TOKEN),
        Generated("r-0", 0, 5.0, TOKEN * 2),
        Preempted("r-0", 0, 6.0, 4, "others need blocks"),
        Admitted("r-0", 0, 7.0, 0, resumed=True),
        Computed("r-0", 0, 8.0, 5, 1),
        Generated("r-0", 0, 9.0, TOKEN),
        Finished("r-0", 0, 10.0, FinishReason.LENGTH),
    )
    assert book.shown() == [
        ("llm_request", 0.5, 10.0),
        ("queue", 0.5, 2.0),
        ("prefill", 2.0, 3.0),
        ("prefill", 3.0, 4.0),
        ("decode", 4.0, 6.0),
        ("preempted", 6.0, 7.0),
        ("prefill", 7.0, 8.0),
        ("prefill", 8.0, 9.0),
        ("decode", 9.0, 10.0),
    ]
    whole, queue, first, _, decode, preempted, *_ = book.spans
    assert whole.context == read_context({b"traceparent": PARENT, b"tracestate": b"vendor=1"})
    assert whole.of_server and whole.error is None
    assert all(span.context.span_id == whole.span_id and not span.of_server for span in book.spans[1:])
    assert {span.context.trace_id for span in book.spans} == {0x0AF7651916CD43DD8448EB211C80319C}
    assert {span.context.state for span in book.spans} == {"vendor=1"}
    assert len({span.span_id for span in book.spans}) == len(book.spans)
    about = whole.attributes
    assert (about["gen_ai.request.id"], about["octavo.tenant"]) == ("mine", "red")
    assert (about["gen_ai.operation.name"], about["gen_ai.response.model"]) == ("text_completion", "tiny")
    assert (about["gen_ai.request.max_tokens"], about["gen_ai.request.temperature"]) == (9, 0.5)
    assert (about["gen_ai.usage.prompt_tokens"], about["gen_ai.usage.completion_tokens"]) == (3, 4)
    assert (about["gen_ai.usage.cached_tokens"], about["octavo.cache_miss_reason"]) == (1, "never_seen")
    assert (about["gen_ai.response.finish_reasons"], about["octavo.preemptions"]) == (("length",), 1)
    times = {name.rpartition(".")[2]: about[name] for name in about if name.startswith("gen_ai.latency")}
    assert times == {
        "e2e": 9.5,
        "time_in_queue": 1.5,
        "time_to_first_token": 3.5,
        "time_in_model_prefill": 2.0,
        "time_in_model_decode": 6.0,
        "time_in_model_inference": 8.0,
    }
    assert queue.attributes == {"octavo.choice": 0, "octavo.waited.seqs": 1.25}
    assert first.attributes == {"octavo.choice": 0, "octavo.tokens": 1, "octavo.tokens_left": 1}
    assert decode.attributes["octavo.tokens"] == 3 and preempted.attributes["octavo.tokens_lost"] == 4
    assert book.traces.num_live == 0


def test_each_choice_decodes_for_itself_and_a_stop_string_is_a_stop() -> None:
    book = Book()
    book.came(n=2)
    book.tell(Queued("r-0", 0.0, 3, 2), Admitted("r-0", 0, 1.0, 2), Generated("r-0", 0, 2.0, TOKEN))
    book.tell(Generated("r-0", 1, 2.0, TOKEN), Generated("r-0", 1, 3.0, TOKEN))
    book.recent.stopped("r-0", 1)
    book.tell(Finished("r-0", 1, 3.5, FinishReason.ABORT), Finished("r-0", 0, 4.0, FinishReason.STOP))
    assert book.shown() == [
        ("llm_request", 0.0, 4.0),
        ("queue", 0.0, 1.0),
        ("prefill", 1.0, 2.0),
        ("decode", 2.0, 3.5),
        ("decode", 2.0, 4.0),
    ]
    assert book.spans[0].attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert [span.attributes["octavo.choice"] for span in book.spans[1:]] == [0, 0, 1, 0]


def test_what_ends_badly_says_how() -> None:
    book = Book()
    book.came(None, "refused", "formless", "failed", "cancelled", "lost", "unheard")
    book.tell(
        Refused("refused", 1.0, "pool_too_small", "no room"),
        Queued("formless", 1.0, 3),
        Finished(
            "formless", 0, 1.0, FinishReason.ERROR, message="no such 'words of a client'", code="structured_outputs"
        ),
        Queued("failed", 1.0, 3),
        Admitted("failed", 0, 2.0, 0),
        Finished("failed", 0, 3.0, FinishReason.ERROR, message="the step failed"),
        Queued("cancelled", 1.0, 3),
        Finished("cancelled", 0, 4.0, FinishReason.ABORT),
        Queued("lost", 1.0, 3),
        Admitted("lost", 0, 2.0, 0),
        EngineLost(5.0, "killed by SIGKILL\nlast words"),
    )
    whole = [span for span in book.spans if span.name == "llm_request"]
    words = ["no room", "structured_outputs", "the step failed", None, "killed by SIGKILL"]
    assert [span.error for span in whole] == words
    types = ["pool_too_small", "structured_outputs", "error", None, "engine_lost"]
    assert [span.attributes.get("error.type") for span in whole] == types
    assert [name for name, *_ in book.shown()] == [
        *("llm_request",),
        *("llm_request", "queue"),
        *("llm_request", "queue", "prefill"),
        *("llm_request", "queue"),
        *("llm_request", "queue", "prefill"),
    ]
    assert book.traces.num_live == 0


def test_prompts_of_one_request_are_one_trace_and_who_is_not_traced_leaves_nothing() -> None:
    book = Book()
    book.came(None, "a", "b")
    for name in "ab":
        book.tell(Queued(name, 0.0, 1), Finished(name, 0, 1.0, FinishReason.ABORT))
    assert len({span.context.trace_id for span in book.spans}) == 1
    assert len({span.span_id for span in book.spans}) == 4
    unsampled = Book(ratio=1.0)
    unsampled.came({b"traceparent": PARENT[:-2] + b"00"})
    never = Book(ratio=0.0)
    never.came()
    for quiet in (unsampled, never):
        quiet.tell(Queued("r-0", 0.0, 1), Generated("r-0", 0, 1.0, TOKEN), Finished("r-0", 0, 2.0, FinishReason.STOP))
        assert not quiet.spans and quiet.traces.num_live == 0


def test_a_request_of_many_parts_tells_some_and_how_many_it_leaves_out() -> None:
    book = Book()
    book.came()
    book.tell(Queued("r-0", 0.0, 3), Admitted("r-0", 0, 1.0, 0))
    for number in range(MOST_SPANS + 9):
        book.tell(Computed("r-0", 0, 2.0 + number, 1, 1))
    book.tell(Finished("r-0", 0, 9999.0, FinishReason.ABORT))
    assert len(book.spans) == MOST_SPANS + 1
    assert book.spans[0].attributes["octavo.spans_omitted"] == 11


moves = st.lists(st.sampled_from(["compute", "token", "preempt", "resume"]), max_size=20)


@given(moves)
def test_the_parts_of_a_choice_follow_each_other_without_a_gap(moves: Sequence[str]) -> None:
    book, time_s, preempted = Book(), 2.0, False
    book.came()
    book.tell(Queued("r-0", 0.0, 3), Admitted("r-0", 0, 1.0, 0))
    for move in moves:
        if preempted != (move == "resume"):
            continue
        event: Event
        if move == "compute":
            event = Computed("r-0", 0, time_s, 1, 1)
        elif move == "token":
            event = Generated("r-0", 0, time_s, TOKEN)
        elif move == "preempt":
            event, preempted = Preempted("r-0", 0, time_s, 1, "why"), True
        else:
            event, preempted = Admitted("r-0", 0, time_s, 0, resumed=True), False
        book.tell(event)
        time_s += 1.0
    book.tell(Finished("r-0", 0, time_s, FinishReason.ABORT))
    whole, *parts = book.spans
    assert (whole.start_s, whole.end_s) == (parts[0].start_s, parts[-1].end_s) == (0.0, time_s)
    assert all(one.end_s == other.start_s for one, other in pairwise(parts))
    assert whole.attributes["gen_ai.usage.completion_tokens"] == sum(
        span.attributes["octavo.tokens"] for span in parts if span.name == "decode"
    )


# -- context ---------------------------------------------------------------------------------------------------------


def test_a_context_is_read_as_the_standard_says() -> None:
    context = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert read_context({b"traceparent": PARENT}) == context
    assert read_context({b"traceparent": b" " + PARENT + b" "}) == context
    assert read_context({b"traceparent": b"cc" + PARENT[2:] + b"-what-comes-later"}) == context, "a later version"
    unsampled = read_context({b"traceparent": PARENT[:-2] + b"02"})
    assert unsampled is not None and not unsampled.sampled
    long = read_context({b"traceparent": PARENT, b"tracestate": b"x" * 513})
    assert long == context, "a state that is too long is not handed on"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"00",
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32),
        PARENT.replace(b"b7ad6b7169203331", b"0" * 16),
        PARENT.replace(b"-01", b"-1"),
        PARENT + b"\n",
    ],
)
def test_what_is_no_context_is_none(header: bytes) -> None:
    assert read_context({b"traceparent": header}) is None or header.strip() == PARENT
    assert read_context({}) is None


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_any_bytes_may_come_as_a_context(parent: bytes, state: bytes) -> None:
    context = read_context({b"traceparent": parent, b"tracestate": state})
    assert context is None or (0 < context.trace_id < 2**128 and 0 < context.span_id < 2**64)


@given(st.integers(1, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_has_all_of_a_smaller_one(trace_id: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    chosen = [new_context(ratio, lambda bits: trace_id).sampled for ratio in (0.0, small, large, 1.0)]
    assert chosen == sorted(chosen) and (chosen[0], chosen[-1]) == (False, True)
