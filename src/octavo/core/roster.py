"""Roster: every live choice in its place: waiting, running, or with its request only. Places follow from states."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter

from octavo.core.backlog import Demands
from octavo.core.choice import Choice
from octavo.core.request import ChoiceState, Move
from octavo.core.turns import Turns
from octavo.core.types import RequestId

_order = attrgetter("order")
_rank = attrgetter("rank")


class Roster:
    """Two queues, each in order, those who may not queue yet, and the requests that their choices belong to.

    Moves choices along their life cycle.

    Finished choices leave `running` only with `sweep`, all at once: whoever walks over it may finish some.
    """

    __slots__ = ("_any_finished", "demands", "held", "requests", "running", "turns", "waiting")

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.running: list[Choice] = []
        """Those who hold blocks, in order."""
        self.waiting: list[Choice] = []
        """Those who have none, in order: new ones and preempted ones."""
        self.held: list[Choice] = []
        """Those who lack something from outside, and are in no queue until it comes."""
        self.demands = Demands()
        """What those want who wait, or are held."""
        self.requests: dict[RequestId, tuple[Choice, ...]] = {}
        """All choices of each live request."""
        self._any_finished = False

    @property
    def num_seqs(self) -> int:
        """Choices that run, and those that will as soon as the prompts that they follow are computed."""
        return sum([choice.width for choice in self.running])

    def enter(self, choices: tuple[Choice, ...]) -> None:
        """A new request: its first choice waits, or is held, and the others follow it."""
        first = choices[0]
        self.requests[first.request_id] = choices
        if first.state is ChoiceState.HELD:
            self.held.append(first)
            self.demands.add(first.request.tenant, first.demand)
        else:
            self._queue(first)

    def release(self, request_id: RequestId) -> Choice | None:
        """The choice of a request that was held waits now, in its place. None: there is no such choice."""
        choice = self.held_choice(request_id)
        if choice is not None:
            self._unhold(choice)
            choice.move(Move.RELEASE)
            self._queue(choice)
        return choice

    def held_choice(self, request_id: RequestId) -> Choice | None:
        """The choice of a request that is held; None where there is no such choice."""
        return next((held for held in self.held if held.request_id == request_id), None)

    def admit(self, choice: Choice) -> None:
        """A waiting choice runs."""
        choice.move(Move.ADMIT)
        self._dequeue(choice)
        self.turns.started(choice)
        insort(self.running, choice, key=_order)

    def fork(self, choice: Choice, leader: Choice) -> None:
        """A follower runs, from where its leader is."""
        choice.forked(leader)
        self.turns.forked(choice, leader)
        insort(self.running, choice, key=_order)

    def preempt(self, choice: Choice) -> None:
        """A running choice waits again, at its old place; one that waits for others does so without blocks."""
        self.running.remove(choice)
        if choice.awaits_others:
            choice.move(Move.PARK)
        else:
            choice.move(Move.PREEMPT)
            self._queue(choice)

    def queue(self, choice: Choice) -> None:
        """A beam that waited for others without blocks goes on: its past has to be computed again."""
        choice.move(Move.QUEUE)
        self._queue(choice)

    def finish(self, choice: Choice) -> None:
        """A choice is over, wherever it was; with the last one its request is."""
        if choice.state in (ChoiceState.WAITING, ChoiceState.PREEMPTED):
            self._dequeue(choice)
        elif choice.state is ChoiceState.HELD:
            self._unhold(choice)
        self.turns.left(choice)
        choice.move(Move.FINISH)
        self._any_finished = True
        if not self.unfinished(choice.request_id):
            del self.requests[choice.request_id]

    def _queue(self, choice: Choice) -> None:
        insort(self.waiting, choice, key=_order)
        self.turns.queued(choice)
        self.demands.add(choice.request.tenant, choice.demand)

    def _dequeue(self, choice: Choice) -> None:
        del self.waiting[bisect_left(self.waiting, choice.order, key=_order)]
        self.turns.dequeued(choice)
        self.demands.remove(choice.request.tenant, choice.demand)

    def _unhold(self, choice: Choice) -> None:
        self.held.remove(choice)
        self.demands.remove(choice.request.tenant, choice.demand)

    def sweep(self) -> None:
        """Finished choices leave the running ones."""
        if self._any_finished:
            self._any_finished = False
            self.running = [choice for choice in self.running if choice.state is ChoiceState.RUNNING]

    def unfinished(self, request_id: RequestId) -> list[Choice]:
        """The choices of a request that are not over; none of a request that is, or that nobody knows."""
        return [c for c in self.requests.get(request_id, ()) if c.state is not ChoiceState.FINISHED]

    def behind(self, choice: Choice) -> Sequence[Choice]:
        """The running choices after this one, in order."""
        return self.running[bisect_right(self.running, choice.order, key=_order) :]

    def below(self, rank: int) -> Sequence[Choice]:
        """The running choices of a higher rank number, in order: those who may be displaced for one of `rank`."""
        return self.running[bisect_right(self.running, rank, key=_rank) :]

    def pass_on(self, leader: Choice, index: int) -> Choice:
        """The leader of choices that wait for their common prompt becomes number `index`, which becomes the leader's.

        Returns the choice that has the leader's old number now.
        """
        choices = list(self.requests[leader.request_id])
        old, heir = leader.index, choices[index]
        leader.swap_numbers(heir)
        choices[old], choices[index] = heir, leader
        self.requests[leader.request_id] = tuple(choices)
        return heir
