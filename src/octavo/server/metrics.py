"""Meters: the engine's events become numbers. How Prometheus is told them is in `exposition.py`.

Fed by `EngineClient.listen` and nothing else. An event costs a few additions; text is made when somebody asks for it.
"""

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from octavo.core.backlog import DrainRate
from octavo.core.events import (
    Admitted,
    Audited,
    BlockEvicted,
    BlockStored,
    Drafted,
    EngineLost,
    Event,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
    Stalled,
    Stepped,
    Tiered,
)
from octavo.core.misses import MissReason
from octavo.core.types import FinishReason, RequestId
from octavo.server.tallies import Tallies, Tally

log = logging.getLogger(__name__)

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
_LONG_S = (*_SHORT_S, 20, 40, 80, 160, 320, 640, 2560)
_TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
_STEP_TOKENS = tuple(2**exponent for exponent in range(15))


class Histogram:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative, as Prometheus wants them, and the sum."""
        below, pairs = 0, []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            below += count
            pairs.append((bound, float(below)))
        return pairs, self.total


class _Course:
    """When what happened to one request, of those that are not over."""

    __slots__ = ("admitted_s", "choices_left", "first_s", "generated", "last_s", "prompt_len", "queued_s", "tally")

    def __init__(self, queued: Queued, tally: Tally) -> None:
        self.tally = tally
        self.queued_s = queued.time_s
        self.prompt_len = queued.prompt_len
        self.choices_left = queued.num_choices
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.last_s: dict[int, float] = {}
        """Choice -> the time of its last token."""
        self.generated: dict[int, int] = {}
        """Choice -> its tokens so far."""


class Meters:
    """All numbers of one engine. `on_event` is the only way in, but for `stopped` and `over_quota`."""

    def __init__(self) -> None:
        self._courses: dict[RequestId, _Course] = {}
        self._stopped: set[tuple[RequestId, int]] = set()
        self.gauges = Stepped(0.0, 0, 0, 0, 0, 0, 0, 0, {})
        """The last state that the engine told."""
        self.num_waiting = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.missed_requests = dict.fromkeys(MissReason, 0)
        self.missed_tokens = dict.fromkeys(MissReason, 0)
        self.num_drafts = 0
        self.num_drafted = 0
        self.accepted_at: list[int] = []
        """Guesses that were right, by their place in the draft."""
        self.preemptions = Counter[str]()
        """By cause."""
        self.num_stalled = 0
        """Plans in a row that advanced nothing, as the watchdog last said; 0 since something did."""
        self.stalls = Counter[str]()
        """How often the watchdog spoke, by what most of those who waited lacked."""
        self.tokens_lost = 0
        self.num_swaps = 0
        self.tier: Tiered | None = None
        """The last state of the tier below the KV cache, where there is one."""
        self.blocks_stored = 0
        self.blocks_evicted = 0
        self.num_steps = 0
        self.num_lost = 0
        self.num_audits = 0
        self.num_violations = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.refused = Counter[str]()
        self.drained = DrainRate()
        self.phase_s = defaultdict[str, float](float)
        self.tallies = Tallies()
        self.time_to_first_token = Histogram(_LONG_S)
        self.inter_token_latency = Histogram(_SHORT_S)
        self.e2e_latency = Histogram(_LONG_S)
        self.queue_time = Histogram(_LONG_S)
        self.prefill_time = Histogram(_LONG_S)
        self.decode_time = Histogram(_LONG_S)
        self.inference_time = Histogram(_LONG_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.step_tokens = Histogram(_STEP_TOKENS)
        self._handlers = self._by_kind()

    def _by_kind(self) -> dict[type, Callable[[Any], None]]:
        return {
            Queued: self._queued,
            Refused: self._refused,
            Admitted: self._admitted,
            Generated: self._generated,
            Drafted: self._drafted,
            Preempted: self._preempted,
            Stalled: self._stalled,
            Finished: self._finished,
            BlockStored: self._stored,
            BlockEvicted: self._evicted,
            Tiered: self._tiered,
            Stepped: self._stepped,
            Audited: self._audited,
            EngineLost: self._lost,
        }

    @property
    def num_followed(self) -> int:
        """Requests that are remembered: those that are not over."""
        return len(self._courses)

    @property
    def mean_request_tokens(self) -> float:
        """Prompt and answer of the choices that ended; 1 before any has."""
        ended = sum(self.finished.values())
        return (self.request_prompt_tokens.total + self.request_generation_tokens.total) / ended if ended else 1.0

    @property
    def num_blocks(self) -> int:
        """All blocks of the KV cache, whatever their state; 0 before the engine has told."""
        last = self.gauges
        return last.blocks_blank + last.blocks_cached + last.blocks_leased + last.blocks_pinned

    @property
    def num_free_blocks(self) -> int:
        """Those that a newcomer may have."""
        last = self.gauges
        return max(0, last.blocks_blank + last.blocks_cached - last.blocks_reserved)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that running choices or pins hold, from 0 to 1."""
        held = self.gauges.blocks_leased + self.gauges.blocks_pinned
        return held / self.num_blocks if held else 0.0

    def turned_away(self, code: str) -> None:
        """A request was refused before the engine saw it."""
        self.refused[code] += 1

    def on_event(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def stopped(self, request_id: RequestId, choice: int) -> None:
        """A stop string ended this choice. The engine, which knows no text, will say that it was aborted."""
        if request_id in self._courses:
            self._stopped.add((request_id, choice))

    def over_quota(self, tenant: str, quota: str) -> None:
        """A request of this tenant was sent away by this quota."""
        self.tallies.of(tenant).over_quota[quota] += 1

    def _queued(self, event: Queued) -> None:
        tally = self.tallies.of(event.tenant)
        tally.num_requests += 1
        tally.num_live += 1
        self._courses[event.request_id] = _Course(event, tally)
        self.num_waiting += 1

    def _refused(self, event: Refused) -> None:
        self.turned_away(event.code)

    def _admitted(self, event: Admitted) -> None:
        course = self._courses.get(event.request_id)
        if course is None or event.resumed or course.admitted_s is not None:
            return
        course.admitted_s = event.time_s
        self.queue_time.observe(event.time_s - course.queued_s)
        self.cache_queries += course.prompt_len
        self.cache_hits += event.cached_tokens
        course.tally.prompt_tokens += course.prompt_len
        course.tally.cached_tokens += event.cached_tokens
        if event.miss is not None:
            self.missed_requests[event.miss.reason] += 1
            missed = course.prompt_len - event.cached_tokens
            self.missed_tokens[event.miss.reason] += missed
            course.tally.missed_tokens[event.miss.reason] += missed

    def _generated(self, event: Generated) -> None:
        course = self._courses.get(event.request_id)
        if course is None:
            return
        choice, time_s, count = event.choice, event.time_s, len(event.tokens)
        self.generation_tokens += count
        course.tally.generation_tokens += count
        before = course.last_s.get(choice)
        if before is not None:
            self.inter_token_latency.observe((time_s - before) / count)
            course.generated[choice] += count
        else:
            course.generated[choice] = count
            if course.first_s is None:
                self._first_token(course, time_s)
        course.last_s[choice] = time_s

    def _first_token(self, course: _Course, time_s: float) -> None:
        course.first_s = time_s
        self.prompt_tokens += course.prompt_len
        self.time_to_first_token.observe(time_s - course.queued_s)
        if course.admitted_s is not None:
            self.prefill_time.observe(time_s - course.admitted_s)

    def _drafted(self, event: Drafted) -> None:
        self.num_drafts += 1
        self.num_drafted += event.num_drafted
        self.accepted_at += [0] * (event.num_drafted - len(self.accepted_at))
        for place in range(event.num_accepted):
            self.accepted_at[place] += 1

    def _preempted(self, event: Preempted) -> None:
        self.preemptions[event.cause] += 1
        self.tokens_lost += event.tokens_lost
        self.num_swaps += event.tokens_swapped > 0
        lost = f"{event.tokens_lost} tokens lost, {event.tokens_swapped} kept"
        log.info("preempted %s/%d (time %d): %s; %s", event.request_id, event.choice, event.times, lost, event.reason)

    def _stalled(self, event: Stalled) -> None:
        self.num_stalled = event.num_plans
        reason = max(event.waiting, key=event.waiting.__getitem__, default="running")
        self.stalls[reason] += 1
        log.warning("nothing advances: %s", event.message)

    def _tiered(self, event: Tiered) -> None:
        self.tier = event

    def _finished(self, event: Finished) -> None:
        stopped = (event.request_id, event.choice) in self._stopped
        self._stopped.discard((event.request_id, event.choice))
        self.finished[FinishReason.STOP if stopped else event.reason] += 1
        course = self._courses.get(event.request_id)
        if course is not None:
            self._timed(course, event)

    def _timed(self, course: _Course, event: Finished) -> None:
        course.choices_left -= 1
        if not course.choices_left:
            course.tally.num_live -= 1
            del self._courses[event.request_id]
        self.e2e_latency.observe(event.time_s - course.queued_s)
        self.request_prompt_tokens.observe(course.prompt_len)
        self.request_generation_tokens.observe(course.generated.get(event.choice, 0))
        if course.admitted_s is not None:
            self.inference_time.observe(event.time_s - course.admitted_s)
        if course.first_s is not None:
            self.decode_time.observe(event.time_s - course.first_s)

    def waiting_by_reason(self) -> dict[str, int]:
        held = min(self.gauges.num_held, self.num_waiting)
        return {"capacity": self.num_waiting - held, "deferred": held}

    def _stored(self, event: BlockStored) -> None:
        self.blocks_stored += 1

    def _evicted(self, event: BlockEvicted) -> None:
        self.blocks_evicted += 1

    def _audited(self, event: Audited) -> None:
        self.num_audits += 1
        self.num_violations += len(event.violations)

    def _lost(self, event: EngineLost) -> None:
        """Whatever was on its way ended with the engine; the next one begins with blank blocks."""
        for course in self._courses.values():
            self.finished[FinishReason.ERROR] += course.choices_left
            course.tally.num_live -= 1
        self._courses.clear()
        self._stopped.clear()
        self.gauges = Stepped(event.time_s, self.gauges.step, 0, 0, 0, self.num_blocks, 0, 0, {})
        self.num_waiting = 0
        self.tier = None
        self.num_lost += 1

    def _stepped(self, event: Stepped) -> None:
        self.gauges = event
        self.num_waiting = event.num_waiting
        if event.num_tokens:
            self.num_stalled = 0
            self.num_steps += 1
            self.step_tokens.observe(event.num_tokens)
            self.drained.note(event.num_tokens, sum(event.timings_s.values()))
        for phase, seconds in event.timings_s.items():
            self.phase_s[phase] += seconds
