"""Events as JSON: each kind that an engine may tell has a form, and nothing that was said is in it."""

from typing import get_args

import msgspec
from hypothesis import assume, given

from octavo.core.events import EngineLost, Event, Finished, Refused
from octavo.core.types import FinishReason
from octavo.server.telling import KINDS, AnyTold, tell
from tests.engine import events as made
from tests.server.described import DOCUMENT, errors

EVENT = DOCUMENT["paths"]["/octavo/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]


def test_each_event_has_a_kind() -> None:
    assert set(KINDS.values()) == set(get_args(Event))
    assert {told.__struct_config__.tag for told in get_args(AnyTold)} == {*KINDS, "hello", "dropped"}


@given(made.of_requests(["a", "b"]))
def test_an_event_is_told_as_described(event: Event) -> None:
    assume("inf" not in repr(event))  # times and counts are finite; JSON has no other numbers
    check(event)


def test_ends_are_told_as_described() -> None:
    for event in (
        Finished("a", 0, 1.0, FinishReason.ERROR, None, "it broke", "not_finite"),
        Refused("a", 1.0, "queue_full", "too many", 3),
        EngineLost(1.0, "gone"),
    ):
        check(event)


def check(event: Event) -> None:
    raw = msgspec.json.encode(tell(event, 7, 1000.0))
    told = msgspec.json.decode(raw)
    assert told["time"] == event.time_s + 1000.0 and told["seq"] == 7 and KINDS[told["kind"]] is type(event)
    assert errors(EVENT["x-octavo-event"], told) == []
    assert not {"token", "token_ids", "text", "logprob"} & told.keys() and not isinstance(told.get("tokens"), list)
    assert msgspec.json.encode(msgspec.json.decode(raw, type=AnyTold)) == raw
