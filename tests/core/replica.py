"""One scheduler and one ledger, driven a move at a time, with the laws audited after each."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from octavo.backends.ledger import LedgerBackend
from octavo.core.audit import audit
from octavo.core.events import (
    Admitted,
    Embedded,
    Event,
    Finished,
    Generated,
    Preempted,
    PromptScored,
    Queued,
    Refused,
    Stepped,
)
from octavo.core.pins import PinOutcome, PinWish, room_for_pins
from octavo.core.plan import ScoredToken, StepPlan, StepResult, Transfers
from octavo.core.ports import BlockMemory, Guide
from octavo.core.request import ChoiceState, Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.tiers import Costs, Fetched, NotFetched, NotStored, Stored, Tier, TierLimits
from octavo.core.types import FinishReason, Limits, Pooling
from tests.core.words import word_guide


def limits(**changes: object) -> Limits:
    """Small limits: 12 blocks of 4 tokens, 8 token ids, everything else roomy. Greedy, so that blocks run short."""
    small = Limits(
        num_blocks=12, block_size=4, vocab_size=8, max_model_len=64, max_num_batched_tokens=64, block_manager="v1"
    )
    return replace(small, **changes)  # type: ignore[arg-type]


def request(
    name: str,
    prompt: tuple[int, ...] | list[int],
    *,
    priority: int = 0,
    namespace: bytes = b"",
    tenant: str = "",
    weight: int = 1,
    **params,
):
    """A greedy request, unless `params` say otherwise."""
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 4, **params})
    return Request(
        request_id=name,
        prompt=tuple(prompt),
        params=sampling,
        seed=7,
        priority=priority,
        namespace=namespace,
        tenant=tenant,
        weight=weight,
    )


def embedding(
    name: str,
    prompt: tuple[int, ...] | list[int],
    pooling: Pooling = Pooling.MEAN,
    *,
    priority: int = 0,
    namespace: bytes = b"",
    tenant: str = "",
) -> Request:
    return Request(
        request_id=name,
        prompt=tuple(prompt),
        pooling=pooling,
        priority=priority,
        namespace=namespace,
        tenant=tenant,
    )


def one_bit(data: bytes) -> bytes:
    """The worst hash that is still one: every second key collides."""
    return bytes([hashlib.sha256(data).digest()[0] & 1])


def tier(num_blocks: int, block_size: int = 4, **changes) -> Tier:
    """A lower tier of `num_blocks`, roomy but for what `changes` say."""
    roomy = TierLimits(name="memory", num_blocks=num_blocks, num_storing=99, num_staged=99)
    return Tier(replace(roomy, **changes), Costs(block_bytes=1), block_size)


class Shelf:
    """Carries out the orders of plans as an engine does: bytes by key. Reports wait until somebody delivers them."""

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory
        self.kept: dict[bytes, memoryview] = {}
        self._buffers: dict[bytes, memoryview] = {}
        self.reports: list[Stored | NotStored | Fetched | NotFetched] = []
        self.transfers: list[Transfers] = []

    def execute(self, plan: StepPlan, copies: Callable[[], None]) -> None:
        """The transfers of a plan, with its copies where they belong."""
        todo = plan.transfers or Transfers()
        self.transfers.append(todo)
        for key in todo.releases + todo.drops:
            self._buffers.pop(key, None)
        for key in todo.drops:
            self.kept.pop(key, None)
        for key in todo.fetches:
            if key in self.kept:
                self._buffers[key] = self.kept[key]
            self.reports.append(Fetched(key) if key in self.kept else NotFetched(key))
        for store in todo.stores:
            self.kept[store.key] = self._memory.read_block(store.block)
            self.reports.append(Stored(store.key))
        copies()
        for load in todo.loads:
            self._memory.write_block(load.block, self._buffers[load.key])

    def spoil(self, index: int, *, gives_up: bool = False) -> None:
        """What was reported to be well is not: the block was not written, or what was read of it is corrupt."""
        key = self.reports[index].key
        if isinstance(self.reports[index], Fetched):
            self.reports[index] = NotFetched(key)
        else:
            self.reports[index] = NotStored(key, gives_up)
            self.kept.pop(key, None)
        self._buffers.pop(key, None)


@dataclass
class Outcome:
    """What came back for one request."""

    tokens: dict[int, list[ScoredToken]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[int, Finished] = field(default_factory=dict)
    scored: list[ScoredToken] = field(default_factory=list)
    embedded: Embedded | None = None
    admissions: list[Admitted] = field(default_factory=list)
    refused: Refused | None = None

    def ids(self, choice: int = 0) -> list[int]:
        return [token.token for token in self.tokens[choice]]

    def reasons(self) -> list[FinishReason]:
        return [self.finished[choice].reason for choice in sorted(self.finished)]

    @property
    def embedding(self) -> tuple[bytes, int] | None:
        """The sum that it is made of, and of how many."""
        return self.embedded and (self.embedded.total, self.embedded.num_tokens)

    @property
    def cached_tokens(self) -> int:
        return self.admissions[0].cached_tokens


class Replica:
    """A scheduler in front of a ledger, and a shelf where there is a lower tier. Time is the number of moves."""

    def __init__(self, limits: Limits, *, alphabet: int | None = None, **options) -> None:
        self.scheduler = Scheduler(limits, **options)
        self.ledger = LedgerBackend(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            alphabet=alphabet,
            windows=limits.windows,
        )
        self.shelf = Shelf(self.ledger)
        self.now = 0.0
        self.events: list[Event] = []
        self.plans: list[StepPlan] = []
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self._queued_at: dict[tuple[str, int], float] = {}

    def submit(self, *requests: Request) -> None:
        for one in requests:
            self._note(self.scheduler.submit(one, self._tick()))

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        self._note(self.scheduler.cancel(request_id, self._tick(), choice))

    def guide(self, request_id: str, guide: Guide) -> None:
        self._note(self.scheduler.guide(request_id, guide, self._tick()))

    def give_up(self, request_id: str, message: str) -> None:
        self._note(self.scheduler.give_up(request_id, message, self._tick()))

    def pin(
        self,
        pin_id: str,
        tokens: tuple[int, ...] | list[int],
        *,
        tenant: str = "",
        namespace: bytes = b"",
        ttl_s: float = 1e9,
        quota: int = 1000,
    ) -> PinOutcome:
        wish = PinWish(pin_id, tenant, namespace, tuple(tokens), ttl_s, quota)
        scheduler = self.scheduler
        before = scheduler.load(), scheduler.cache.pool.cached(), list(scheduler.cache.pool.refs)
        room = room_for_pins(scheduler.limits, scheduler.roster)
        events, outcome = scheduler.cache.pin(wish, room, self._tick())
        assert bool(events) == (outcome.pin is not None)
        if outcome.pin is None:
            assert before == (scheduler.load(), scheduler.cache.pool.cached(), list(scheduler.cache.pool.refs))
        self._note(events)
        return outcome

    def unpin(self, pin_id: str, tenant: str = "") -> bool:
        events = self.scheduler.cache.unpin(pin_id, tenant, self._tick())
        self._note(events or ())
        return events is not None

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(self._tick())
        self.plans.append(plan)
        self.check()
        for work in plan.work:
            states = [choice.state for choice in self.scheduler.roster.requests[work.request_id]]
            assert all(states[sample.choice] is not ChoiceState.FINISHED for sample in work.samples)
        return plan

    def commit(self, plan: StepPlan) -> None:
        self.commit_result(plan, self.execute(plan))

    def execute(self, plan: StepPlan) -> StepResult:
        self.shelf.execute(plan, lambda: self._copy(plan))
        return self.ledger.execute(replace(plan, copies=()))

    def _copy(self, plan: StepPlan) -> None:
        self.ledger.execute(StepPlan(plan.step, (), plan.copies))

    def deliver(self, count: int | None = None) -> None:
        """Tells the scheduler what became of its orders: all of them, or the first `count`."""
        reports, self.shelf.reports = self.shelf.reports[:count], self.shelf.reports[len(self.shelf.reports[:count]) :]
        self._note(self.scheduler.note(reports, self._tick()))

    def commit_result(self, plan: StepPlan, result: StepResult) -> None:
        events = self.scheduler.commit(plan, result, self._tick())
        assert isinstance(events[-1], Stepped)
        assert sum(isinstance(event, Stepped) for event in events) == 1
        self._note(events)

    def fail(self, plan: StepPlan) -> None:
        self._note(self.scheduler.fail(plan, "the step failed", self._tick()))

    def step(self, *, deliver: bool = True) -> StepPlan:
        """One whole step, and what came of its transfers. Whoever has work gets some, or waits for the tier."""
        plan = self.plan()
        assert bool(plan.work) == self.scheduler.has_work or self.scheduler.waits_for_tier
        if plan.work:
            self.commit(plan)
        else:
            self.execute(plan)
        if deliver and self.shelf.reports:
            self.deliver()
        return plan

    def save(self, num_blocks: int) -> StepPlan:
        """Stores what only the pool has, as an engine does that has nothing else to do."""
        plan = self.scheduler.plan_idle(num_blocks, self._tick())
        assert not plan.work and not plan.copies
        self.check()
        self.execute(plan)
        return plan

    def run(self, max_steps: int = 500) -> int:
        """Steps until idle; returns how many it took. Idle means that no block is leased."""
        for steps in range(max_steps):
            if not self.scheduler.has_work:
                assert self.scheduler.load().blocks_leased == 0
                return steps
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps: {self.scheduler.load()}")

    def check(self) -> None:
        assert audit(self.scheduler) == ()

    def preemptions(self) -> list[Preempted]:
        return [event for event in self.events if isinstance(event, Preempted)]

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def _note(self, events: tuple[Event, ...]) -> None:
        self.check()
        self.events.extend(events)
        for event in events:
            match event:
                case Generated():
                    assert event.choice not in self.outcomes[event.request_id].finished
                    self.outcomes[event.request_id].tokens[event.choice].extend(event.tokens)
                case Finished():
                    assert event.choice not in self.outcomes[event.request_id].finished
                    self.outcomes[event.request_id].finished[event.choice] = event
                case Embedded():
                    assert self.outcomes[event.request_id].embedded is None
                    self.outcomes[event.request_id].embedded = event
                case PromptScored():
                    self.outcomes[event.request_id].scored.extend(event.scored)
                case Queued():
                    self._queued_at[event.request_id, 0] = event.time_s
                case Preempted():
                    self._queued_at[event.request_id, event.choice] = event.time_s
                case Admitted():
                    queued_at = self._queued_at.pop((event.request_id, event.choice), None)
                    waited = sum(each.seconds for each in event.waited)
                    assert queued_at in (None, pytest.approx(event.time_s - waited))
                    self.outcomes[event.request_id].admissions.append(event)
                case Refused():
                    self.outcomes[event.request_id].refused = event
                case Stepped():
                    assert sum(event.waiting.values()) == event.num_waiting and all(event.waiting.values())
                case _:
                    pass


def alone(one: Request, limits: Limits, **options) -> Outcome:
    """What a request gives on a fresh replica that it has for itself."""
    replica = Replica(limits, **options)
    replica.submit(one)
    if one.params.structured_outputs is not None:
        replica.guide(one.request_id, word_guide(one.params.structured_outputs, limits.vocab_size))
    replica.run()
    return replica.outcomes[one.request_id]
