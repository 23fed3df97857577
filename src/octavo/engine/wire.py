"""What the two processes say to each other: msgpack messages, each with its length in front.

All events of a step are one message. A request's id is said once, in `Submit`, beside a small number, its *ticket*;
after that only the ticket travels. Plain generated tokens, by far the most common event, are three numbers each.
"""

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from octavo.core.events import (
    Admitted,
    Audited,
    BlockEvicted,
    BlockStored,
    Computed,
    Drafted,
    Embedded,
    Event,
    Finished,
    Generated,
    Preempted,
    PrefixPinned,
    PrefixUnpinned,
    PromptScored,
    Queued,
    Refused,
    Stalled,
    Steered,
    Stepped,
    Tiered,
    generated,
)
from octavo.core.misses import Miss, MissReason
from octavo.core.plan import ScoredToken, bare
from octavo.core.request import Request
from octavo.core.types import FinishReason, RequestId
from octavo.core.waits import Waited
from octavo.engine.asks import ASKS, Ask
from octavo.engine.client import EngineFacts

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 1 << 30
"""A longer frame is a broken peer, not a message."""

_LENGTH = struct.Struct("<I")


class WireError(ValueError):
    """Bytes that no peer of this version sends."""


class Setup(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """To the engine, first: the configuration, in whatever form the two ends agreed on."""

    payload: bytes


class Submit(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """To the engine: run `request`; speak of it as `ticket` from now on. Tickets start at 1 and are not used again."""

    ticket: int
    request: Request


class Cancel(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """To the engine: end the request, or one choice of it."""

    ticket: int
    choice: int | None = None


class Asked(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """To the engine: answer an `Ask` of this kind, in a `Replied` of the same number."""

    number: int
    kind: str
    body: msgspec.Raw


class Progress(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """From the engine, while it loads: what it does now, for people."""

    what: str


class Ready(msgspec.Struct, tag=11, array_like=True, frozen=True):
    facts: EngineFacts


class Failed(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """From the engine, last: why it ends, for people."""

    message: str
    refused: bool = False
    """Nothing broke: what it was asked to load cannot be."""


class Beat(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """From the engine, when it has nothing else to say: its loop turns, or it computes."""


class Happened(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """From the engine: events, in order, as groups of one time each. `EventReader` knows the items."""

    groups: tuple[tuple[float, list[Any]], ...]


class Replied(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """From the engine: the answer to an `Asked`, after the events that it caused; or why there is none."""

    number: int
    body: msgspec.Raw
    error: str | None = None


Command = Setup | Submit | Cancel | Asked
News = Progress | Ready | Failed | Beat | Happened | Replied

_encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_news = msgspec.msgpack.Decoder(News).decode


def frame(message: Command | News) -> bytes:
    """The message as it travels."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def read_command(body: bytes) -> Command:
    """Raises WireError."""
    return _read(_decode_command, body)


def read_news(body: bytes) -> News:
    """Raises WireError."""
    return _read(_decode_news, body)


def _read(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a message of {len(body)} bytes cannot be read: {error}") from error


def asked(number: int, ask: Ask[Any]) -> Asked:
    return Asked(number, type(ask).__name__, msgspec.Raw(_encode(ask)))


def read_ask(message: Asked) -> Ask[Any]:
    """Raises WireError."""
    if message.kind not in ASKS:
        raise WireError(f"nobody can answer a {message.kind!r}")
    return _read(partial(msgspec.msgpack.decode, type=ASKS[message.kind]), bytes(message.body))


def replied(number: int, reply: Any) -> Replied:
    """`reply` is the answer, or an exception."""
    if isinstance(reply, Exception):
        return Replied(number, msgspec.Raw(_encode(None)), f"{type(reply).__name__}: {reply}")
    return Replied(number, msgspec.Raw(_encode(reply)))


def read_reply(message: Replied, kind: type[Ask[Any]]) -> Any:
    """Raises WireError."""
    return _read(partial(msgspec.msgpack.decode, type=kind.reply), bytes(message.body))


class Deframer:
    """Cuts a stream of bytes into message bodies, however the bytes arrive."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields each body that `data` completes. Raises WireError for an impossible length."""
        self._pending += data
        position = 0
        try:
            while len(self._pending) - position >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._pending, position)
                if length > self._limit:
                    raise WireError(f"a message of {length} bytes; the limit is {self._limit}")
                end = position + _LENGTH.size + length
                if len(self._pending) < end:
                    break
                body = bytes(self._pending[position + _LENGTH.size : end])
                position = end
                yield body
        finally:
            del self._pending[:position]


# -- events ----------------------------------------------------------------------------------------------------------
#
# An item is a tuple that begins with its kind. TOKENS is followed by any number of (ticket, choice, token); the others
# by the event's fields in order, without its time, with the ticket for the request id, and scored tokens as tuples.

_TOKENS = 0
_KINDS: dict[Any, int] = {
    Queued: 1,
    Refused: 2,
    Admitted: 3,
    PromptScored: 4,
    Generated: 5,
    Preempted: 6,
    Finished: 7,
    BlockStored: 8,
    BlockEvicted: 9,
    Stepped: 10,
    Drafted: 11,
    Audited: 12,
    Embedded: 13,
    PrefixPinned: 20,
    PrefixUnpinned: 21,
    Tiered: 22,
    Stalled: 30,
    Computed: 31,
    Steered: 32,
}
_CLASSES = {kind: cls for cls, kind in _KINDS.items()}


def _getter(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = [name for name in cls.__match_args__ if name not in ("time_s", "request_id")]
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda event: (get(event),)


_FIELDS = {cls: _getter(cls) for cls in _KINDS}
_OF_REQUEST = {cls for cls in _KINDS if "request_id" in cls.__match_args__}
_TIME_AT = {cls: cls.__match_args__.index("time_s") for cls in _KINDS}
_NO_TICKET = 0


class EventWriter:
    """Turns events into messages; knows the tickets of the requests that are not over."""

    def __init__(self) -> None:
        self._tickets: dict[RequestId, int] = {}
        self._names: dict[int, RequestId] = {}
        self._choices_left: dict[RequestId, int] = {}

    def open(self, ticket: int, request: Request) -> None:
        """From now on `request` is called `ticket`, until it is refused or its last choice finished."""
        self._tickets[request.request_id] = ticket
        self._names[ticket] = request.request_id
        self._choices_left[request.request_id] = request.params.num_choices

    def name(self, ticket: int) -> RequestId | None:
        """The request that is called `ticket`; None where it is over."""
        return self._names.get(ticket)

    def write(self, events: Iterable[Event]) -> Happened:
        groups: list[tuple[float, list[Any]]] = []
        time_s, items, tokens = None, [], None
        tickets = self._tickets
        for event in events:
            if event.time_s != time_s:
                time_s, items, tokens = event.time_s, [], None
                groups.append((event.time_s, items))
            if type(event) is Generated and len(event.tokens) == 1 and event.tokens[0].logprob is None:
                if tokens is None:
                    tokens = [_TOKENS]
                    items.append(tokens)
                tokens += (tickets.get(event.request_id, _NO_TICKET), event.choice, event.tokens[0].token)
            else:
                tokens = None
                items.append(self._item(event))
        return Happened(tuple(groups))

    def _item(self, event: Event) -> tuple[Any, ...]:
        cls = type(event)
        values = _FIELDS[cls](event)
        if isinstance(event, Generated | PromptScored):
            values = (*values[:-1], [_flat(token) for token in values[-1]])
        elif isinstance(event, Admitted):
            waited = [_flat_wait(each) for each in event.waited]
            values = (*values[:-3], event.miss and _flat_miss(event.miss), event.loaded_tokens, waited)
        if cls not in _OF_REQUEST:
            return (_KINDS[cls], *values)
        return (_KINDS[cls], self._ticket(event), *values)

    def _ticket(self, event: Any) -> int:
        """The event's ticket, which ends with the event if that is the request's last."""
        request_id = event.request_id
        ticket = self._tickets.get(request_id, _NO_TICKET)
        if ticket == _NO_TICKET:
            log.error("a %s of an unknown request", type(event).__name__)
        elif type(event) is Refused or (type(event) is Finished and self._is_last(request_id)):
            del self._tickets[request_id], self._choices_left[request_id], self._names[ticket]
        return ticket

    def _is_last(self, request_id: RequestId) -> bool:
        self._choices_left[request_id] -= 1
        return self._choices_left[request_id] == 0


def _flat(token: ScoredToken) -> tuple[Any, ...]:
    return (token.token, token.logprob, token.rank, token.alternatives)


def _flat_miss(miss: Miss) -> tuple[Any, ...]:
    return (miss.reason, miss.at, miss.evicted_s, miss.ours, miss.theirs)


def _flat_wait(waited: Waited) -> tuple[Any, ...]:
    return (waited.reason, waited.seconds, waited.need, waited.have)


def read_events(happened: Happened, names: Mapping[int, RequestId]) -> list[Event]:
    """The events as they were. Those of a ticket that `names` does not know are left out."""
    events: list[Event] = []
    for time_s, items in happened.groups:
        for item in items:
            if item[0] == _TOKENS:
                _read_tokens(item, time_s, names, events)
            else:
                _read_item(item, time_s, names, events)
    return events


def _read_tokens(item: Sequence[int], time_s: float, names: Mapping[int, RequestId], events: list[Event]) -> None:
    for at in range(1, len(item), 3):
        request_id = names.get(item[at])
        if request_id is not None:
            events.append(generated(request_id, item[at + 1], time_s, bare(item[at + 2])))


def _read_item(item: Sequence[Any], time_s: float, names: Mapping[int, RequestId], events: list[Event]) -> None:
    cls = _CLASSES[item[0]]
    values = list(item[1:])
    if cls in _OF_REQUEST:
        values[0] = names.get(values[0])
        if values[0] is None:
            return
    if cls is Generated or cls is PromptScored:
        values[-1] = tuple(_scored(*token) for token in values[-1])
    elif cls is Finished:
        values[2] = FinishReason(values[2])
    elif cls is Audited:
        values[0] = tuple(values[0])
    elif cls is Admitted:
        values[-3] = values[-3] and _miss(*values[-3])
        values[-1] = tuple(Waited(*each) for each in values[-1])
    values.insert(_TIME_AT[cls], time_s)
    events.append(cls(*values))


def _miss(reason: str, at: int, evicted_s: float | None, ours: Sequence[int], theirs: Sequence[int]) -> Miss:
    return Miss(MissReason(reason), at, evicted_s, tuple(ours), tuple(theirs))


def _scored(token: int, logprob: float | None, rank: int | None, alternatives: Sequence[Any]) -> ScoredToken:
    return ScoredToken(token, logprob, rank, tuple((other, value) for other, value in alternatives))
