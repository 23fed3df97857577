"""Wire: every message arrives as it was sent, however it is cut, and nothing else is taken for one."""

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import EngineLost, EngineReady, Event
from octavo.core.misses import Miss, MissReason
from octavo.core.pins import Pin, PinOutcome, PinWish
from octavo.core.ports import Capacity
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.snapshot import snapshot
from octavo.engine import wire
from octavo.engine.answers import ANSWERS
from octavo.engine.asks import (
    ASKS,
    AddPin,
    CacheReset,
    DumpWritten,
    Explained,
    ExplainPrefix,
    ListPins,
    PinList,
    PinRemoved,
    RemovePin,
    ResetPrefixCache,
    TakeSnapshot,
    WriteDump,
)
from octavo.engine.client import EngineFacts
from tests.core.test_snapshot import busy
from tests.engine import events as made

facts = EngineFacts(
    model="m",
    fingerprint="f",
    capacity=Capacity(num_blocks=8, block_size=16, vocab_size=100, max_model_len=128, hidden_size=8),
    isa="scalar",
    num_threads=2,
    weight_format="Q4_1",
    kv_cache_dtype="bfloat16",
    report=("one line", "another"),
    warnings=("a third",),
)
commands = st.one_of(
    st.builds(wire.Setup, st.binary(max_size=20)),
    st.builds(wire.Submit, st.integers(1, 2**40), made.requests),
    st.builds(wire.Cancel, st.integers(1, 2**40), st.none() | st.integers(0, 2**10)),
)
news = st.one_of(
    st.builds(wire.Progress, made.names),
    st.just(wire.Ready(facts)),
    st.builds(wire.Failed, made.names, st.booleans()),
    st.just(wire.Beat()),
)


def bodies(data: bytes) -> list[bytes]:
    return list(wire.Deframer().feed(data))


@given(commands)
def test_commands_arrive_as_sent(command):
    (body,) = bodies(wire.frame(command))
    assert wire.read_command(body) == command


@given(news)
def test_news_arrive_as_sent(message):
    (body,) = bodies(wire.frame(message))
    assert wire.read_news(body) == message


PIN = Pin("p", "t", 32, 2, 60.5)
asks_and_replies = [
    (ResetPrefixCache(), CacheReset(3, 0)),
    (AddPin(PinWish("p", "t", b"ns", (1, 2), 60.0, 5)), PinOutcome(PIN)),
    (AddPin(PinWish("p", "t", b"ns", (1, 2), 60.0, 5)), PinOutcome(num_missing=2)),
    (RemovePin("p", None), PinRemoved(True)),
    (ListPins("t"), PinList((PIN, PIN), 3)),
    (ExplainPrefix((1, 2), b"ns", "t"), Explained(1, Miss(MissReason.EVICTED, 1, 2.5, (1,), (2, 3)))),
    (ExplainPrefix((1, 2), b"ns", "t"), Explained(1, None)),
    (WriteDump(), DumpWritten("a/b.dump.gz")),
    (TakeSnapshot(9, 99), snapshot(busy().scheduler, 9, 99, 7.5)),
]


@pytest.mark.parametrize(("ask", "reply"), asks_and_replies, ids=lambda value: type(value).__name__)
def test_asks_and_replies_arrive_as_they_were(ask, reply):
    (body,) = bodies(wire.frame(wire.asked(7, ask)))
    message = wire.read_command(body)
    assert isinstance(message, wire.Asked) and message.number == 7 and wire.read_ask(message) == ask
    (body,) = bodies(wire.frame(wire.replied(7, reply)))
    answer = wire.read_news(body)
    assert isinstance(answer, wire.Replied) and wire.read_reply(answer, type(ask)) == reply and not answer.error


def test_every_ask_is_tested_and_answered():
    assert {type(ask) for ask, _ in asks_and_replies} == set(ASKS.values()) == {*ANSWERS, WriteDump}
    assert all(isinstance(reply, type(ask).reply) for ask, reply in asks_and_replies)


def test_every_event_of_an_engine_crosses():
    """All but those that say that there is one, and that there is none any more: its client tells them."""
    assert set(wire._KINDS) == set(get_args(Event)) - {EngineReady, EngineLost}


def test_a_question_that_nobody_can_answer_is_an_error():
    with pytest.raises(wire.WireError, match="'Nonsense'"):
        wire.read_ask(wire.Asked(1, "Nonsense", wire.asked(1, ResetPrefixCache()).body))


@given(st.lists(news, max_size=4), st.lists(st.integers(0, 400), max_size=6))
def test_messages_survive_any_cut(messages, cuts):
    data = b"".join(map(wire.frame, messages))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    deframer = wire.Deframer()
    got = [body for start, end in pairwise(edges) for body in deframer.feed(data[start:end])]
    assert [wire.read_news(body) for body in got] == messages


@given(st.binary(max_size=60))
def test_noise_is_an_error_or_nothing(data):
    try:
        for body in wire.Deframer(limit=1 << 16).feed(data):
            wire.read_command(body)
    except wire.WireError:
        return


def test_an_impossible_length_is_refused_before_it_is_awaited():
    with pytest.raises(wire.WireError, match="limit is 100"):
        bodies_of_limit = wire.Deframer(limit=100).feed((101).to_bytes(4, "little"))
        list(bodies_of_limit)


def opened(*requests: Request) -> tuple[wire.EventWriter, dict[int, str]]:
    writer = wire.EventWriter()
    for ticket, request in enumerate(requests, 1):
        writer.open(ticket, request)
    return writer, {ticket: request.request_id for ticket, request in enumerate(requests, 1)}


def carried(writer: wire.EventWriter, names: dict[int, str], events: list) -> list:
    (body,) = bodies(wire.frame(writer.write(events)))
    message = wire.read_news(body)
    assert isinstance(message, wire.Happened)
    return wire.read_events(message, names)


TWO = (Request(request_id="a", prompt=(1,)), Request(request_id="b", prompt=(2,)))


@given(st.lists(made.of_requests(["a", "b"]), max_size=8))
def test_events_arrive_as_they_were_and_in_order(events):
    writer, names = opened(*TWO)
    assert carried(writer, names, events) == events


@given(st.data(), st.integers(1, 3))
def test_a_ticket_lasts_until_the_last_choice_finished(data, n):
    writer, names = opened(Request(request_id="a", prompt=(1,), params=SamplingParams(n=n)))
    for choice in range(n):
        assert writer.name(1) == "a"
        ending = data.draw(made.endings("a", choice))
        assert carried(writer, names, [ending]) == [ending]
    assert writer.name(1) is None


@given(made.refusals("a"))
def test_a_refusal_ends_the_ticket(refused):
    writer, names = opened(*TWO)
    assert carried(writer, names, [refused]) == [refused]
    assert writer.name(1) is None and writer.name(2) == "b"


@given(st.lists(made.of_requests(["a", "b"]), max_size=8))
def test_events_of_unknown_tickets_are_left_out(events):
    writer, names = opened(*TWO)
    del names[1]
    assert carried(writer, names, events) == [event for event in events if getattr(event, "request_id", "") != "a"]
