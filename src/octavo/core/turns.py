"""Turns: in which order waiting choices are asked to start. In the order of the queue, or by what tenants were served.

Fair shares are the virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
Each tenant has a counter of the tokens it was served, prompt tokens times INPUT_WEIGHT, others times OUTPUT_WEIGHT,
and the one with the least goes next. Who comes back after a rest is lifted to the least of those who wait, so that
nobody saves up. Then what two tenants get that both have something waiting never differs by more than 2 U:

    U = max(INPUT_WEIGHT x longest prompt, OUTPUT_WEIGHT x slots of the pool)

A tenant's weight, from 1, divides what it is charged: then the same holds for what they get by their weights.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Protocol

from octavo.core.choice import Choice
from octavo.core.request import ChoiceState
from octavo.core.types import Limits

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2
RESOURCES = frozenset({"blocks", "seqs", "tokens", "partial_prefills"})
"""What a choice may lack because others have it. (All else it lacks by itself, and others may go first.)"""

_order = attrgetter("order")


class Turns(Protocol):
    """Hears of every move between the queue and those who run, and says who is asked next."""

    def queued(self, choice: Choice) -> None:
        """It waits: it is new, or lost its blocks."""
        ...

    def dequeued(self, choice: Choice) -> None:
        """It waits no more."""
        ...

    def started(self, choice: Choice) -> None:
        """It runs, for the first time or again."""
        ...

    def forked(self, choice: Choice, leader: Choice) -> None:
        """It runs, from where its leader is."""
        ...

    def left(self, choice: Choice) -> None:
        """It is over."""
        ...

    def ask(self, waiting: Sequence[Choice]) -> Iterator[Choice]:
        """Waiting choices, each to be started, or told in `wait.lacks` what it lacks, before the next is taken."""
        ...


class InOrder:
    """First come, first served within a rank: the queue as it is."""

    def __init__(self, limits: Limits) -> None:
        del limits

    def queued(self, choice: Choice) -> None: ...
    def dequeued(self, choice: Choice) -> None: ...
    def started(self, choice: Choice) -> None: ...
    def forked(self, choice: Choice, leader: Choice) -> None: ...
    def left(self, choice: Choice) -> None: ...

    def ask(self, waiting: Sequence[Choice]) -> Iterator[Choice]:
        position = 0
        while position < len(waiting):
            choice = waiting[position]
            yield choice
            position += position < len(waiting) and waiting[position] is choice


class FairShares:
    """A virtual token counter for each tenant, which goes the slower the larger the tenant's weight is.

    Past a tenant whose next choice must wait for a resource another one may go only where even its worst case, with all
    that its running choices may still generate, leaves it within U of the one that waits: so the bound stays.
    """

    def __init__(self, limits: Limits) -> None:
        self.bound = max(INPUT_WEIGHT * limits.max_model_len, OUTPUT_WEIGHT * limits.num_blocks * limits.block_size)
        """The paper's U."""
        self._served: dict[str, float] = {}
        """Tenant -> its counter, but for what its live choices generated since they were settled."""
        self._pledged: dict[str, float] = {}
        """Tenant -> what its choices that were started, and are not over, may generate at most."""
        self._live: set[Choice] = set()
        """Choices that run, or ran, and are not settled."""
        self._queues: dict[str, list[Choice]] = {}
        self._last_to_leave = ""

    def queued(self, choice: Choice) -> None:
        tenant = choice.request.tenant
        self._settle(choice)
        if tenant not in self._queues:
            self._lift(tenant)
        insort(self._queues.setdefault(tenant, []), choice, key=_order)

    def dequeued(self, choice: Choice) -> None:
        tenant = choice.request.tenant
        queue = self._queues[tenant]
        del queue[bisect_left(queue, choice.order, key=_order)]
        if not queue:
            del self._queues[tenant]
            self._last_to_leave = tenant

    def started(self, choice: Choice) -> None:
        """A prompt is charged whole and once, when it starts: cached tokens count, those computed again do not."""
        self._live.add(choice)
        if choice.wait.num_preempted:
            return
        tenant = choice.request.tenant
        self._served[tenant] += _prompt_cost(choice)
        self._pledge(choice, choice.width * _longest_answer(choice))

    def forked(self, choice: Choice, leader: Choice) -> None:
        self._live.add(choice)
        answer = _longest_answer(choice)
        self._pledge(leader, -answer)
        self._pledge(choice, answer)

    def left(self, choice: Choice) -> None:
        self._settle(choice)
        self._pledge(choice, -choice.wait.pledged)

    def counters(self) -> dict[str, float]:
        """What each tenant was served, for its weight."""
        served = dict(self._served)
        for choice in self._live:
            served[choice.request.tenant] += _answer_cost(choice, _unsettled(choice))
        return served

    def ask(self, waiting: Sequence[Choice]) -> Iterator[Choice]:
        served = self.counters()
        line = [(0, served[tenant], queue[0].order, tenant, 0) for tenant, queue in self._queues.items()]
        heapify(line)
        barred: dict[str, float] = {}
        while line:
            tries, counter, _, tenant, position = heappop(line)
            queue = self._queues.get(tenant, ())
            if position >= len(queue) or not self._may_pass(queue[position], counter, barred):
                continue
            choice = queue[position]
            yield choice
            if choice.state is ChoiceState.RUNNING:
                counter += 0 if choice.wait.num_preempted else _prompt_cost(choice)
            else:
                tries, position = tries + 1, position + 1
                if choice.wait.lacks.resource in RESOURCES:
                    barred.setdefault(tenant, counter)
            heappush(line, (tries, counter, choice.order, tenant, position))

    def _may_pass(self, choice: Choice, counter: float, barred: Mapping[str, float]) -> bool:
        tenant = choice.request.tenant
        others = [least for other, least in barred.items() if other != tenant]
        if not others:
            return True
        to_come = _prompt_cost(choice) + choice.width * _longest_answer(choice)
        return counter + self._pledged.get(tenant, 0) + to_come <= min(others) + self.bound

    def _lift(self, tenant: str) -> None:
        """Who had nothing waiting starts from the least of those who have, or from who was the last to have."""
        served = self.counters()
        active = [served[other] for other in self._queues]
        least = min(active) if active else served.get(self._last_to_leave, 0)
        more = max(0, least - served.get(tenant, 0))
        self._served[tenant] = self._served.get(tenant, 0) + more

    def _settle(self, choice: Choice) -> None:
        """What it generated goes into the counter: it does not run any more."""
        self._live.discard(choice)
        if count := _unsettled(choice):
            self._served[choice.request.tenant] += _answer_cost(choice, count)
            choice.wait.num_settled += count

    def _pledge(self, choice: Choice, more: float) -> None:
        choice.wait.pledged += more
        tenant = choice.request.tenant
        self._pledged[tenant] = self._pledged.get(tenant, 0) + more


def _unsettled(choice: Choice) -> int:
    """Tokens that it generated and that are in no counter yet."""
    return max(0, len(choice.tokens) - choice.prompt_len - choice.wait.num_settled)


def _prompt_cost(choice: Choice) -> float:
    return INPUT_WEIGHT * choice.prompt_len / choice.request.weight


def _answer_cost(choice: Choice, num_tokens: int) -> float:
    return OUTPUT_WEIGHT * num_tokens / choice.request.weight


def _longest_answer(choice: Choice) -> float:
    return _answer_cost(choice, choice.max_len - choice.prompt_len)


TURNS: Mapping[str, Callable[[Limits], Turns]] = {"fcfs": InOrder, "priority": InOrder, "fair": FairShares}
"""`--scheduling-policy`"""
