"""Scheduler: what runs next. `plan` decides, a backend computes, `commit` takes note; nothing else changes the state.

One step, in the order in which its budget is spent:

    1. decodes    every running choice with one token left, in order
    2. prefills   running prompts that are half computed, in order
    3. newcomers  waiting choices, in order: prefix hit, admission, first chunk
    4. top-up     what nobody asked for goes to the half-computed prompts
    5. drafts     what is left still goes to guesses behind the decodes

A running choice that lacks blocks takes them from those behind it in the order, never from those ahead. So the first in
the order always advances, and since nobody is accepted who could not finish alone, everybody finishes.
"""

from collections.abc import Iterable

from octavo.core.allocation import ALLOCATIONS, Reservations, need_of, supply
from octavo.core.beam_group import BeamGroup
from octavo.core.budget import Later, Need, StepBudget, Terms
from octavo.core.cache import Hit, KvCache
from octavo.core.choice import Choice
from octavo.core.drafting import Drafting
from octavo.core.endings import Endings
from octavo.core.events import (
    Admitted,
    Computed,
    Drafted,
    Embedded,
    Event,
    Generated,
    Preempted,
    PromptScored,
    generated,
)
from octavo.core.eviction import EVICTIONS
from octavo.core.gauges import load_of, stepped
from octavo.core.hashing import HASHES, BlockHash
from octavo.core.plan import BlockCopy, ScoredToken, StepPlan, StepResult, Work, WorkResult, check_result
from octavo.core.policies import CHUNKS, RANKS, VICTIMS, beside_decodes, named, spared
from octavo.core.ports import Guide
from octavo.core.reception import Reception, queued
from octavo.core.request import ChoiceState, Request
from octavo.core.roster import Roster
from octavo.core.throttle import Throttle
from octavo.core.tiers import Report, Tier
from octavo.core.turns import TURNS
from octavo.core.types import FinishReason, Limits, Load, RequestId, TokenId
from octavo.core.waits import Waits
from octavo.core.watchdog import Watchdog

MAX_PASSED = 64
"""A choice that waits for blocks lets at most this many others pass; then the queue behind it waits too."""
BAD_STRUCTURE = "structured_outputs"
"""The code of a `Finished` whose structured output could not be had, or let the choice go no further."""
LOOKAHEAD = 32
"""Choices that one plan looks past at most, because they wait for blocks, a turn, or each other."""

RUNNING = ChoiceState.RUNNING  # a name of its own: the innermost loops ask for it


class Scheduler:
    """Owns the queue, the running choices and their blocks, and turns them into plans.

    Pure policy: no clock, no I/O, no threads. Each method returns the events that were not returned before, in order.
    At most one plan is in flight: `plan`, then `commit` or `fail` with it; `submit` and `cancel` may come at any time.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        fingerprint: bytes = b"",
        block_hash: BlockHash = HASHES["sha256"],
        victim: str = "least_work_lost",
        chunk: str = "share",
        watermark: float = 0.01,
        tier: Tier | None = None,
    ) -> None:
        """`fingerprint` names the model in block keys; `watermark`: the share of the pool that newcomers leave free;
        `tier`: where evicted blocks go."""
        self.limits = limits
        eviction = named("eviction_policy", EVICTIONS, limits.eviction_policy)
        self.cache = KvCache(limits, block_hash, eviction, fingerprint, tier)
        self.roster = Roster(named("scheduling_policy", TURNS, limits.scheduling_policy)(limits))
        self.in_flight: StepPlan | None = None
        self._victim = named("victim", VICTIMS, victim)
        self._chunk = named("chunk", CHUNKS, chunk)
        self._reservations = Reservations(named("block_manager", ALLOCATIONS, limits.block_manager), self.cache)
        self.watchdog = Watchdog()
        self.waits = Waits()
        self._watermark = int(limits.num_blocks * watermark)
        self.reception = Reception(limits, named("scheduling_policy", RANKS, limits.scheduling_policy))
        self._drafting = None if limits.speculation is None else Drafting(limits.speculation, limits)
        self.step = 0
        """The number of the last plan that had work."""
        self.throttled: Throttle | None = None
        """What `throttle` was last told."""
        self._granted: list[Choice] = []
        self._flight: list[Choice] = []
        self._events: list[Event] = []
        self._endings = Endings(self.roster, self.cache, self._reservations, self.reception, self._events)

    # ---- what is asked and told from outside ----

    @property
    def has_work(self) -> bool:
        """Is anything queued or running, and not only held? Then `plan` has work in it, or waits for the tier."""
        return bool(self.roster.running or self.roster.waiting)

    @property
    def waits_for_tier(self) -> bool:
        """Are blocks being fetched? Then a plan may have no work, and `note` will change that."""
        return self.cache.tier is not None and bool(self.cache.tier.loading)

    def load(self) -> Load:
        return load_of(self.cache, self.roster)

    def throttle(self, throttle: Throttle) -> None:
        """From the next plan on, steps keep within this too, as far as that stops nobody. Who runs goes on."""
        self._check_landed()
        self.throttled = throttle

    @property
    def _most_seqs(self) -> int:
        """Choices that may run now."""
        if self.throttled is None:
            return self.limits.max_num_seqs
        widths = (choice.width for choice in self.roster.waiting)
        return min(self.limits.max_num_seqs, self.throttled.most_seqs(self.roster.num_seqs, widths))

    def submit(self, request: Request, now: float) -> tuple[Event, ...]:
        """Queues a request, or refuses it, for good or until there is room in the queue: then it left no trace.

        One with `structured_outputs` is held until `guide` or `give_up` is called for it.
        """
        terms = self.reception.receive(request, self.roster, self.cache, self._most_seqs)
        if isinstance(terms, Terms):
            choices = self.reception.choices_of(request, terms, self.cache)
            self.roster.enter(choices)
            self.waits.enter(choices[0], now)
            self._events.append(queued(request, now))
        else:
            self._events.append(self.reception.refuse(request, terms, now))
        return self._drain(now)

    def guide(self, request_id: RequestId, guide: Guide, now: float) -> tuple[Event, ...]:
        """What a held request lacked: now it waits in its place. One that is not held is ignored."""
        choice = self.roster.release(request_id)
        if choice is not None:
            choice.guide = guide
            self.waits.enter(choice, now)
        return self._drain(now)

    def give_up(self, request_id: RequestId, message: str, now: float) -> tuple[Event, ...]:
        """Ends a held request whose structured output cannot be had. One that is not held is ignored."""
        if self.roster.held_choice(request_id) is not None:
            self._endings.end_request(request_id, FinishReason.ERROR, now, message, BAD_STRUCTURE)
        self.roster.sweep()
        return self._drain(now)

    def cancel(self, request_id: RequestId, now: float, choice: int | None = None) -> tuple[Event, ...]:
        """Ends a request, or one choice of it, in whatever state it is and frees its blocks, at once.

        What is unknown, or over, is ignored. Where a step with it is in flight, its part of the result will be dropped.
        One that ends before the prompt is computed has nothing drawn for it, and the others go on as they would.
        """
        if choice is None:
            self._endings.end_request(request_id, FinishReason.ABORT, now)
        else:
            self._endings.end_choice(request_id, choice, now)
        self.roster.sweep()
        return self._drain(now)

    def reset_prefix_cache(self, now: float) -> tuple[Event, ...] | None:
        """Forgets every cached block and starts the hit counters anew; None, and no change, while blocks are held."""
        return self._drain(now) if self.cache.clear() else None

    def note(self, reports: Iterable[Report], now: float) -> tuple[Event, ...]:
        """Takes note of what became of orders to the lower tier. What is reported twice, or too late, is ignored."""
        if self.cache.tier is not None:
            for report in reports:
                self.cache.tier.note(report)
        self._events += self.cache.told(now)
        return self._drain(now)

    # ---- plan ----

    def plan(self, now: float) -> StepPlan:
        """The next step. Without work, and then not in flight, only where nothing can be done but its transfers."""
        self._check_landed()
        self._granted.clear()
        self.reception.began(now)
        self._events += self.cache.expire_pins(now)
        if self.cache.tier is not None:
            self.cache.tier.expire(now)
        budget = StepBudget(tokens=self.limits.max_num_batched_tokens, most_seqs=self._most_seqs)
        prefills = self._grant_decodes(budget, now)
        num_decodes = len(self._granted)
        least, whole = self.limits.prefill_tokens_beside_decodes, self.limits.max_num_batched_tokens
        waiting = self.roster.waiting
        waited_s = self.waits.for_tokens_s(waiting[0], now) if waiting else 0.0
        budget.tokens = beside_decodes(budget.tokens, num_decodes, least, waited_s, whole)
        if self.throttled is not None:
            budget.tokens = self.throttled.tokens_left(budget.tokens, num_decodes, self.limits.block_size)
        self._grant_prefills(prefills, budget, now)
        if self.roster.waiting and not budget.num_preempted:
            self._fund_newcomers(budget)
            self._admit_waiting(budget, now)
        else:
            self.waits.planned((), len(self.roster.waiting), "preemption", now)
        self._top_up(self._granted[num_decodes:], budget)
        if self._drafting is not None:
            spare = self.cache.pool.num_free - len(self.roster.running) - self._watermark
            self._drafting.extend([c for c in self._granted[:num_decodes] if c.granted], budget, spare, now)
        stuck = not self.waits_for_tier and not any(choice.granted for choice in self._granted)
        if stuck and self._park_beams(budget, now):
            return self.plan(now)
        return self._seal(now)

    def stalled(self, now: float) -> tuple[Event, ...]:
        """To be told when a plan has no work, though there is work, and nothing that is awaited: it may not happen."""
        event = self.watchdog.stalled(self.load(), self.waits.counts, now)
        if event is not None:
            self._events.append(event)
        return self._drain(now)

    def plan_idle(self, num_blocks: int, now: float) -> StepPlan:
        """A plan without work, for when nothing runs: a persistent tier stores `num_blocks` that only the pool has."""
        self._check_landed()
        if self.cache.tier is not None:
            self.cache.tier.save(num_blocks)
        return self._seal(now)

    def _grant_decodes(self, budget: StepBudget, now: float) -> list[Choice]:
        """One token for each running choice that has one left; returns the others."""
        prefills: list[Choice] = []
        granted = self._granted
        for choice in tuple(self.roster.running):
            if len(choice.tokens) - choice.computed != 1:
                prefills.append(choice)
            elif budget.tokens > 0 and choice.state is RUNNING:
                copies = choice.lease.append_slots(1)
                if copies is None:
                    copies = self._make_room(choice, 1, budget, now)
                if copies is not None:
                    choice.granted = 1
                    choice.copies = copies
                    budget.tokens -= 1
                    granted.append(choice)
        return prefills

    def _grant_prefills(self, prefills: list[Choice], budget: StepBudget, now: float) -> None:
        """The next chunk for each half-computed prompt."""
        for choice in prefills:
            if choice.state is RUNNING:
                num_tokens = self._chunk_of(choice, budget)
                if num_tokens and (copies := self._make_room(choice, num_tokens, budget, now)) is not None:
                    self._grant(choice, num_tokens, copies)
                    budget.tokens -= num_tokens

    def _fund_newcomers(self, budget: StepBudget) -> None:
        """What newcomers may take: half-computed prompts keep their turn, and all who run what is reserved for them."""
        running = self.roster.running
        short = [c for c in running if c.granted < len(c.tokens) - c.computed]
        budget.seqs = budget.most_seqs - self.roster.num_seqs
        budget.partials = self.limits.max_num_partial_prefills - sum([c.num_left > 1 for c in short])
        budget.blocks = self.cache.pool.num_unpromised

    def _admit_waiting(self, budget: StepBudget, now: float) -> None:
        """Starts waiting choices in turn, and past blocked ones within bounds: so that nothing stalls, or starves."""
        running = self.roster.running
        asked: list[Choice] = []
        for choice in self.roster.turns.ask(self.roster.waiting):
            short = budget.shortage()
            if len(asked) >= LOOKAHEAD or (short and choice.rank >= running[-1].rank):
                break  # everybody needs a token, a slot and a block, and from here on nobody may displace for them
            lacks = self._try_start(choice, budget, now)
            if lacks is None:
                for other in asked:
                    other.wait.passed += other.wait.lacks.resource in ("blocks", "seqs")
                continue
            asked.append(choice)
            choice.wait.lacks = lacks
            if lacks.resource in ("blocks", "seqs") and choice.wait.passed >= MAX_PASSED:
                break
        self.waits.planned(asked, len(self.roster.waiting), budget.shortage(), now)

    def _top_up(self, choices: Iterable[Choice], budget: StepBudget) -> None:
        """Gives what is left of the step to half-computed prompts, if the blocks for it are free."""
        for choice in choices:
            extra = min(choice.chunk_limit(), self._longest_chunk(choice)) - choice.granted
            extra = min(extra, budget.tokens)
            if extra > 0 and choice.granted and choice.lease.append_slots(extra) is not None:
                choice.granted += extra
                budget.tokens -= extra

    def _seal(self, now: float) -> StepPlan:
        flight = [choice for choice in self._granted if choice.granted]
        work = tuple([choice.work() for choice in flight])
        copies = tuple([copy for choice in flight if choice.copies for copy in choice.copies])
        events, transfers = self.cache.seal(now)
        self._events += events
        plan = StepPlan(self.step + 1, work, copies, transfers)
        if work:
            self.step, self._flight, self.in_flight = plan.step, flight, plan
            self.watchdog.advanced()
        return plan

    # ---- chunks ----

    def _chunk_of(self, choice: Choice, budget: StepBudget) -> int:
        others_wait = len(self.roster.waiting) > (choice.state is not RUNNING)
        chunk = self._chunk(choice.num_left, budget.tokens, others_wait)
        return min(chunk, choice.chunk_limit(), self._longest_chunk(choice))

    def _longest_chunk(self, choice: Choice) -> int:
        return self.limits.long_prefill_token_threshold or choice.num_left

    def _grant(self, choice: Choice, num_tokens: int, copies: tuple[BlockCopy, ...]) -> None:
        choice.granted = num_tokens
        choice.copies = copies
        self._granted.append(choice)

    # ---- admission ----

    def _try_start(self, choice: Choice, budget: StepBudget, now: float) -> Later | None:
        """Gives a waiting choice a lease and its first chunk, or says what it lacks."""
        if choice.wait.preempted_in == self.step + 1:
            return Later("turn", 1, 0)
        hit = self.cache.look_up(choice)
        if self.cache.is_in_work(choice, hit):
            return Later("block_in_work", 1, 0)
        hit = self.cache.with_loads(choice, hit, now)
        if hit is None:
            return Later("loading", 1, 0)
        lacks = self._try_enter(choice, hit, budget, now)
        while lacks is not None and self._displace(choice, lacks, budget, now):
            lacks = self._try_enter(choice, hit, budget, now)
        return lacks

    def _try_enter(self, choice: Choice, hit: Hit, budget: StepBudget, now: float) -> Later | None:
        """With the whole hit, or else without a copy: to hold a block beside its copy takes one more than computing."""
        lacks = self._enter(choice, hit, budget, now)
        if lacks is not None and lacks.resource == "blocks" and self.cache.copies(hit):
            lacks = self._enter(choice, self.cache.without_copy(choice, hit), budget, now)
        return lacks

    def _enter(self, choice: Choice, hit: Hit, budget: StepBudget, now: float) -> Later | None:
        choice.computed = hit.num_tokens
        choice.expected_len = self.reception.expected_len(choice)
        alone, chunk = not self.roster.running, self._chunk_of(choice, budget)
        num_blocks = self._reservations.num_blocks_asked(choice, hit, chunk, alone=alone)
        need = Need(choice.num_left, chunk, num_blocks, choice.width)
        admission = budget.try_admit(need, keep_free=0 if alone else self._watermark)
        if isinstance(admission, Later):
            choice.computed = 0
            return admission
        self._start(choice, hit, admission.num_tokens, now)
        budget.blocks = self.cache.pool.num_unpromised
        return None

    def _start(self, choice: Choice, hit: Hit, num_tokens: int, now: float) -> None:
        resumed = choice.state is ChoiceState.PREEMPTED
        miss = None if resumed else self.cache.why_missed(choice, hit, now)
        waited = self.waits.left(choice, now)
        self.roster.admit(choice)
        choice.wait.passed = 0
        self.cache.take(choice, hit)
        self._reservations.keep(choice)
        copies = choice.lease.append_slots(num_tokens)
        if copies is None:
            raise RuntimeError(f"{choice.request_id} was admitted without the blocks for its first chunk")
        self._grant(choice, num_tokens, copies)
        found = (hit.num_tokens, resumed, miss, hit.num_loaded, waited)
        self._events.append(Admitted(choice.request_id, choice.index, now, *found))
        if not resumed:
            self.cache.count(choice, hit)

    # ---- preemption ----

    def _make_room(
        self, choice: Choice, num_tokens: int, budget: StepBudget, now: float
    ) -> tuple[BlockCopy, ...] | None:
        """Slots for a running choice, at the cost of those behind it; None where there is nobody left behind it."""
        while (copies := choice.lease.append_slots(num_tokens)) is None:
            behind = self.roster.behind(choice)
            if not behind:
                return None
            victim = self._victim(spared([c for c in behind if c.rank == behind[-1].rank]))
            self._preempt(victim, need_of(choice, num_tokens, self.cache.pool.num_free), budget, now)
        return copies

    def _displace(self, choice: Choice, lacks: Later, budget: StepBudget, now: float) -> bool:
        """Reclaims what is kept for running choices of a higher rank, or else preempts one of them.

        Only if all of those together have what a waiting one lacks. True where it is worth asking again.
        """
        lower = self.roster.below(choice.rank)
        if not lower or lacks.have + supply(lower, lacks.resource) < lacks.need:
            return False
        if lacks.resource == "blocks" and self._reservations.reclaim(lower):
            self._fund_newcomers(budget)
            return True
        victim = self._victim(spared([c for c in lower if c.rank == lower[-1].rank]))
        reason = f"request {choice.request_id} of a lower rank needs {lacks.need} {lacks.resource}, has {lacks.have}"
        self._preempt(victim, reason, budget, now, "priority")
        self._fund_newcomers(budget)
        return True

    def _preempt(self, victim: Choice, reason: str, budget: StepBudget, now: float, cause: str = "blocks") -> None:
        """Takes the lease of a running choice and queues it again, at its old place.

        What this plan had granted to it goes back into the budget.
        """
        kept, why = self.cache.set_aside(victim)
        lost, reason = victim.computed - kept, f"{reason}; {why}" if why else reason
        victim.wait.num_preempted += 1
        told = (lost, reason, kept, cause, victim.wait.num_preempted)
        self._events.append(Preempted(victim.request_id, victim.index, now, *told))
        self.roster.preempt(victim)
        self.waits.enter(victim, now)
        budget.tokens += victim.granted
        budget.num_preempted += 1
        victim.granted = victim.computed = 0
        victim.copies = ()
        victim.wait.preempted_in = self.step + 1

    def _park_beams(self, budget: StepBudget, now: float) -> bool:
        """Takes the leases of beams that wait for others, where these cannot get any: nobody else can go on."""
        idle = [choice for choice in self.roster.running if choice.awaits_others]
        for choice in idle:
            self._preempt(choice, "other beams need its blocks, and it can wait without", budget, now, "beams")
        return bool(idle)

    # ---- commit ----

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Event, ...]:
        """Takes note of what a plan's work gave: the events since the last call, in order, `Stepped` last.

        Raises ValueError, having changed nothing, where `result` is not a result of the plan in flight.
        """
        self._check_flight(plan)
        check_result(plan, result)
        self.in_flight = None
        drafting = self._drafting
        for choice, work, outcome in zip(self._flight, plan.work, result.results, strict=True):
            num_tokens, choice.granted = choice.granted, 0
            if choice.state is not RUNNING:
                continue
            if drafting is not None and work.num_drafted:
                self._keep_foreseen(drafting, choice, outcome, now)
                continue
            if outcome.error is not None:
                self._endings.end_request(choice.request_id, FinishReason.ERROR, now, outcome.error, outcome.code)
                continue
            choice.computed += num_tokens
            if choice.computed >= choice.next_full:
                self._publish(choice)
            num_samples = len(work.samples)
            if num_tokens > 1 or not num_samples:
                self._events.append(Computed(choice.request_id, choice.index, now, num_tokens, choice.num_left))
            if work.targets:
                choice.noted = work.start + len(work.targets)
                self._events.append(PromptScored(choice.request_id, now, outcome.scored))
            if num_samples:
                if choice.beams is not None:
                    self._search(choice.beams, choice, outcome.sampled[0], now)
                elif num_samples == 1:
                    self._append(choice, outcome.sampled, now)
                else:
                    self._fork(choice, work, outcome, now)
            elif outcome.hidden_sum is not None:
                self._note_sum(choice, outcome.hidden_sum, now)
        num_tokens = plan.num_tokens
        if drafting is not None:
            drafting.end(num_tokens, now)
        return self._land(num_tokens, result.timings_s, now)

    def fail(self, plan: StepPlan, message: str, now: float) -> tuple[Event, ...]:
        """Ends the requests of a failed step with ERROR and frees their blocks; none of what it wrote is published."""
        self._check_flight(plan)
        self.in_flight = None
        for choice in self._flight:
            choice.granted = 0
            self._endings.end_request(choice.request_id, FinishReason.ERROR, now, message)
        return self._land(0, {}, now)

    def _publish(self, choice: Choice) -> None:
        """Blocks are full: they can be hit, and where a window gave others back, what is kept is counted anew."""
        if self.cache.publish(choice):
            self._reservations.renew(choice)

    def _note_sum(self, choice: Choice, total: bytes, now: float) -> None:
        """Hidden states were added up; with the last one's the embedding is known, and its request over."""
        choice.total, choice.noted = total, choice.computed
        if choice.noted == choice.prompt_len:
            self._events.append(Embedded(choice.request_id, now, total, choice.num_summed))
            self._endings.finish(choice, FinishReason.STOP, now)

    def _keep_foreseen(self, drafting: Drafting, choice: Choice, outcome: WorkResult, now: float) -> None:
        """The tokens of a step that ran ahead, as far as its guesses were right."""
        num_drafted = len(choice.draft)
        kept = drafting.keep(choice, outcome)
        if choice.computed >= choice.next_full:
            self._publish(choice)
        choice.lease.retract(choice.computed)
        if kept:
            self._events.append(Drafted(choice.request_id, choice.index, now, num_drafted, len(kept) - 1))
            self._events.append(Generated(choice.request_id, choice.index, now, kept))
            self._close(choice, kept[-1].token, now)

    def _fork(self, choice: Choice, work: Work, outcome: WorkResult, now: float) -> None:
        """The prompt is computed: its other choices start from there, on the same blocks, each with its own token.

        Those that were cancelled while this step ran have a token too: it is dropped.
        """
        choices = self.roster.requests[choice.request_id]
        for index in choice.draws_for:
            if index != choice.index:
                self.roster.fork(choices[index], choice)
        choice.draw_for((choice.index,))
        self._reservations.keep(*choices)
        for sample, token in zip(work.samples, outcome.sampled, strict=True):
            if choices[sample.choice].state is RUNNING:
                self._append(choices[sample.choice], (token,), now)

    def _search(self, beams: BeamGroup, choice: Choice, ranked: ScoredToken, now: float) -> None:
        """The candidates of one beam; with the last one's the search goes on, or is over and its results are told."""
        if not beams.note(choice, ranked):
            return
        beams.advance()
        if not beams.search.over:
            beams.seat_beams(self.roster, self.cache)
            self.waits.catch(beams.seats, now)
            self._reservations.keep(*beams.seats)
            return
        self._events += beams.results(now)
        for seat in beams.seats:
            self._endings.drop(seat)

    def _append(self, choice: Choice, sampled: tuple[ScoredToken, ...], now: float) -> None:
        """One more generated token, which may be the last."""
        token = sampled[0].token
        choice.tokens.append(token)
        self._events.append(generated(choice.request_id, choice.index, now, sampled))
        self._close(choice, token, now)

    def _close(self, choice: Choice, token: TokenId, now: float) -> None:
        """Ends a choice whose last token this is."""
        if token in choice.stop_ids:
            self._endings.finish(choice, FinishReason.STOP, now, stop_token=token)
        elif choice.guide is not None and self._ends_by_form(choice, choice.guide, token, now):
            return
        elif len(choice.tokens) >= choice.max_len:
            self._endings.finish(choice, FinishReason.LENGTH, now)

    def _ends_by_form(self, choice: Choice, guide: Guide, token: TokenId, now: float) -> bool:
        """Ends a choice whose text is complete with this token, or whose form lets it go no further."""
        guide.accept(token)
        if guide.complete:
            self._endings.finish(choice, FinishReason.STOP, now)
        elif guide.fault is not None:
            self._endings.end_request(choice.request_id, FinishReason.ERROR, now, guide.fault, BAD_STRUCTURE)
        return guide.complete or guide.fault is not None

    def _land(self, num_tokens: int, timings_s: dict[str, float], now: float) -> tuple[Event, ...]:
        """The events of a step that is over, with the gauges as the last one."""
        self._flight.clear()
        self.reception.ended(num_tokens, now)
        self.roster.sweep()
        self._events += self.cache.drain(now)
        self._events += self.cache.told(now)
        self._events.append(stepped(self.cache, self.roster, now, self.step, num_tokens, timings_s, self.waits.counts))
        return self._drain(now)

    def _drain(self, now: float) -> tuple[Event, ...]:
        self._events += self.cache.drain(now)
        events = tuple(self._events)
        self._events.clear()
        return events

    def _check_landed(self) -> None:
        if self.in_flight is not None:
            raise RuntimeError(f"step {self.in_flight.step} is in flight: commit it or fail it first")

    def _check_flight(self, plan: StepPlan) -> None:
        if self.in_flight is None or plan is not self.in_flight:
            flying = "no step" if self.in_flight is None else f"step {self.in_flight.step}"
            raise ValueError(f"step {plan.step} is not in flight: {flying} is")
