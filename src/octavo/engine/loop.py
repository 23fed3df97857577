"""The engine's only loop: receive, submit and cancel, plan, execute, commit, publish. The same wherever it runs."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from octavo.core.audit import audit
from octavo.core.events import Audited, Event, Refused, Stalled, Steered, Stepped
from octavo.core.gauges import stepped
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.throttle import Throttle
from octavo.core.types import RequestId
from octavo.engine.answers import answer
from octavo.engine.asks import Ask, DumpWritten, WriteDump
from octavo.engine.client import EngineFacts
from octavo.engine.clock import Clock, now
from octavo.engine.compilations import Compilations, Compile, no_guides
from octavo.engine.dumps import Dumps
from octavo.engine.heap import Spare
from octavo.engine.offload import Offload
from octavo.engine.recorder import RecordedScheduler

log = logging.getLogger(__name__)

MAX_STALLED = 32
"""After so many plans in a row without work, though something waits, the engine ends: it is beyond help."""

TIER_WAIT_S = 0.05
"""A loop that has nothing to do but to wait for the lower tier looks for orders this often."""
SAVED_AT_ONCE = 32
"""Blocks that an idle loop stores between two looks for orders: a few milliseconds of copying."""

COMPILE_WAIT_S = 0.01
"""A loop that has nothing to do but to wait for a guide looks for orders this often."""


Steer = Callable[[Sequence[Event]], Steered | None]
"""Hears of all events of an engine, and decides between two steps, now and then."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine, wired and loaded: what a loop turns."""

    scheduler: Scheduler
    backend: Backend
    facts: EngineFacts
    compile: Compile = no_guides
    """A structured output -> its guide. Called in threads beside the loop."""
    audits: bool = False
    """Are the laws checked when nothing runs?"""
    offload: Offload | None = None
    """Who carries out what plans ask of a lower tier, where there is one. The backend owns it."""
    dumps: Dumps | None = None
    """Where the record of the scheduler goes when something is wrong, if anywhere."""
    steer: Steer | None = None
    """Who says how far it must be throttled to meet latency objectives, where there are any."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The order to end a request, or one choice of it."""

    request_id: RequestId
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """The order to answer `ask`: `reply` is called with the answer, or the exception, once the events are published."""

    ask: Ask[Any]
    reply: Callable[[Any], None]


Order = Request | Withdraw | Question
"""What may be asked of a loop."""


class Port(Protocol):
    """Where a loop's orders come from and its events go to."""

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        """The orders since the last call, or None for: stop now.

        Never waits when not idle. When idle it may wait for an order, but not for ever: the loop must be seen to turn.
        """
        ...

    def publish(self, events: Sequence[Event]) -> None:
        """Hands on what happened, in order. Never waits for whoever reads it."""
        ...


class EngineLoop:
    """Drives a replica's scheduler and backend; nothing else may while it runs."""

    def __init__(self, replica: Replica, clock: Clock = now) -> None:
        self._scheduler = replica.scheduler
        self._backend = replica.backend
        self._clock = clock
        self._compilations = Compilations(replica.compile, clock)
        self._offload = replica.offload
        self._dumps = replica.dumps
        self._steer = replica.steer
        self._saves = False
        self._last_step = 0
        self._commit_s = 0.0
        self._audits = self._unaudited = replica.audits
        self._spare = Spare(clock)

    def run(self, port: Port) -> None:
        """Turns until the port says stop. An exception in a step fails that step's requests and the loop goes on."""
        try:
            while self.turn(port):
                pass
        except Exception as error:
            if self._dumps is not None:
                self._dumps.last(self._scheduler, "engine died", f"{type(error).__name__}: {error}")
            raise

    def begun(self) -> Sequence[Event]:
        """The gauges before anything has happened: to be published first."""
        time_s = self._clock()
        return (*self._scheduler.cache.told(time_s), self._at_rest(time_s))

    def turn(self, port: Port) -> bool:
        """Takes orders and runs one step, where there is one to run. False where the port says stop."""
        compiling = self._compilations.pending
        orders = port.receive(idle=not (compiling or self._advances or self._saves))
        if orders is None:
            return False
        if orders:
            events, replies = self._apply(orders)
            self._tell(port, events)
            for reply in replies:
                reply()
        if compiling and (guided := self._guided()):
            self._tell(port, guided)
        if self._offload is not None:
            port.publish(self._hear(self._offload))
        works = self._scheduler.has_work
        if works:
            self._tell(port, self._step())
        else:
            port.publish(self._tend())
        self._unaudited |= self._audits and bool(orders)
        self._spare.look(worked=works or bool(orders))
        return True

    def _tell(self, port: Port, events: Sequence[Event]) -> None:
        """Publishes what happened to requests, and with it what is decided on that."""
        steered = None if self._steer is None else self._steer(events)
        if steered is not None:
            self._scheduler.throttle(Throttle(steered.num_tokens, steered.num_seqs))
            events = (*events, steered)
        port.publish(events)

    @property
    def _advances(self) -> bool:
        return self._scheduler.has_work and not self._scheduler.watchdog.num_stalled

    def settle(self, timeout_s: float) -> None:
        """Stores what a lower tier that survives this process lacks, as far as there is time. Nothing may run."""
        deadline = self._clock() + timeout_s
        while self._offload is not None and self._scheduler.cache.unsaved and self._clock() < deadline:
            self._save()
            self._hear(self._offload, TIER_WAIT_S)

    def _tend(self) -> Sequence[Event]:
        """What is done while nothing runs: pins whose time is up end, and a lower tier is given what it lacks."""
        time_s = self._clock()
        events = self._scheduler.cache.expire_pins(time_s)
        if events and isinstance(self._scheduler, RecordedScheduler):
            self._scheduler.pins_expired(time_s)
        if self._unaudited:
            events = (*events, self._audit(time_s))
        self._saves = self._offload is not None and self._save()
        return (*events, self._at_rest(time_s)) if events else ()

    def _audit(self, time_s: float) -> Audited:
        """Are all laws kept? Once after each spell of work, so that an idle engine stays idle."""
        self._unaudited = False
        violations = audit(self._scheduler)
        for violation in violations:
            log.error("a law is broken, please report it: %s", violation)
        if violations:
            self._dump_soon("law broken", "; ".join(violations))
        return Audited(time_s, violations)

    def _save(self) -> bool:
        """Is there more?"""
        plan = self._scheduler.plan_idle(SAVED_AT_ONCE, self._clock())
        if plan.transfers is not None:
            self._backend.execute(plan)
        return plan.transfers is not None and bool(plan.transfers.stores)

    def _hear(self, offload: Offload, timeout_s: float = 0.0) -> tuple[Event, ...]:
        """Tells the scheduler what became of its orders to the lower tier."""
        reports = offload.reports(timeout_s)
        return self._scheduler.note(reports, self._clock()) if reports else ()

    def _apply(self, orders: Sequence[Order]) -> tuple[list[Event], list[Callable[[], None]]]:
        """What happened, and the replies that are due once that is known."""
        time_s = self._clock()
        events: list[Event] = []
        replies: list[Callable[[], None]] = []
        for order in orders:
            if isinstance(order, Request):
                events += self._submit(order, time_s)
            elif isinstance(order, Withdraw):
                events += self._cancel(order, time_s)
            elif isinstance(order.ask, WriteDump):
                self._write_dump(order)
            else:
                told, reply = self._answer(order.ask, time_s)
                events += told
                replies.append(partial(order.reply, reply))
        if not self._scheduler.has_work:
            events.append(self._at_rest(time_s))
        return events, replies

    def _submit(self, request: Request, time_s: float) -> Sequence[Event]:
        events = self._scheduler.submit(request, time_s)
        output = request.params.structured_outputs
        if output is not None and not isinstance(events[-1], Refused):
            self._compilations.start(request.request_id, output)
        return events

    def _cancel(self, order: Withdraw, time_s: float) -> Sequence[Event]:
        if order.choice is None:
            self._compilations.drop(order.request_id)
        return self._scheduler.cancel(order.request_id, time_s, order.choice)

    def _answer(self, ask: Ask[Any], time_s: float) -> tuple[Sequence[Event], Any]:
        """A question that cannot be answered is its asker's misfortune, nobody else's."""
        try:
            if isinstance(self._scheduler, RecordedScheduler):
                self._scheduler.asked(ask, time_s)
            return answer(self._scheduler, ask, time_s)
        except Exception as error:
            log.exception("%s cannot be answered", type(ask).__name__)
            return (), error

    def _write_dump(self, order: Question) -> None:
        """Its reply comes when the file is there."""
        if self._dumps is None:
            order.reply(RuntimeError("this engine writes no dumps: --crash-dump-dir is off"))
            return

        def reply(outcome: Path | Exception) -> None:
            order.reply(outcome if isinstance(outcome, Exception) else DumpWritten(str(outcome)))

        self._dumps.asked(self._scheduler, "asked for", "", reply)

    def _dump_soon(self, reason: str, message: str) -> None:
        if self._dumps is not None:
            self._dumps.soon(self._scheduler, reason, message)

    def _guided(self) -> list[Event]:
        """Hands guides to those who are held for them. Waits for one where there is nothing else to do."""
        events: list[Event] = []
        for request_id, outcome in self._compilations.take(0.0 if self._scheduler.has_work else COMPILE_WAIT_S):
            if isinstance(outcome, str):
                events += self._scheduler.give_up(request_id, f"structured_outputs: {outcome}", self._clock())
            else:
                events += self._scheduler.guide(request_id, outcome, self._clock())
        if events and not self._scheduler.has_work:
            events.append(self._at_rest(self._clock()))
        return events

    def _at_rest(self, time_s: float) -> Stepped:
        """The gauges where no step follows that would tell them."""
        return stepped(self._scheduler.cache, self._scheduler.roster, time_s, self._last_step, 0, {}, {})

    def _nothing_advances(self) -> Sequence[Event]:
        """The progress law is broken: the watchdog says so; and after too long, whoever started the engine must act."""
        events = self._scheduler.stalled(self._clock())
        for event in events:
            if isinstance(event, Stalled):
                log.warning("%s", event.message)
                self._dump_soon("stalled", event.message)
        if self._scheduler.watchdog.num_stalled >= MAX_STALLED:
            raise RuntimeError(
                f"{self._scheduler.watchdog.num_stalled} plans in a row have no work, though something waits"
            )
        return events

    def _wait_for_tier(self, offload: Offload, plan: StepPlan) -> Sequence[Event]:
        """All that can be done now is to fetch blocks for those who wait."""
        self._backend.execute(plan)
        return self._hear(offload, TIER_WAIT_S)

    def _commit(self, plan: StepPlan, result: StepResult, plan_s: float) -> Sequence[Event]:
        """Commits, with the time that policy took: for this plan, and for the commit before, which is over."""
        time_s = self._clock()
        timings_s = {**result.timings_s, "plan": plan_s, "commit": self._commit_s}
        events = self._scheduler.commit(plan, replace(result, timings_s=timings_s), time_s)
        self._commit_s = self._clock() - time_s
        return events

    def _step(self) -> Sequence[Event]:
        """Plans, executes and commits one step; returns what happened."""
        began_s = self._clock()
        plan = self._scheduler.plan(began_s)
        if not plan.work and self._offload is not None and self._scheduler.waits_for_tier:
            return self._wait_for_tier(self._offload, plan)
        if not plan.work:
            return self._nothing_advances()
        self._last_step = plan.step
        try:
            plan_s = self._clock() - began_s
            return self._commit(plan, self._backend.execute(plan), plan_s)
        except Exception as error:
            if self._scheduler.in_flight is not plan:
                raise  # commit broke half way: nothing can be trusted any more
            log.exception("step %d failed: the %d works in it end with an error", plan.step, len(plan.work))
            message = f"the step failed: {type(error).__name__}: {error}"
            events = self._scheduler.fail(plan, message, self._clock())
            self._dump_soon("step failed", message)
            return events
        except BaseException:
            if self._scheduler.in_flight is plan:
                self._scheduler.fail(plan, "interrupted", self._clock())
            raise
