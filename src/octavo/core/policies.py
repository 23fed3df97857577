"""The choices that operators may vary: small pure functions, found by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from octavo.core.choice import Choice
from octavo.core.request import Request

_T = TypeVar("_T")

MAX_PREEMPTED = 3
"""After so many preemptions a choice is no victim again while there is another of its rank."""

Rank = Callable[[Request], int]
Victim = Callable[[Sequence[Choice]], Choice]
Chunk = Callable[[int, int, bool], int]


def _first_come(request: Request) -> int:
    return 0


def _by_priority(request: Request) -> int:
    return request.priority


RANKS: Mapping[str, Rank] = {"fcfs": _first_come, "priority": _by_priority, "fair": _first_come}
"""`--scheduling-policy`: the rank of a request. Lower ranks go first; within a rank, who came first.

In what order those who wait are asked to start, `turns.py` says.

A waiting request displaces running ones of a higher rank; so under `fcfs`, where all ranks are equal, it never does.
"""


def least_work_lost(candidates: Sequence[Choice]) -> Choice:
    """The one with the fewest computed tokens, the latest among equals; one that frees nothing only if all do."""
    return min(reversed(candidates), key=lambda choice: (not choice.lease.frees_tail, choice.computed))


def spared(candidates: Sequence[Choice]) -> Sequence[Choice]:
    """The candidates without those that lost their blocks MAX_PREEMPTED times already; all where there is no other."""
    return [choice for choice in candidates if choice.wait.num_preempted < MAX_PREEMPTED] or candidates


def latest(candidates: Sequence[Choice]) -> Choice:
    """The last one in the order."""
    return candidates[-1]


VICTIMS: Mapping[str, Victim] = {"least_work_lost": least_work_lost, "latest": latest}
"""Who loses its blocks. Candidates come in order, and none of them is ahead of the one that needs the blocks."""


def fill(num_left: int, num_tokens: int, others_wait: bool) -> int:
    """All that is left of the step."""
    return min(num_left, num_tokens)


def share(num_left: int, num_tokens: int, others_wait: bool) -> int:
    """A prompt that does not fit leaves half of the step's rest to those who wait, so it never blocks short ones."""
    if num_left <= num_tokens or not others_wait:
        return min(num_left, num_tokens)
    return (num_tokens + 1) // 2


FOR_EACH_DECODE = 4
"""Prompt tokens that a step may have for each decode in it, where many decodes make it long anyhow."""
PATIENCE_S = 2.0
"""When the first in the queue has waited for tokens for so long, prompts get their part twice, then three times, ..."""
MOST_BESIDE = 4
"""... up to one part in so many of a whole step."""


def beside_decodes(num_tokens: int, num_decodes: int, least: int, waited_s: float, whole: int) -> int:
    """What of the `num_tokens` that a step has left is for prompts: each decode in it waits until they are computed.

    `least`, or FOR_EACH_DECODE for each decode if that is more, and the more the longer the first in the queue has
    waited for them (`waited_s`): a first token may not come ever later so that next ones come evenly. `whole` is what a
    step without decodes has. All where `least` is 0, and where there are no decodes.
    """
    if not least or not num_decodes:
        return num_tokens
    part = max(least, FOR_EACH_DECODE * num_decodes)
    patient = min(int(part * (1 + waited_s / PATIENCE_S)), whole // MOST_BESIDE)
    return min(num_tokens, max(part, patient))


CHUNKS: Mapping[str, Chunk] = {"share": share, "fill": fill}
"""How many of a prompt's `num_left` tokens to compute where the step has room for `num_tokens` more."""


def named(what: str, table: Mapping[str, _T], name: str) -> _T:
    """What `table` has under `name`. Raises ValueError, with all that there is, for a name that it does not have."""
    if name not in table:
        raise ValueError(f"{what} must be one of {', '.join(sorted(table))}, got {name!r}")
    return table[name]
