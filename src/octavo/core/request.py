"""Request: what was asked, a value that never changes; and the life cycle of its choices, as one transition table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from octavo.core.sampling import SamplingParams
from octavo.core.types import Pooling, RequestId, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One submission: a prompt, and choices that continue it: `params.num_choices` come out. Or its embedding does."""

    request_id: RequestId
    prompt: tuple[TokenId, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """Resolved by whoever submits: `params.seed` or one drawn at random. 0 <= seed < 2**64."""
    arrival_s: float = 0.0
    priority: int = 0
    """Lower goes first, under `--scheduling-policy priority`."""
    namespace: bytes = b""
    """Whose cache this request may share: part of every block key. Tenant and salt, digested."""
    tenant: str = ""
    """Who pays for it: shares, limits and meters go by this name. Requests that name nobody are one tenant together."""
    weight: int = 1
    """The tenant's share beside that of others, under `--scheduling-policy fair`."""
    pooling: Pooling | None = None
    """An embedding is wanted, made so, and no token: `params` are the defaults then. Else ValueError."""

    def __post_init__(self) -> None:
        if self.pooling is not None and self.params != SamplingParams():
            raise ValueError("an embedding draws no token, so it has no sampling parameters")

    def demand(self, expected: int) -> int:
        """Tokens that it counts for in the queue, where each of its choices is expected to add so many."""
        return len(self.prompt) + self.params.width * expected


class ChoiceState(StrEnum):
    """Where a choice is in its life. Only a RUNNING choice holds blocks."""

    HELD = "held"
    """It waits for something from outside, without which it cannot begin: its guide."""
    WAITING = "waiting"
    """Queued for its first work."""
    FOLLOWING = "following"
    """It waits until another choice of its request, at first choice 0, has computed their common prompt. Or it is a
    beam that has its candidates, and has lost its lease while it waits for those beside it."""
    RUNNING = "running"
    """Holds a lease and gets work."""
    PREEMPTED = "preempted"
    """Lost its lease to another; queued again, at its old place."""
    FINISHED = "finished"


class Move(StrEnum):
    """What can happen to a choice."""

    RELEASE = "release"
    ADMIT = "admit"
    FORK = "fork"
    PREEMPT = "preempt"
    PARK = "park"
    QUEUE = "queue"
    FINISH = "finish"


TRANSITIONS: Mapping[tuple[ChoiceState, Move], ChoiceState] = {
    (ChoiceState.HELD, Move.RELEASE): ChoiceState.WAITING,
    (ChoiceState.WAITING, Move.ADMIT): ChoiceState.RUNNING,
    (ChoiceState.FOLLOWING, Move.FORK): ChoiceState.RUNNING,
    (ChoiceState.RUNNING, Move.PREEMPT): ChoiceState.PREEMPTED,
    (ChoiceState.RUNNING, Move.PARK): ChoiceState.FOLLOWING,
    (ChoiceState.FOLLOWING, Move.QUEUE): ChoiceState.PREEMPTED,
    (ChoiceState.PREEMPTED, Move.ADMIT): ChoiceState.RUNNING,
    (ChoiceState.HELD, Move.FINISH): ChoiceState.FINISHED,
    (ChoiceState.WAITING, Move.FINISH): ChoiceState.FINISHED,
    (ChoiceState.FOLLOWING, Move.FINISH): ChoiceState.FINISHED,
    (ChoiceState.RUNNING, Move.FINISH): ChoiceState.FINISHED,
    (ChoiceState.PREEMPTED, Move.FINISH): ChoiceState.FINISHED,
}
"""The whole life cycle. What is not in this table cannot happen.

    HELD ----release---> WAITING
    WAITING ---admit---> RUNNING ---preempt---> PREEMPTED ---admit---> RUNNING
    FOLLOWING --fork---> RUNNING ---park (a beam that waits)---> FOLLOWING ---queue---> PREEMPTED
    any of these --finish--> FINISHED
"""


class IllegalTransition(RuntimeError):
    """A move that the life cycle does not have: a bug in the caller, never a client's fault."""


def after(state: ChoiceState, move: Move) -> ChoiceState:
    """The state that `move` leads to; raises IllegalTransition where there is none."""
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise IllegalTransition(f"a {state} choice cannot {move}") from None
