"""Turns: when each phase of the engine's loop began and ended, seen from its port and its backend.

The loop is not changed and does not know: it is given a port and a backend that look at the clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from octavo.core.events import Event, Finished, Generated, Refused
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend, Capacity, KernelSpan, Traceable
from octavo.core.request import Request
from octavo.core.types import FinishReason
from octavo.engine.clock import now
from octavo.engine.loop import Order, Withdraw
from octavo.engine.wire import EventWriter, frame


class Failed(RuntimeError):
    """A request did not run as it was meant to."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step. Its phases follow one another without gaps, up to what the loop itself takes.

    began         executed           returned           published          ended
      | plan         | marshal, kernels  | commit             | publish       |
                        ^ spans ^
    """

    num_works: int
    num_tokens: int
    began_s: float
    executed_s: float
    returned_s: float
    published_s: float
    ended_s: float
    spans: tuple[KernelSpan, ...]

    @property
    def phases(self) -> Iterator[tuple[str, float, float]]:
        """Name, beginning and end of all that is not in a span. What comes before and after the kernels is one name."""
        first_s, last_s = self.spans[0].began_s, self.spans[-1].ended_s
        yield "plan", self.began_s, self.executed_s
        yield "marshal", self.executed_s, first_s
        yield "marshal", last_s, self.returned_s
        yield "commit", self.returned_s, self.published_s
        yield "publish", self.published_s, self.ended_s


class Watch:
    """A Backend that asks another one for its spans, and keeps those of the last step."""

    def __init__(self, backend: Backend, traced: Traceable) -> None:
        self._backend = backend
        self._traced = traced
        self.last: tuple[StepPlan, float, float, Callable[[], Sequence[KernelSpan]]] | None = None
        """The plan, when it was given, when its result was, and who makes the spans."""

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        began_s = now()
        result, spans = self._traced.execute_traced(plan)
        self.last = (plan, began_s, now(), spans)
        return result

    def close(self) -> None:
        self._backend.close()


class Feed:
    """The port of one run: its requests, and the turns that they took. Events are written as for a server's socket.

    Ends once all are finished; or, where `wanted` is given, after as many turns in which all of them decode.
    """

    def __init__(self, requests: Sequence[Request], watch: Watch, wanted: int | None) -> None:
        self._orders: list[Order] = list(requests)
        self._live = {request.request_id for request in requests}
        self._size = len(requests)
        self._begun: set[str] = set()
        self._watch = watch
        self._wanted = wanted
        self._writer = EventWriter()
        for ticket, request in enumerate(requests, start=1):
            self._writer.open(ticket, request)
        self._left_s = now()
        self.turns: list[Turn] = []
        self.decodes: list[Turn] = []

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        if not self._live:
            return None
        if self._wanted is not None and len(self.decodes) == self._wanted:
            self._orders += [Withdraw(request_id) for request_id in sorted(self._live)]
            self._wanted = None
        orders, self._orders = self._orders, []
        self._left_s = now()
        return orders

    def publish(self, events: Sequence[Event]) -> None:
        began_s = now()
        if events:
            frame(self._writer.write(events))
        ended_s = now()
        if self._watch.last is not None:
            plan, executed_s, returned_s, spans = self._watch.last
            self._watch.last = None
            counts, times_s = (len(plan.work), plan.num_tokens), (executed_s, returned_s, began_s, ended_s)
            self._keep(Turn(*counts, self._left_s, *times_s, tuple(spans())))
        for event in events:
            self._see(event)
        self._left_s = now()

    def _keep(self, turn: Turn) -> None:
        self.turns.append(turn)
        if len(self._begun) == turn.num_works == self._size:
            self.decodes.append(turn)

    def _see(self, event: Event) -> None:
        if isinstance(event, Refused):
            raise Failed(event.message)
        if isinstance(event, Generated):
            self._begun.add(event.request_id)
        if isinstance(event, Finished):
            self._live.discard(event.request_id)
            if event.reason is FinishReason.ERROR:
                raise Failed(event.message or "a step failed")
