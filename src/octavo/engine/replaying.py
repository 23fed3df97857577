"""Replaying: a dump's record, given to a fresh scheduler: does it make the same plans? Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.core.audit import audit
from octavo.core.pins import room_for_pins
from octavo.core.plan import ScoredToken, StepPlan, StepResult, Work, WorkResult
from octavo.core.ports import Guide
from octavo.core.scheduler import Scheduler
from octavo.core.types import TokenId
from octavo.engine import dump
from octavo.engine.recorder import checksum
from octavo.engine.seeding import seeds

Row = tuple[int, ...]
_SUM = 5
"""The place of the block ids' checksum in a row."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first plan that is not as it was."""

    step: int
    recorded: tuple[str, ...]
    """Works that were planned and are not now, in words."""
    replayed: tuple[str, ...]
    """Works that are planned now and were not."""
    why: str


@dataclass(slots=True)
class Replayed:
    """What came of it. `difference` and `raised` are None and `violations` empty where all is as it was, and sound."""

    num_plans: int = 0
    """Plans that are the same."""
    num_works: int = 0
    difference: Difference | None = None
    raised: str | None = None
    """What a plan or a commit raised, as text."""
    broke: bool = False
    """Did the recorded one break there, too?"""
    violations: list[str] = field(default_factory=list[str])
    """Laws that are broken."""
    left_out: str | None = None
    """Why it was not replayed to its end."""


class RecordedGuide:
    """Says of a structured output what its guide said, as far as that decides: where it ends, or goes no further."""

    def __init__(self, ends: Mapping[tuple[TokenId, ...], str | None], tokens: tuple[TokenId, ...] = ()) -> None:
        self._ends = ends
        self._tokens = tokens

    @property
    def complete(self) -> bool:
        return self._tokens in self._ends and self.fault is None

    @property
    def fault(self) -> str | None:
        return self._ends.get(self._tokens)

    def mask(self, ends: Sequence[TokenId]) -> bytes:
        """No backend will draw."""
        return b""

    def accept(self, token: TokenId) -> None:
        self._tokens = (*self._tokens, token)

    def fork(self) -> "RecordedGuide":
        return RecordedGuide(self._ends, self._tokens)


def replay(record: dump.Confided, *, audits: bool = False) -> Replayed:
    """Makes the plans of a record again, up to the first one that differs. `audits`: the laws are checked each step."""
    return _Replay(record, audits).run()


class _Replay:
    def __init__(self, record: dump.Confided, audits: bool) -> None:
        self._record = record
        self._audits = audits
        self._exact = not record.num_lost
        self._scheduler = Scheduler(record.limits)
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._plan: StepPlan | None = None
        self.found = Replayed()
        self._steps: Mapping[type, Callable[[Any], object]] = {
            dump.Submitted: self._submit,
            dump.Withdrawn: lambda e: self._scheduler.cancel(e.request_id, e.at, e.choice),
            dump.Guided: lambda e: self._scheduler.guide(e.request_id, self._guide(e.request_id), e.at),
            dump.GivenUp: lambda e: self._scheduler.give_up(e.request_id, "", e.at),
            dump.Pinned: self._pin,
            dump.Unpinned: lambda e: self._scheduler.cache.unpin(e.pin_id, e.tenant, e.at),
            dump.PinsListed: lambda e: self._scheduler.cache.expire_pins(e.at),
            dump.CacheReset: lambda e: self._scheduler.reset_prefix_cache(e.at),
            dump.Planned: self._planned,
            dump.Committed: self._commit,
            dump.Failed: lambda e: self._plan and self._scheduler.fail(self._plan, "the step failed", e.at),
            dump.Stuck: lambda e: self._scheduler.stalled(e.at),
            dump.Throttled: lambda e: self._scheduler.throttle(e.throttle),
            dump.Quiet: self._quiet,
        }

    def run(self) -> Replayed:
        plans = [entry for entry in self._record.entries if isinstance(entry, dump.Planned) and entry.rows]
        entries = self._record.entries
        if not self._exact and not (entries and isinstance(entries[0], dump.Quiet)):
            self.found.left_out = (
                "what is left of the record begins in the middle of things: only its plans can be read"
            )
            return self.found
        if not self._exact and plans:
            self._seed(entries[0].at)
            self._scheduler.step = plans[0].step - 1
        for entry in self._record.entries:
            if isinstance(entry, dump.Noted):
                self.found.left_out = "a lower tier reported, and what it reported is not in the record"
                break
            if not self._step(entry):
                break
        if self.found.raised is None:
            self.found.violations += [each for each in audit(self._scheduler) if each not in self.found.violations]
        return self.found

    def _seed(self, at: float) -> None:
        """Fills the cache with what was hit in it. So many tokens as a step may have, whatever they are."""
        for request in seeds(self._record):
            self._scheduler.submit(request, at)
            while self._scheduler.has_work:
                plan = self._scheduler.plan(at)
                results = [WorkResult(w.request_id, w.choice, (ScoredToken(0),) * len(w.samples)) for w in plan.work]
                self._scheduler.commit(plan, StepResult(plan.step, tuple(results)), at)

    def _quiet(self, entry: dump.Quiet) -> None:
        if not self._exact:
            self._scheduler.reception.lengths.recall(entry.lengths)
        if entry.throttle is not None:
            self._scheduler.throttle(entry.throttle)

    def _step(self, entry: dump.AnyEntry) -> bool:
        """Does what was done then. False where nothing that follows can be compared."""
        try:
            self._steps[type(entry)](entry)
        except Exception as error:  # noqa: BLE001 - what policy raises is what we are here to find
            self.found.raised = f"{type(error).__name__}: {error}"
            self.found.broke = _broke(entry)
            return False
        if _broke(entry):
            self.found.difference = Difference(self._scheduler.step, (), (), "it broke then, and does not break now")
        if self._audits and isinstance(entry, dump.Committed):
            self.found.violations += audit(self._scheduler)
        return self.found.difference is None and not self.found.violations

    def _submit(self, entry: dump.Submitted) -> None:
        self._numbers[entry.request.request_id] = entry.number
        self._names[entry.number] = entry.request.request_id
        self._scheduler.submit(entry.request, entry.at)

    def _guide(self, request_id: str) -> Guide:
        forms = [form for form in self._record.forms if form.request_id == request_id]
        return RecordedGuide({tuple(form.tokens): form.fault for form in forms})

    def _pin(self, entry: dump.Pinned) -> None:
        scheduler = self._scheduler
        scheduler.cache.expire_pins(entry.at)
        scheduler.cache.pin(entry.wish, room_for_pins(scheduler.limits, scheduler.roster), entry.at)

    def _planned(self, entry: dump.Planned) -> None:
        plan = self._scheduler.plan(entry.at)
        if entry.rows is None:
            return
        rows = [self._row(work) for work in plan.work]
        if self._told(entry.rows) != self._told(rows) or entry.num_copies != len(plan.copies):
            self.found.difference = self._difference(entry, rows, plan)
            return
        self._plan = plan if plan.work else None
        self.found.num_plans += 1
        self.found.num_works += len(rows)

    def _row(self, work: Work) -> Row:
        number, table = self._numbers[work.request_id], work.block_ids
        return (number, work.choice, work.start, len(work.tokens), len(table), checksum(table), len(work.samples))

    def _told(self, rows: Sequence[Row]) -> list[Row]:
        """As far as it can be the same: where the record does not go back to the start, blocks have other ids."""
        return [row if self._exact else (*row[:_SUM], *row[_SUM + 1 :]) for row in map(tuple, rows)]

    def _commit(self, entry: dump.Committed) -> None:
        plan = self._plan
        if plan is None:
            raise ValueError("a result without a plan")
        results = tuple(_results(plan, entry))
        self._plan = None
        self._scheduler.commit(plan, StepResult(plan.step, results), entry.at)

    def _difference(self, entry: dump.Planned, rows: list[Row], plan: StepPlan) -> Difference:
        recorded, now = self._told(entry.rows or ()), self._told(rows)
        return Difference(
            step=entry.step,
            recorded=tuple(self._words(row) for row in recorded if row not in now),
            replayed=tuple(self._words(row) for row in now if row not in recorded),
            why=self._why(entry, recorded, now, plan),
        )

    def _why(self, entry: dump.Planned, recorded: list[Row], now: list[Row], plan: StepPlan) -> str:
        starts = {row[:2]: row[2] for row in recorded}
        earlier = [row for row in now if row[2] < starts.get(row[:2], row[2])]
        if earlier and not self._exact:
            return "more was found in the cache then: of what was in it before the record begins, not all is known"
        if sorted(recorded) == sorted(now) and entry.num_copies == len(plan.copies):
            return "the same works, in another order"
        if entry.num_copies != len(plan.copies):
            return f"{entry.num_copies} block copies then, {len(plan.copies)} now"
        waiting = ", ".join(f"{count} for {reason}" for reason, count in self._scheduler.waits.counts.items())
        return f"now wait: {waiting}" if waiting else "nobody waits now"

    def _words(self, row: Row) -> str:
        number, choice, start, num_tokens, num_blocks, *_ = row
        name = self._names.get(number, f"request {number}")
        return f"{name}/{choice}: {num_tokens} tokens from {start} on, in {num_blocks} blocks"


def _broke(entry: dump.AnyEntry) -> bool:
    return (isinstance(entry, dump.Planned) and entry.rows is None) or (
        isinstance(entry, dump.Committed) and not entry.done
    )


def _results(plan: StepPlan, entry: dump.Committed) -> Iterator[WorkResult]:
    errors = {broken.place: broken for broken in entry.errors}
    for place, (work, sampled) in enumerate(zip(plan.work, entry.sampled, strict=True)):
        if place in errors:
            yield WorkResult(work.request_id, work.choice, error=errors[place].message, code=errors[place].code)
            continue
        tokens = [ScoredToken(token) for token in sampled]
        if place in entry.ranked:
            tokens = [ScoredToken(sampled[0], alternatives=tuple(entry.ranked[place]))]
        scored = tuple([ScoredToken(token) for token in work.targets])
        hidden = None if work.hidden_sum is None else b""
        yield WorkResult(work.request_id, work.choice, tuple(tokens), scored, hidden_sum=hidden)
