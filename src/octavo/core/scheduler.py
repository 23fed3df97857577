"""Scheduler: what runs next. `plan` decides, a backend computes, `commit` takes note; nothing else changes the state.

One step, in the order in which its budget is spent:

    1. decodes    every running choice with one token left, in order
    2. prefills   running prompts that are half computed, in order
    3. newcomers  waiting choices, in order: prefix hit, admission, first chunk
    4. top-up     what nobody asked for goes to the half-computed prompts

A running choice that lacks blocks takes them from those behind it in the order, never from those ahead. So the first in
the order always advances, and since nobody is accepted who could not finish alone, everybody finishes.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from octavo.core.budget import Later, Need, Never, StepBudget, Terms, judge, num_blocks_for
from octavo.core.choice import Choice
from octavo.core.claims import Claims
from octavo.core.events import (
    Admitted,
    BlockEvicted,
    BlockStored,
    Event,
    Finished,
    Generated,
    Preempted,
    PromptScored,
    Queued,
    Refused,
    Stepped,
)
from octavo.core.hashing import HASHES, KeyChain, root_key
from octavo.core.lease import Lease
from octavo.core.plan import BlockCopy, ScoredToken, StepPlan, StepResult, Work, WorkResult, check_result
from octavo.core.policies import CHUNKS, RANKS, VICTIMS
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.request import ChoiceState, Move, Request
from octavo.core.types import FinishReason, Limits, Load, RequestId, TokenId

MAX_PASSED = 64
"""A choice that waits for blocks lets at most this many others pass; then the queue behind it waits too."""
LOOKAHEAD = 32
"""Choices that one plan looks past at most, because they wait for blocks, a turn, or each other."""

RUNNING = ChoiceState.RUNNING  # a name of its own: the innermost loops ask for it
_order = attrgetter("order")
_rank = attrgetter("rank")
_T = TypeVar("_T")


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
        hash_algorithm: str = "sha256",
        victim: str = "least_work_lost",
        chunk: str = "share",
        watermark: float = 0.01,
    ) -> None:
        """`fingerprint` names the model in block keys; `watermark`: the share of the pool that newcomers leave free."""
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.index = PrefixIndex()
        self.running: list[Choice] = []
        """Those who hold blocks, in order."""
        self.waiting: list[Choice] = []
        """Those who have none, in order: new ones and preempted ones."""
        self.requests: dict[RequestId, tuple[Choice, ...]] = {}
        """All choices of each live request."""
        self.claims = Claims(limits.block_size)
        self.in_flight: StepPlan | None = None
        self._rank = _named("scheduling_policy", RANKS, limits.scheduling_policy)
        self._victim = _named("victim", VICTIMS, victim)
        self._chunk = _named("chunk", CHUNKS, chunk)
        self._digest = _named("hash_algorithm", HASHES, hash_algorithm)
        self._fingerprint = fingerprint
        self._watermark = int(limits.num_blocks * watermark)
        self._caching = limits.enable_prefix_caching
        self._block_size = limits.block_size
        self._serial = 0
        self._step = 0
        self._granted: list[Choice] = []
        self._flight: list[Choice] = []
        self._any_finished = False
        self._events: list[Event] = []
        self._prefix_queries = 0
        self._prefix_hits = 0

    # ---- what is asked and told from outside ----

    @property
    def has_work(self) -> bool:
        """Is anything queued or running? Then, and only then, `plan` has work in it."""
        return bool(self.running or self.waiting)

    def load(self) -> Load:
        return Load(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_waiting_tokens=sum(len(choice.tokens) for choice in self.waiting),
            blocks_blank=self.pool.num_blank,
            blocks_cached=self.pool.num_cached,
            blocks_leased=self.pool.num_leased,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
        )

    def submit(self, request: Request, now: float) -> tuple[Event, ...]:
        """Queues a request, or refuses it for good: then it left no trace."""
        terms = judge(request, self.limits)
        if request.request_id in self.requests:
            terms = Never("duplicate_id", f"a request with the id {request.request_id!r} is still live")
        if isinstance(terms, Never):
            self._events.append(Refused(request.request_id, now, terms.code, terms.message))
            return self._drain(now)
        choices = self._choices_of(request, terms)
        self.requests[request.request_id] = choices
        insort(self.waiting, choices[0], key=_order)
        self._events.append(Queued(request.request_id, now, len(request.prompt), request.params.n))
        return self._drain(now)

    def _choices_of(self, request: Request, terms: Terms) -> tuple[Choice, ...]:
        eos = () if request.params.ignore_eos else self.limits.eos_token_ids
        stop_ids = frozenset(eos + request.params.stop_token_ids)
        root = root_key(self._digest, request.namespace, self._fingerprint)
        self._serial += 1
        return tuple(
            Choice(
                request,
                index,
                rank=self._rank(request),
                serial=self._serial,
                max_len=terms.max_len,
                stop_ids=stop_ids,
                lease=self._new_lease(()),
                chain=KeyChain(self._digest, root, self._block_size),
            )
            for index in range(request.params.n)
        )

    def cancel(self, request_id: RequestId, now: float, choice: int | None = None) -> tuple[Event, ...]:
        """Ends a request, or one choice of it, in whatever state it is and frees its blocks, at once.

        What is unknown, or over, is ignored. Where a step with it is in flight, its part of the result will be dropped.
        One that ends before the prompt is computed has nothing drawn for it, and the others go on as they would.
        """
        if choice is None:
            self._end_request(request_id, FinishReason.ABORT, now)
        else:
            self._end_choice(request_id, choice, now)
        self._sweep()
        return self._drain(now)

    def reset_prefix_cache(self, now: float) -> tuple[Event, ...] | None:
        """Forgets every cached block and starts the hit counters anew; None, and no change, while blocks are held."""
        if self.pool.num_leased:
            return None
        for block in self.pool.drop_cached():
            self.index.forget(block)
        self._prefix_queries = self._prefix_hits = 0
        return self._drain(now)

    # ---- plan ----

    def plan(self, now: float) -> StepPlan:
        """The next step. Without work, and then not in flight, only where there is nothing to do."""
        if self.in_flight is not None:
            raise RuntimeError(f"step {self.in_flight.step} is in flight: commit it or fail it first")
        self._granted.clear()
        budget = StepBudget(tokens=self.limits.max_num_batched_tokens)
        prefills = self._grant_decodes(budget, now)
        num_decodes = len(self._granted)
        self._grant_prefills(prefills, budget, now)
        if self.waiting and not budget.num_preempted:
            self._fund_newcomers(budget)
            self._admit_waiting(budget, now)
        self._top_up(self._granted[num_decodes:], budget)
        return self._seal(now)

    def _grant_decodes(self, budget: StepBudget, now: float) -> list[Choice]:
        """One token for each running choice that has one left; returns the others."""
        prefills: list[Choice] = []
        granted = self._granted
        for choice in tuple(self.running):
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
        """What newcomers may take: running prompts keep their turn, and the blocks that they will still need."""
        short = [c for c in self.running if c.granted < len(c.tokens) - c.computed]
        promised = sum([c.lease.num_missing(c.num_left - c.granted) for c in short])
        budget.seqs = self.limits.max_num_seqs - sum([c.width for c in self.running])
        budget.partials = self.limits.max_num_partial_prefills - sum([c.num_left > 1 for c in short])
        budget.blocks = self.pool.num_free - promised

    def _admit_waiting(self, budget: StepBudget, now: float) -> None:
        """Starts waiting choices in order, and past blocked ones within bounds: so that nothing stalls, or starves."""
        blocked: list[Choice] = []
        position = 0
        while position < min(len(self.waiting), LOOKAHEAD) and budget.tokens > 0:
            choice = self.waiting[position]
            if (budget.seqs < 1 or budget.blocks < 1) and choice.rank >= self.running[-1].rank:
                break  # everybody needs a slot and a block, and from here on nobody may displace for them
            lacks = self._try_start(choice, budget, now)
            if lacks is None:
                for other in blocked:
                    other.passed += 1
                continue
            position += 1
            if lacks.resource in ("blocks", "seqs"):
                blocked.append(choice)
                if choice.passed >= MAX_PASSED:
                    break

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
        self._note_cache_changes(now)
        plan = StepPlan(self._step + 1, work, copies)
        if work:
            self._step, self._flight, self.in_flight = plan.step, flight, plan
        return plan

    # ---- chunks ----

    def _chunk_of(self, choice: Choice, budget: StepBudget) -> int:
        others_wait = len(self.waiting) > (choice.state is not RUNNING)
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
        if choice.preempted_in == self._step + 1:
            return Later("turn", 1, 0)
        hit = self._look_up(choice)
        if self._reads_cache(choice) and self.claims.is_in_work(choice, len(hit)):
            return Later("block_in_work", 1, 0)
        lacks = self._try_enter(choice, hit, budget, now)
        while lacks is not None and self._displace(choice, lacks, budget, now):
            lacks = self._try_enter(choice, hit, budget, now)
        return lacks

    def _try_enter(self, choice: Choice, hit: tuple[CachedBlock, ...], budget: StepBudget, now: float) -> Later | None:
        """With the whole hit, or else without its last block: copying that one takes a block more than computing it."""
        lacks = self._enter(choice, hit, budget, now)
        if lacks is not None and lacks.resource == "blocks" and self._covers_all(choice, hit):
            lacks = self._enter(choice, hit[:-1], budget, now)
        return lacks

    def _enter(self, choice: Choice, hit: tuple[CachedBlock, ...], budget: StepBudget, now: float) -> Later | None:
        choice.computed = min(len(hit) * self._block_size, len(choice.tokens) - 1)
        need = Need(choice.num_left, self._chunk_of(choice, budget), self._num_blocks_needed(choice, hit), choice.width)
        admission = budget.try_admit(need, keep_free=self._watermark if self.running else 0)
        if isinstance(admission, Later):
            choice.computed = 0
            return admission
        self._start(choice, hit, admission.num_tokens, now)
        return None

    def _num_blocks_needed(self, choice: Choice, hit: tuple[CachedBlock, ...]) -> int:
        """Free blocks that all its known tokens take: new ones, cached ones that it revives, and a copied tail."""
        refs = self.pool.refs
        num_revived = sum([not refs[entry.block] for entry in hit])
        num_new = num_blocks_for(len(choice.tokens), self._block_size) - len(hit)
        return num_new + num_revived + self._covers_all(choice, hit)

    def _covers_all(self, choice: Choice, hit: tuple[CachedBlock, ...]) -> bool:
        """Is every known token cached? The last one is computed again all the same, for its logits."""
        return len(hit) * self._block_size == len(choice.tokens)

    def _start(self, choice: Choice, hit: tuple[CachedBlock, ...], num_tokens: int, now: float) -> None:
        num_cached, resumed = choice.computed, choice.state is ChoiceState.PREEMPTED
        choice.move(Move.ADMIT)
        choice.passed = 0
        choice.lease = self._new_lease(hit, num_cached)
        choice.next_full = (num_cached // self._block_size + 1) * self._block_size
        copies = choice.lease.append_slots(num_tokens)
        if copies is None:
            raise RuntimeError(f"{choice.request_id} was admitted without the blocks for its first chunk")
        self._grant(choice, num_tokens, copies)
        self.claims.renew(choice)
        self.waiting.remove(choice)
        insort(self.running, choice, key=_order)
        self._events.append(Admitted(choice.request_id, choice.index, now, num_cached, resumed))
        if not resumed and self._reads_cache(choice):
            self._prefix_queries += choice.prompt_len
            self._prefix_hits += num_cached

    def _new_lease(self, hit: Sequence[CachedBlock], num_slots: int = 0) -> Lease:
        return Lease.on_hit(self.pool, self.index, self._block_size, hit, num_slots)

    # ---- prefix cache ----

    def _reads_cache(self, choice: Choice) -> bool:
        return self._caching and not choice.scores_prompt

    def _look_up(self, choice: Choice) -> tuple[CachedBlock, ...]:
        if self._caching:
            choice.chain.extend(choice.tokens)
        return self.index.match(choice.chain) if self._reads_cache(choice) else ()

    def _publish(self, choice: Choice) -> None:
        """Makes the blocks that are now full findable, and moves on to the next one."""
        choice.next_full = (choice.computed // self._block_size + 1) * self._block_size
        if self._caching:
            choice.chain.extend(choice.tokens)
            choice.lease.publish(choice.chain, choice.computed)
            self.claims.renew(choice)

    # ---- preemption ----

    def _make_room(
        self, choice: Choice, num_tokens: int, budget: StepBudget, now: float
    ) -> tuple[BlockCopy, ...] | None:
        """Slots for a running choice, at the cost of those behind it; None where there is nobody left behind it."""
        while (copies := choice.lease.append_slots(num_tokens)) is None:
            behind = self.running[bisect_right(self.running, choice.order, key=_order) :]
            if not behind:
                return None
            victim = self._victim([c for c in behind if c.rank == behind[-1].rank])
            need, have = choice.lease.num_missing(num_tokens), self.pool.num_free
            reason = (
                f"request {choice.request_id} needs {need} blocks for its next {num_tokens} tokens, {have} are free"
            )
            self._preempt(victim, reason, budget, now)
        return copies

    def _displace(self, choice: Choice, lacks: Later, budget: StepBudget, now: float) -> bool:
        """Preempts one running choice of a higher rank, if all of those together have what a waiting one lacks."""
        lower = self.running[bisect_right(self.running, choice.rank, key=_rank) :]
        if lacks.resource == "seqs":
            supply = sum([c.width for c in lower])
        elif lacks.resource == "blocks":
            supply = sum([len(c.lease.table) for c in lower])
        else:
            return False
        if not lower or lacks.have + supply < lacks.need:
            return False
        victim = self._victim([c for c in lower if c.rank == lower[-1].rank])
        reason = f"request {choice.request_id} of a lower rank needs {lacks.need} {lacks.resource}, has {lacks.have}"
        self._preempt(victim, reason, budget, now)
        self._fund_newcomers(budget)
        return True

    def _preempt(self, victim: Choice, reason: str, budget: StepBudget, now: float) -> None:
        """Takes the lease of a running choice and queues it again, at its old place.

        What this plan had granted to it goes back into the budget.
        """
        self._events.append(Preempted(victim.request_id, victim.index, now, victim.computed, reason))
        victim.move(Move.PREEMPT)
        self._let_go(victim)
        budget.tokens += victim.granted
        budget.num_preempted += 1
        victim.granted = victim.computed = 0
        victim.copies = ()
        victim.preempted_in = self._step + 1
        self.running.remove(victim)
        insort(self.waiting, victim, key=_order)

    def _let_go(self, choice: Choice) -> None:
        choice.lease.release()
        self.claims.drop(choice)

    # ---- commit ----

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Event, ...]:
        """Takes note of what a plan's work gave: the events since the last call, in order, `Stepped` last.

        Raises ValueError, having changed nothing, where `result` is not a result of the plan in flight.
        """
        self._check_flight(plan)
        check_result(plan, result)
        self.in_flight = None
        for choice, work, outcome in zip(self._flight, plan.work, result.results, strict=True):
            choice.granted = 0
            if choice.state is not RUNNING:
                continue
            if outcome.error is not None:
                self._end_request(choice.request_id, FinishReason.ERROR, now, outcome.error)
                continue
            choice.computed += len(work.tokens)
            if choice.computed >= choice.next_full:
                self._publish(choice)
            if work.targets:
                self._note_scores(choice, work, outcome, now)
            if work.samples:
                if len(work.samples) == 1:
                    self._append(choice, outcome.sampled, now)
                else:
                    self._fork(choice, work, outcome, now)
        return self._land(plan.num_tokens, result.timings_s, now)

    def fail(self, plan: StepPlan, message: str, now: float) -> tuple[Event, ...]:
        """Ends the requests of a failed step with ERROR and frees their blocks; none of what it wrote is published."""
        self._check_flight(plan)
        self.in_flight = None
        for choice in self._flight:
            choice.granted = 0
            self._end_request(choice.request_id, FinishReason.ERROR, now, message)
        return self._land(0, {}, now)

    def _note_scores(self, choice: Choice, work: Work, outcome: WorkResult, now: float) -> None:
        choice.scored = work.start + len(work.targets)
        self._events.append(PromptScored(choice.request_id, now, outcome.scored))

    def _fork(self, choice: Choice, work: Work, outcome: WorkResult, now: float) -> None:
        """The prompt is computed: its other choices start from there, on the same blocks, each with its own token.

        Those that were cancelled while this step ran have a token too: it is dropped.
        """
        choices = self.requests[choice.request_id]
        for index in choice.draws_for:
            if index != choice.index:
                choices[index].forked(choice)
                insort(self.running, choices[index], key=_order)
        choice.draw_for((choice.index,))
        for sample, token in zip(work.samples, outcome.sampled, strict=True):
            if choices[sample.choice].state is RUNNING:
                self._append(choices[sample.choice], (token,), now)

    def _append(self, choice: Choice, sampled: tuple[ScoredToken, ...], now: float) -> None:
        """One more generated token, which may be the last."""
        token, tokens = sampled[0].token, choice.tokens
        tokens.append(token)
        self._events.append(Generated(choice.request_id, choice.index, now, sampled))
        if token in choice.stop_ids:
            self._finish(choice, FinishReason.STOP, now, stop_token=token)
        elif len(tokens) >= choice.max_len:
            self._finish(choice, FinishReason.LENGTH, now)

    def _end_request(self, request_id: RequestId, reason: FinishReason, now: float, message: str | None = None) -> None:
        for choice in self.requests.get(request_id, ()):
            if choice.state is not ChoiceState.FINISHED:
                self._finish(choice, reason, now, message=message)

    def _end_choice(self, request_id: RequestId, index: int, now: float) -> None:
        choices = self.requests.get(request_id, ())
        if index in range(len(choices)) and choices[index].state is not ChoiceState.FINISHED:
            leader = next((choice for choice in choices if choice.width > 1), None)
            if leader is not None:
                self._leave(leader, index)
            self._finish(self.requests[request_id][index], FinishReason.ABORT, now)

    def _leave(self, leader: Choice, index: int) -> None:
        """Choice `index` gets no token of the common prompt. Where it is the one that computes it, the next does."""
        leader.draw_for(tuple([other for other in leader.draws_for if other != index]))
        if leader.index == index:
            choices = list(self.requests[leader.request_id])
            heir = leader.draws_for[0]
            leader.swap_numbers(choices[heir])
            choices[index], choices[heir] = choices[heir], leader
            self.requests[leader.request_id] = tuple(choices)

    def _finish(
        self,
        choice: Choice,
        reason: FinishReason,
        now: float,
        *,
        stop_token: TokenId | None = None,
        message: str | None = None,
    ) -> None:
        if choice.state in (ChoiceState.WAITING, ChoiceState.PREEMPTED):
            self.waiting.remove(choice)
        choice.move(Move.FINISH)
        choice.granted = 0
        self._any_finished = True
        self._let_go(choice)
        self._events.append(Finished(choice.request_id, choice.index, now, reason, stop_token, message))
        if all([other.state is ChoiceState.FINISHED for other in self.requests[choice.request_id]]):
            del self.requests[choice.request_id]

    def _land(self, num_tokens: int, timings_s: dict[str, float], now: float) -> tuple[Event, ...]:
        """The events of a step that is over, with the gauges as the last one."""
        self._flight.clear()
        self._sweep()
        self._note_cache_changes(now)
        pool = self.pool
        gauges = (pool.num_blank, pool.num_cached, pool.num_leased)
        stepped = Stepped(now, self._step, len(self.running), len(self.waiting), num_tokens, *gauges, timings_s)
        self._events.append(stepped)
        return self._drain(now)

    def _sweep(self) -> None:
        """Finished choices leave the running ones here, all at once."""
        if self._any_finished:
            self._any_finished = False
            self.running = [choice for choice in self.running if choice.state is RUNNING]

    def _note_cache_changes(self, now: float) -> None:
        for change in self.index.drain():
            entry = change.entry
            if change.stored:
                parent = entry.parent.key if entry.parent else None
                self._events.append(BlockStored(now, entry.key, parent, len(entry.tokens)))
            else:
                self._events.append(BlockEvicted(now, entry.key))

    def _drain(self, now: float) -> tuple[Event, ...]:
        self._note_cache_changes(now)
        events = tuple(self._events)
        self._events.clear()
        return events

    def _check_flight(self, plan: StepPlan) -> None:
        if self.in_flight is None or plan is not self.in_flight:
            flying = "no step" if self.in_flight is None else f"step {self.in_flight.step}"
            raise ValueError(f"step {plan.step} is not in flight: {flying} is")


def _named(what: str, table: Mapping[str, _T], name: str) -> _T:
    if name not in table:
        raise ValueError(f"{what} must be one of {', '.join(sorted(table))}, got {name!r}")
    return table[name]
