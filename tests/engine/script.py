"""A port that a test writes down, and what came out of it."""

from collections import deque
from collections.abc import Sequence

from octavo.core.events import Event, Finished, Generated, Stepped
from octavo.core.plan import ScoredToken
from octavo.core.types import FinishReason
from octavo.engine.loop import EngineLoop, Order, Replica


class Script:
    """A port that gives the orders of one turn after the other, then stops when nothing is left to do."""

    def __init__(self, *turns: Sequence[Order]) -> None:
        self._turns = deque(turns)
        self.events: list[Event] = []
        self.published: list[Sequence[Event]] = []

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        if self._turns:
            return self._turns.popleft()
        return None if idle else ()

    def publish(self, events: Sequence[Event]) -> None:
        self.published.append(events)
        self.events += events

    def scored(self, name: str, choice: int = 0) -> list[ScoredToken]:
        generated = (event for event in self.events if isinstance(event, Generated))
        mine = (event for event in generated if (event.request_id, event.choice) == (name, choice))
        return [token for event in mine for token in event.tokens]

    def tokens(self, name: str) -> list[int]:
        return [token.token for token in self.scored(name)]

    def reasons(self) -> dict[str, FinishReason]:
        return {event.request_id: event.reason for event in self.events if isinstance(event, Finished)}

    def stepped(self) -> list[Stepped]:
        return [event for event in self.events if isinstance(event, Stepped)]


def play(replica: Replica, *turns: Sequence[Order]) -> Script:
    """Turns the loop until all is done."""
    script = Script(*turns)
    EngineLoop(replica).run(script)
    return script
