"""A replica on a virtual clock, and a port whose requests come at their times: hours of load in a moment."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from octavo.backends.ledger import LedgerBackend
from octavo.backends.simulated import SimulatedBackend, StepCosts, VirtualTime
from octavo.core.events import Event
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits
from octavo.engine.client import EngineFacts
from octavo.engine.loop import EngineLoop, Order, Replica, Steer

COSTS = StepCosts(base_s=0.010, token_s=0.0005, seq_s=0.001)
"""About those of a small model on two cores."""


@dataclass
class Timeline:
    """A port. What is yet to come, and what happened; `heard` may add to the one for the other."""

    time: VirtualTime
    heard: Callable[["Timeline", Event], None] = lambda timeline, event: None
    until_s: float = float("inf")
    events: list[Event] = field(default_factory=list)
    _due: list[tuple[float, int, Request]] = field(default_factory=list)
    _serial: count = field(default_factory=count)

    def add(self, at_s: float, request: Request) -> None:
        heappush(self._due, (at_s, next(self._serial), request))

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        if self.time() >= self.until_s or (idle and not self._due):
            return None
        if idle:
            self.time.advance(max(0.0, self._due[0][0] - self.time()))
        orders = []
        while self._due and self._due[0][0] <= self.time():
            orders.append(heappop(self._due)[2])
        return orders

    def publish(self, events: Sequence[Event]) -> None:
        self.events += events
        for event in events:
            self.heard(self, event)

    def of(self, *kinds: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]


def replica_of(
    limits: Limits, time: VirtualTime, costs: StepCosts = COSTS, steer: Steer | None = None
) -> tuple[Replica, SimulatedBackend]:
    ledger = LedgerBackend(
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
        windows=(1,),  # tokens depend on the last one alone: to read a long past takes a ledger longer than all else
    )
    backend = SimulatedBackend(ledger, costs, time)
    facts = EngineFacts(
        model="ledger",
        fingerprint="ledger",
        capacity=backend.capacity(),
        isa="none",
        num_threads=1,
        weight_format="none",
        kv_cache_dtype="none",
    )
    return Replica(Scheduler(limits), backend, facts, steer=steer), backend


def played(limits: Limits, arrivals: Iterable[tuple[float, Request]], **about) -> Timeline:
    """Plays requests that come at these times to their end."""
    time = VirtualTime()
    replica, _ = replica_of(limits, time)
    timeline = Timeline(time, **about)
    for at_s, request in arrivals:
        timeline.add(at_s, request)
    EngineLoop(replica, time).run(timeline)
    return timeline
