"""Waits: for what each choice waits, and for how long it did, told when it starts. Who is not asked costs nothing.

At each plan some choices are asked to start, and say what they lack; all others lack the same: what ran out, or their
turn. So those who are asked have a reason of their own until the next plan, and the others share one, whose clock they
read when they need it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.budget import Later
from octavo.core.choice import Choice
from octavo.core.request import ChoiceState

STEP = "step"
"""At the last plan nobody had to wait: whoever came since waits for that step to end."""
BEHIND = "behind"
"""Nothing ran out, but others must start first, by the order of the scheduling policy."""
GUIDE = "guide"
"""Its structured output is being compiled."""
_OF_TOKENS = frozenset(("tokens", "partial_prefills", "block_in_work"))
"""What ends sooner if prompts have more of a step."""
_LEAST_S = 1e-9
_IN_SHORTAGE = (1, 0)
"""Need and have of those who were not asked, since what everybody needs had run out."""


@dataclass(frozen=True, slots=True)
class Waited:
    """So long it waited for this. In all, where it lacked the same several times."""

    reason: str
    """A resource of `Later`, `step`, `behind`, `guide`, or `preemption`: others were preempted in that step."""
    seconds: float
    need: int = 0
    """How much of it, when it was last asked; 0 where that is no number."""
    have: int = 0
    """How much there was."""


class Waits:
    """The clocks of one queue. Hears of who comes into it, of each plan, and of who leaves to run."""

    __slots__ = ("_asked", "_clocks", "_common", "_num_plans", "_since", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """What those who waited lacked at the last plan -> how many of them."""
        self._common = STEP
        self._since = 0.0
        self._clocks: dict[str, float] = {}
        """For how long each reason was the common one, up to `_since`."""
        self._asked: Sequence[Choice] = ()
        self._num_plans = 0

    def enter(self, choice: Choice, now: float) -> None:
        """It waits: it is new, held for its guide or no longer held, or lost its blocks."""
        self._share(choice, self._read(now), now)
        if choice.state is ChoiceState.HELD:
            choice.wait.own = Later(GUIDE, 0, 0)

    def catch(self, choices: Sequence[Choice], now: float) -> None:
        """Those of them that came into the queue, and are not known to be there, wait from now on."""
        for choice in choices:
            if choice.state is ChoiceState.PREEMPTED and not self.times(choice):
                self.enter(choice, now)

    def times(self, choice: Choice) -> bool:
        """Is it known to wait?"""
        return choice.wait.own is not None or choice.wait.clocks is not None

    def planned(self, asked: Sequence[Choice], num_waiting: int, shortage: str, now: float) -> None:
        """A plan is made: those `asked` have said in `wait.lacks` what they lack, the others lack `shortage`."""
        num_others = num_waiting - len(asked)
        common = (shortage or BEHIND) if num_others > 0 else STEP
        self.counts = dict(Counter([choice.wait.lacks.resource for choice in asked])) if asked else {}
        if num_others > 0:
            self.counts[common] = self.counts.get(common, 0) + num_others
        if common != self._common:
            self._clocks, self._common, self._since = self._read(now), common, now
        if asked or self._asked:
            self._own_reasons(asked, now)

    def left(self, choice: Choice, now: float) -> tuple[Waited, ...]:
        """It runs from now on. What it waited for, first things first."""
        waited = self.of(choice, now)
        choice.wait.own, choice.wait.clocks, choice.wait.spent = None, None, {}
        return waited

    def of(self, choice: Choice, now: float) -> tuple[Waited, ...]:
        """What it has waited for so far. Pure."""
        spent = self._spent(choice, now)
        return tuple([Waited(name, seconds, need, have) for name, (seconds, need, have) in spent.items()])

    def lacks(self, choice: Choice) -> str:
        """What it waits for since the last plan, or since it came. Pure."""
        return self._common if choice.wait.own is None else choice.wait.own.resource

    def for_tokens_s(self, choice: Choice, now: float) -> float:
        """For how long it has waited for what comes sooner where prompts have more of each step. Pure."""
        return sum([seconds for reason, (seconds, _, _) in self._spent(choice, now).items() if reason in _OF_TOKENS])

    def _own_reasons(self, asked: Sequence[Choice], now: float) -> None:
        self._num_plans += 1
        for choice in asked:
            wait = choice.wait
            if wait.own is None or wait.own.resource != wait.lacks.resource:
                wait.spent, wait.clocks, wait.since = self._spent(choice, now), None, now
            wait.own, wait.asked_in = wait.lacks, self._num_plans
        for choice in self._asked:
            if choice.wait.asked_in != self._num_plans and choice.wait.own is not None:
                self._share(choice, self._read(now), now)
        self._asked = asked

    def _share(self, choice: Choice, clocks: dict[str, float], now: float) -> None:
        """From now on it has no reason of its own."""
        wait = choice.wait
        wait.spent = self._spent(choice, now)
        wait.own, wait.clocks, wait.since = None, clocks, now

    def _read(self, now: float) -> dict[str, float]:
        return {**self._clocks, self._common: self._clocks.get(self._common, 0.0) + now - self._since}

    def _spent(self, choice: Choice, now: float) -> dict[str, tuple[float, int, int]]:
        """Reason -> seconds, need and have, up to now."""
        wait = choice.wait
        spent = dict(wait.spent)
        if wait.own is not None:
            before, _, _ = spent.get(wait.own.resource, (0.0, 0, 0))
            spent[wait.own.resource] = (before + now - wait.since, wait.own.need, wait.own.have)
        elif wait.clocks is not None:
            for name, seconds in self._read(now).items():
                passed = seconds - wait.clocks.get(name, 0.0)
                if passed > _LEAST_S:
                    need, have = _NUMBERS.get(name, _IN_SHORTAGE)
                    before, need, have = spent.get(name, (0.0, need, have))
                    spent[name] = (before + passed, need, have)
        return spent


_NUMBERS: dict[str, tuple[int, int]] = dict.fromkeys((STEP, BEHIND, "preemption"), (0, 0))
