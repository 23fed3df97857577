"""Recorder: a scheduler that remembers what it was told and what it planned, as far back as a bound allows.

What decides is pure: with these inputs a fresh scheduler makes the same plans. So the record is all that a report of a
bug in policy needs; `dump.py` writes it down without what was said, `replaying.py` makes the plans again.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any
from zlib import crc32

from octavo.core.events import Event, Finished
from octavo.core.plan import ScoredToken, StepPlan, StepResult, Work
from octavo.core.ports import Guide
from octavo.core.request import Request
from octavo.core.scheduler import BAD_STRUCTURE, Scheduler
from octavo.core.throttle import Throttle
from octavo.core.tiers import Report
from octavo.core.types import BlockId, FinishReason, RequestId
from octavo.engine.asks import AddPin, Ask, ExplainPrefix, TakeSnapshot

MOST_BYTES = 8 << 20
"""So much is remembered: with 64 choices in each step some 2,500 steps. It is full within minutes of work."""
ROW = 7
"""Numbers that a work is remembered by: its request's number, its choice, where it starts, its tokens, its blocks, a
checksum of their ids, its samples."""
_NUMBERS = 1 << 32
"""Requests that have numbers of their own: a row is made of numbers of 32 bits."""
_MOST_NAMES = 4096
"""Of requests that are over, as many are known by name before they are forgotten together."""


@dataclass(slots=True)
class Submitted:
    time_s: float
    request: Request
    number: int
    """What rows call it."""


@dataclass(slots=True)
class Withdrawn:
    time_s: float
    request_id: RequestId
    choice: int | None


@dataclass(slots=True)
class Guided:
    time_s: float
    request_id: RequestId


@dataclass(slots=True)
class GivenUp:
    time_s: float
    request_id: RequestId


@dataclass(slots=True)
class Asked:
    """An Ask that may change something."""

    time_s: float
    ask: Ask[Any]


@dataclass(slots=True)
class PinsExpired:
    time_s: float


@dataclass(slots=True)
class Noted:
    """The lower tier reported: how often."""

    time_s: float
    num_reports: int


@dataclass(slots=True)
class Planned:
    time_s: float
    rows: "array[int] | None" = None
    """ROW numbers for each work; None: the plan was never made."""
    num_copies: int = 0
    step: int = 0
    forks: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Of works with several samples, by their place: which choices these are for."""


@dataclass(slots=True)
class Committed:
    time_s: float
    num_tokens: "array[int]" = field(default_factory=lambda: array("i"))
    """Of each work: how many were sampled."""
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    """All that were sampled, work by work."""
    errors: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    ranked: dict[int, tuple[ScoredToken, ...]] = field(default_factory=dict[int, tuple[ScoredToken, ...]])
    """Of beams: the candidates."""
    formed: list[tuple[RequestId, int, str | None]] = field(default_factory=list[tuple[RequestId, int, "str | None"]])
    """Choices with a structured output that it ended here, each with what was wrong, if anything."""
    done: bool = False
    """The commit came to its end."""


@dataclass(slots=True)
class Failed:
    time_s: float
    message: str


@dataclass(slots=True)
class Stuck:
    time_s: float


@dataclass(slots=True)
class Throttled:
    time_s: float
    throttle: Throttle


@dataclass(slots=True)
class Quiet:
    """Nothing was live: from here a record may begin, with so much in the cache, this throttle, and lengths learned."""

    time_s: float
    num_cached: int
    num_pinned: int
    throttle: Throttle | None
    lengths: dict[int, tuple[float, int]]


Entry = (
    Submitted
    | Withdrawn
    | Guided
    | GivenUp
    | Asked
    | PinsExpired
    | Noted
    | Planned
    | Committed
    | Failed
    | Stuck
    | Throttled
    | Quiet
)


_ENTRY_BYTES = 200
_PLANNED_BYTES, _COMMITTED_BYTES, _REQUEST_BYTES = 400, 600, 1000
"""With nothing in them; a request as it comes over the wire."""
_ID_BYTES, _PAIR_BYTES, _RANKED_BYTES = 40, 150, 300
"""A token id in a tuple; an id with what belongs to it; a token with its rank and logprob."""


def bytes_of(entry: Entry) -> int:
    """The memory that an entry takes, about: each is its only owner, once its request is over."""
    match entry:
        case Submitted(request=request):
            return bytes_of_request(request)
        case Planned(rows=rows, forks=forks):
            return _PLANNED_BYTES + 4 * len(rows or ()) + _PAIR_BYTES * len(forks)
        case Committed(tokens=tokens, num_tokens=numbers, ranked=ranked, errors=errors):
            taken = _PAIR_BYTES * len(errors) + _RANKED_BYTES * sum(map(len, ranked.values()))
            return _COMMITTED_BYTES + 4 * (len(tokens) + len(numbers)) + taken
        case Quiet(lengths=lengths):
            return _ENTRY_BYTES + _PAIR_BYTES * len(lengths)
        case Asked(ask=AddPin(wish=wish)):
            return _ENTRY_BYTES + _ID_BYTES * len(wish.tokens)
        case _:
            return _ENTRY_BYTES


def bytes_of_request(request: Request) -> int:
    params, form = request.params, request.params.structured_outputs
    num_ids = len(request.prompt) + len(params.stop_token_ids) + len(params.allowed_token_ids or ())
    texts = (*params.stop, *((form.text,) if form else ()))
    return _REQUEST_BYTES + _ID_BYTES * num_ids + _PAIR_BYTES * len(params.logit_bias) + sum(map(getsizeof, texts))


class Record:
    """Entries, the oldest first, and whether they go back to the start."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._entries: deque[tuple[Entry, int]] = deque()
        self._most_bytes = most_bytes
        self.num_bytes = 0
        """Of memory, or a little less than that."""
        self.num_lost = 0

    def add(self, entry: Entry) -> None:
        num_bytes = bytes_of(entry)
        self._entries.append((entry, num_bytes))
        self.num_bytes += num_bytes
        while self.num_bytes > self._most_bytes:
            _, dropped = self._entries.popleft()
            self.num_bytes -= dropped
            self.num_lost += 1

    @property
    def last_s(self) -> float:
        """The time of the last entry."""
        return self._entries[-1][0].time_s if self._entries else 0.0

    def entries(self) -> list[Entry]:
        return [entry for entry, _ in self._entries]


class RecordedScheduler(Scheduler):
    """Decides as a Scheduler does, and keeps a record of how it came to it."""

    def __init__(self, *args: Any, record: Record | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.record = Record() if record is None else record
        self._numbers: dict[RequestId, int] = {}
        self._last_number = 0
        self._seen: dict[tuple[RequestId, int], tuple[tuple[BlockId, ...], int, int]] = {}
        """Choices -> the block table of their last work, their request's number, and the table's checksum."""
        self._with_form: set[RequestId] = set()
        self._planning = False

    def submit(self, request: Request, now: float) -> tuple[Event, ...]:
        if not self.roster.requests:
            self.record.add(self._quiet(now))
        if len(self._seen) + len(self._numbers) > _MOST_NAMES + 2 * len(self.roster.requests):
            self._forget_those_who_left()
        self._last_number = (self._last_number + 1) % _NUMBERS
        self._numbers[request.request_id] = self._last_number
        self.record.add(Submitted(now, request, self._last_number))
        if request.params.structured_outputs is not None:
            self._with_form.add(request.request_id)
        return super().submit(request, now)

    def throttle(self, throttle: Throttle) -> None:
        if throttle != self.throttled:
            self.record.add(Throttled(self.record.last_s, throttle))
        super().throttle(throttle)

    def guide(self, request_id: RequestId, guide: Guide, now: float) -> tuple[Event, ...]:
        self.record.add(Guided(now, request_id))
        return super().guide(request_id, guide, now)

    def give_up(self, request_id: RequestId, message: str, now: float) -> tuple[Event, ...]:
        self.record.add(GivenUp(now, request_id))
        return super().give_up(request_id, message, now)

    def cancel(self, request_id: RequestId, now: float, choice: int | None = None) -> tuple[Event, ...]:
        self.record.add(Withdrawn(now, request_id, choice))
        return super().cancel(request_id, now, choice)

    def note(self, reports: Iterable[Report], now: float) -> tuple[Event, ...]:
        reports = tuple(reports)
        self.record.add(Noted(now, len(reports)))
        return super().note(reports, now)

    def stalled(self, now: float) -> tuple[Event, ...]:
        self.record.add(Stuck(now))
        return super().stalled(now)

    def asked(self, ask: Ask[Any], now: float) -> None:
        """Takes note of an Ask that is about to be answered."""
        if not isinstance(ask, ExplainPrefix | TakeSnapshot):
            self.record.add(Asked(now, ask))

    def pins_expired(self, now: float) -> None:
        self.record.add(PinsExpired(now))

    def plan(self, now: float) -> StepPlan:
        if self._planning:  # a plan that is made anew is one plan
            return super().plan(now)
        entry = Planned(now)
        self._planning = True
        try:
            plan = super().plan(now)
        except BaseException:
            self.record.add(entry)
            raise
        finally:
            self._planning = False
        entry.step, entry.num_copies = plan.step, len(plan.copies)
        entry.rows, entry.forks = self._rows(plan.work), forks_of(plan)
        self.record.add(entry)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Event, ...]:
        entry = committed(plan, result, now)
        self.record.add(entry)
        events = super().commit(plan, result, now)
        if self._with_form:
            entry.formed = self._formed(events)
        entry.done = True
        return events

    def fail(self, plan: StepPlan, message: str, now: float) -> tuple[Event, ...]:
        self.record.add(Failed(now, message))
        return super().fail(plan, message, now)

    def _formed(self, events: Sequence[Event]) -> list[tuple[RequestId, int, str | None]]:
        ends = [event for event in events if isinstance(event, Finished) and event.request_id in self._with_form]
        self._with_form.difference_update(
            [end.request_id for end in ends if end.request_id not in self.roster.requests]
        )
        return [
            (end.request_id, end.choice, end.message if end.code == BAD_STRUCTURE else None)
            for end in ends
            if end.code == BAD_STRUCTURE or (end.reason is FinishReason.STOP and end.stop_token is None)
        ]

    def _rows(self, works: Sequence[Work]) -> "array[int]":
        rows: list[int] = []
        seen = self._seen
        for work in works:
            name, choice, table = work.request_id, work.choice, work.block_ids
            known = seen.get((name, choice))
            if known is None or known[0] is not table:
                known = seen[name, choice] = (table, self._numbers[name], checksum(table))
            rows += (known[1], choice, work.start, len(work.tokens), len(table), known[2], len(work.samples))
        return array("I", rows)

    def _quiet(self, now: float) -> Quiet:
        cached, pinned = self.cache.pool.num_cached, self.cache.pins.num_blocks
        return Quiet(now, cached, pinned, self.throttled, self.reception.lengths.known)

    def _forget_those_who_left(self) -> None:
        live = self.roster.requests
        self._numbers = {name: number for name, number in self._numbers.items() if name in live}
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in live}


def checksum(table: Sequence[BlockId]) -> int:
    """Of a block table: the same on every machine."""
    return crc32(array("i", table).tobytes())


def forks_of(plan: StepPlan) -> dict[int, tuple[int, ...]]:
    """Works that draw for several choices: which."""
    return {
        place: tuple([sample.choice for sample in work.samples])
        for place, work in enumerate(plan.work)
        if len(work.samples) > 1 and not work.num_drafted
    }


def committed(plan: StepPlan, result: StepResult, now: float) -> Committed:
    """What a result is remembered by."""
    results = result.results
    return Committed(
        now,
        array("i", [len(outcome.sampled) for outcome in results]),
        array("i", [scored.token for outcome in results for scored in outcome.sampled]),
        {place: (each.error, each.code) for place, each in enumerate(results) if each.error is not None},
        {
            place: each.sampled
            for place, each in enumerate(results)
            if each.sampled and each.sampled[0].alternatives and _ranks(plan.work[place])
        },
    )


def _ranks(work: Work) -> bool:
    """Are its samples the candidates of a beam?"""
    return len(work.samples) == 1 and work.samples[0].params.use_beam_search
