"""Meters: the engine's events become numbers. What they are called is in `catalogue/`.

An event costs a few additions; text is made when somebody asks for it.
"""

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
    Embedded,
    EngineLost,
    EngineReady,
    Event,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
    Stalled,
    Steered,
    Stepped,
    Tiered,
)
from octavo.core.misses import MissReason
from octavo.core.types import FinishReason, RequestId
from octavo.core.waits import GUIDE, STEP
from octavo.server.course import Course
from octavo.server.histogram import Spreads
from octavo.server.listeners import Handler, one_by_one
from octavo.server.movements import Movements
from octavo.server.tallies import Tallies

_SOURCES = {"memory": "host"}
"""Tiers -> where a cached token came from, in vLLM's words, where they differ."""
STEP_FAILED, ENGINE_LOST = "step_failed", "engine_lost"
"""Errors of choices that have no code of their own."""
_REQUEST_TYPES = {"/v1/chat/completions": "chat_completions", "/v1/responses": "responses"}
"""Paths -> vLLM's `request_type`."""


def _never(request_id: RequestId, choice: int) -> bool:
    return False


class Meters:
    """All numbers of one engine: what events tell, by `handlers`, and what no event does, by a method for each.

    Counters never go down, whatever becomes of the engine; gauges are those of the engine that is there.
    """

    def __init__(self, was_stopped: Callable[[RequestId, int], bool] = _never) -> None:
        """`was_stopped`: did a stop string end this choice? The engine, which knows no text, says that it aborted."""
        self._was_stopped = was_stopped
        self._courses: dict[RequestId, Course] = {}
        self._stored_s: dict[bytes, float] = {}
        """Blocks that can be found in the prefix cache -> since when."""
        self.gauges = Stepped(0.0, 0, 0, 0, 0, 0, 0, 0, {})
        """The last state that the engine told."""
        self.waiting: dict[str, int] = {}
        """What those who wait lack -> how many of them."""
        self.waited_s = defaultdict[str, float](float)
        """What those who wait no more lacked -> how long."""
        self.num_queued = 0
        self.prompt_tokens = 0
        self.prompt_cached = Counter[str]()
        """Where tokens of prompts were found -> how many: device, or the tier."""
        self.generation_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.tier_queries = 0
        self.tier_hits = 0
        self.missed_requests = dict.fromkeys(MissReason, 0)
        self.missed_tokens = dict.fromkeys(MissReason, 0)
        self.num_drafts = 0
        self.num_drafted = 0
        self.accepted_at: list[int] = []
        """Guesses that were right, by their place in the draft."""
        self.preemptions = Counter[str]()
        """By cause, as the tokens that they lost."""
        self.tokens_lost = Counter[str]()
        self.num_stalled = 0
        """Plans in a row that advanced nothing, as the watchdog last said; 0 since something did, or nobody waits."""
        self.stalls = Counter[str]()
        """How often the watchdog spoke, by what most of those who waited lacked."""
        self.steered: Steered | None = None
        """The last decision for latency objectives, where there are any."""
        self.decisions = Counter[str]()
        """By reason."""
        self.num_swaps = 0
        self.movements = Movements()
        self.blocks_stored = 0
        self.blocks_evicted = 0
        self.num_steps = 0
        self.num_ready = 0
        self.num_lost = 0
        self.num_audits = 0
        self.num_violations = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.errors = Counter[str]()
        """Why choices ended with an error -> how many."""
        self.refused = Counter[str]()
        self.tool_calls = Counter[tuple[str, str, str]]()
        """(mode, outcome, type of request) -> choices that were searched for calls."""
        self.drained = DrainRate()
        self.phase_s = defaultdict[str, float](float)
        self.tallies = Tallies()
        self.spreads = Spreads()
        self.handlers = self._by_kind()
        """Kind of event -> who is to be told, for `Listeners`."""

    def _by_kind(self) -> dict[type, Handler]:
        single: dict[type, Callable[[Any], None]] = {
            Queued: self._queued,
            Refused: self._refused,
            Admitted: self._admitted,
            Embedded: self._embedded,
            Drafted: self._drafted,
            Preempted: self._preempted,
            Stalled: self._stalled,
            Finished: self._finished,
            BlockStored: self._stored,
            BlockEvicted: self._evicted,
            Tiered: self.movements.note,
            Stepped: self._stepped,
            Steered: self._steered,
            Audited: self._audited,
            EngineReady: self._ready,
            EngineLost: self._lost,
        }
        return {**one_by_one(single), Generated: self._generated}

    @property
    def num_followed(self) -> int:
        """Requests that are remembered: those that are not over."""
        return len(self._courses)

    @property
    def num_waiting(self) -> int:
        """Choices that wait for their first or next turn."""
        return sum(self.waiting.values())

    @property
    def mean_request_tokens(self) -> float:
        """Prompt and answer of the choices that ended; 1 before any has."""
        ended = sum(self.finished.values())
        lengths = self.spreads.request_prompt_tokens.total + self.spreads.request_generation_tokens.total
        return lengths / ended if ended else 1.0

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
        handler = self.handlers.get(type(event))
        if handler is not None:
            handler((event,))

    def calls_read(self, path: str, *, streams: bool) -> Callable[[bool], None]:
        """Counts the choices of a request that came to this path, once each was searched for calls of tools."""
        mode, kind = "streaming" if streams else "non_streaming", _REQUEST_TYPES.get(path, "other")

        def read(called: bool) -> None:
            self.tool_calls[mode, "tool_call" if called else "no_tool_call", kind] += 1

        return read

    def over_quota(self, tenant: str, quota: str) -> None:
        """A request of this tenant was sent away by this quota."""
        self.tallies.of(tenant).over_quota[quota] += 1

    # ---- requests ----

    def _queued(self, event: Queued) -> None:
        tally = self.tallies.of(event.tenant)
        tally.num_requests += 1
        tally.num_live += 1
        self._courses[event.request_id] = Course(event, tally)
        self.num_queued += 1
        self.waiting[STEP] = self.waiting.get(STEP, 0) + 1

    def _refused(self, event: Refused) -> None:
        self.turned_away(event.code)

    def _admitted(self, event: Admitted) -> None:
        for wait in event.waited:
            self.waited_s[wait.reason] += wait.seconds
        course = self._courses.get(event.request_id)
        if course is None or event.resumed or course.admitted_s is not None:
            return
        course.admitted_s = event.time_s
        course.cached_tokens, course.loaded_tokens = event.cached_tokens, event.loaded_tokens
        self.spreads.queue_time.observe(event.time_s - course.arrival_s)
        in_pool = event.cached_tokens - event.loaded_tokens
        self.cache_queries += course.prompt_len
        self.cache_hits += in_pool
        if self.movements.last is not None:
            self.tier_queries += course.prompt_len - in_pool
            self.tier_hits += event.loaded_tokens
        if event.miss is not None:
            self.missed_requests[event.miss.reason] += 1
            missed = course.prompt_len - event.cached_tokens
            self.missed_tokens[event.miss.reason] += missed
            course.tally.missed_tokens[event.miss.reason] += missed

    def _generated(self, events: Sequence[Generated]) -> None:
        pauses = dict[float, int]()
        for event in events:
            course = self._courses.get(event.request_id)
            if course is None:
                continue
            choice, time_s, count = event.choice, event.time_s, len(event.tokens)
            self.generation_tokens += count
            course.tally.generation_tokens += count
            before = course.last_s.get(choice)
            if before is not None:
                pause = (time_s - before) / count
                pauses[pause] = pauses.get(pause, 0) + 1
                course.generated[choice] += count
            else:
                course.generated[choice] = count
                if course.first_s is None:
                    self._first_token(course, time_s)
            course.last_s[choice] = time_s
        for pause, times in pauses.items():  # who was in the step before, too, waited for the same time
            self.spreads.inter_token_latency.observe(pause, times)

    def _first_token(self, course: Course, time_s: float) -> None:
        course.first_s = time_s
        self.spreads.time_to_first_token.observe(time_s - course.arrival_s)
        self._prompt_computed(course, time_s)

    def _embedded(self, event: Embedded) -> None:
        """There is no token, so nothing about the times of tokens is noted."""
        course = self._courses.get(event.request_id)
        if course is not None:
            self._prompt_computed(course, event.time_s)

    def _prompt_computed(self, course: Course, time_s: float) -> None:
        self.prompt_tokens += course.prompt_len
        self._found(course)
        course.tally.prompt_tokens += course.prompt_len
        course.tally.cached_tokens += course.cached_tokens
        self.spreads.request_computed_tokens.observe(course.prompt_len - course.cached_tokens)
        if course.admitted_s is not None:
            self.spreads.prefill_time.observe(time_s - course.admitted_s)

    def _found(self, course: Course) -> None:
        self.prompt_cached["device"] += course.cached_tokens - course.loaded_tokens
        tier = self.movements.last
        if course.loaded_tokens and tier is not None:
            self.prompt_cached[_SOURCES.get(tier.tier, tier.tier)] += course.loaded_tokens

    def _drafted(self, event: Drafted) -> None:
        self.num_drafts += 1
        self.num_drafted += event.num_drafted
        self.accepted_at += [0] * (event.num_drafted - len(self.accepted_at))
        for place in range(event.num_accepted):
            self.accepted_at[place] += 1

    def _preempted(self, event: Preempted) -> None:
        self.preemptions[event.cause] += 1
        self.tokens_lost[event.cause] += event.tokens_lost
        self.num_swaps += event.tokens_swapped > 0
        course = self._courses.get(event.request_id)
        if course is not None:
            course.preempted[event.choice] += 1

    def _finished(self, event: Finished) -> None:
        stopped = self._was_stopped(event.request_id, event.choice)
        self.finished[FinishReason.STOP if stopped else event.reason] += 1
        if event.reason is FinishReason.ERROR:
            self.errors[event.code or STEP_FAILED] += 1
        course = self._courses.get(event.request_id)
        if course is not None:
            self._timed(course, event.choice, event.time_s)
            if not course.choices_left:
                del self._courses[event.request_id]

    def _timed(self, course: Course, choice: int, time_s: float) -> None:
        """A choice is over, and with the last one its request."""
        count = course.generated.pop(choice, 0)
        course.choices_left -= 1
        course.longest = max(course.longest, count)
        self.spreads.e2e_latency.observe(time_s - course.arrival_s)
        self.spreads.request_prompt_tokens.observe(course.prompt_len)
        self.spreads.request_generation_tokens.observe(count)
        self.spreads.request_preemptions.observe(course.preempted[choice])
        if course.admitted_s is not None:
            self.spreads.inference_time.observe(time_s - course.admitted_s)
        if course.first_s is not None:
            self.spreads.decode_time.observe(time_s - course.first_s)
            if count > 1:
                self.spreads.time_per_output_token.observe((course.last_s[choice] - course.first_s) / (count - 1))
        if not course.choices_left:
            self._over(course)

    def _over(self, course: Course) -> None:
        course.tally.num_live -= 1
        self.spreads.request_choices.observe(course.num_choices)
        self.spreads.request_longest.observe(course.longest)
        if course.max_tokens is not None:
            self.spreads.request_max_tokens.observe(course.max_tokens)

    # ---- the engine ----

    def waiting_by_reason(self) -> dict[str, int]:
        """In vLLM's words: those who wait for something from outside are deferred."""
        held = self.waiting.get(GUIDE, 0)
        return {"capacity": self.num_waiting - held, "deferred": held}

    def _stalled(self, event: Stalled) -> None:
        self.num_stalled = event.num_plans
        reason = max(event.waiting, key=event.waiting.__getitem__, default="running")
        self.stalls[reason] += 1

    def _steered(self, event: Steered) -> None:
        self.steered = event
        self.decisions[event.reason] += 1

    def _stored(self, event: BlockStored) -> None:
        self.blocks_stored += 1
        self._stored_s[event.key] = event.time_s

    def _evicted(self, event: BlockEvicted) -> None:
        self.blocks_evicted += 1
        since_s = self._stored_s.pop(event.key, None)
        if since_s is not None:
            self.spreads.block_lifetime.observe(event.time_s - since_s)

    def _audited(self, event: Audited) -> None:
        self.num_audits += 1
        self.num_violations += len(event.violations)

    def _ready(self, event: EngineReady) -> None:
        self.num_ready += 1

    def _lost(self, event: EngineLost) -> None:
        """Whatever was on its way ended with the engine; the next one begins with blank blocks."""
        for course in self._courses.values():
            self.finished[FinishReason.ERROR] += course.choices_left
            self.errors[ENGINE_LOST] += course.choices_left
            for choice in course.unfinished():
                self._timed(course, choice, event.time_s)
        self._courses.clear()
        self._stored_s.clear()
        self.gauges = Stepped(event.time_s, self.gauges.step, 0, 0, 0, self.num_blocks, 0, 0, {})
        self.waiting = {}
        self.num_stalled = 0
        self.movements.lost()
        self.steered = None
        self.num_lost += 1

    def _stepped(self, event: Stepped) -> None:
        self.gauges = event
        self.waiting = dict(event.waiting)
        if event.num_tokens or not event.num_running + event.num_waiting:
            self.num_stalled = 0
        if event.num_tokens:
            step_s = sum(event.timings_s.values())
            self.num_steps += 1
            self.spreads.step_tokens.observe(event.num_tokens)
            self.spreads.step_time.observe(step_s)
            self.drained.note(event.num_tokens, step_s)
        for phase, seconds in event.timings_s.items():
            self.phase_s[phase] += seconds
