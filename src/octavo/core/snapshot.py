"""Snapshot: one replica as it is between two steps, as a value: its blocks, its queue, and who is where in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.cache import KvCache
from octavo.core.choice import Choice
from octavo.core.gauges import load_of
from octavo.core.request import ChoiceState
from octavo.core.roster import Roster
from octavo.core.scheduler import Scheduler
from octavo.core.types import Load, RequestId
from octavo.core.waits import Waited, Waits

BLANK, CACHED, LEASED, SHARED, PINNED = b".cLSP"
LEGEND = {
    ".": "blank: nothing in it is worth keeping",
    "c": "cached: nobody holds it, and it can be hit",
    "L": "leased: one choice holds it",
    "S": "shared: several choices hold it",
    "P": "pinned: it is kept whoever comes",
}
"""What the cells of a map stand for."""

_PLACES = {
    ChoiceState.RUNNING: 0,
    ChoiceState.FOLLOWING: 1,
    ChoiceState.PREEMPTED: 2,
    ChoiceState.WAITING: 3,
    ChoiceState.HELD: 4,
}
"""A request is where the foremost of its choices is; those that follow a waiting one do not count."""


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request that is not over."""

    request_id: RequestId
    tenant: str
    state: ChoiceState
    """Where the foremost of its choices is."""
    arrival_s: float
    priority: int
    prompt_len: int
    num_choices: int
    """Of them, those that are not over."""
    num_computed: int
    """Tokens whose KV is there, over all choices."""
    num_generated: int
    num_blocks: int
    """That its choices hold, each counted once."""
    num_preempted: int
    lacks: str = ""
    """What it waits for now; empty where it runs."""
    waited: tuple[Waited, ...] = ()
    """What it has waited for since it was queued or preempted, where it waits."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    time_s: float
    step: int
    """The last one that had work."""
    load: Load
    waiting: dict[str, int]
    """What those who waited lacked at the last plan -> how many of them."""
    cells: str
    """The pool in the order of its blocks, a character of LEGEND for each cell."""
    blocks_per_cell: int
    requests: tuple[LiveRequest, ...]
    """Those that run, in order, then those that wait; no more than were asked for."""
    num_requests: int


def snapshot(scheduler: Scheduler, most_requests: int, most_cells: int, now: float) -> Snapshot:
    """What a replica looks like. Pure; its cost is linear in its blocks and its requests."""
    cache, roster = scheduler.cache, scheduler.roster
    cells, size = cells_of(cache, most_cells)
    names = dict.fromkeys([choice.request_id for choice in (*roster.running, *roster.waiting, *roster.held)])
    shown = list(names)[:most_requests]
    return Snapshot(
        time_s=now,
        step=scheduler.step,
        load=load_of(cache, roster),
        waiting=dict(scheduler.waits.counts),
        cells=cells,
        blocks_per_cell=size,
        requests=tuple([_live(roster, scheduler.waits, name, now) for name in shown]),
        num_requests=len(roster.requests),
    )


def cells_of(cache: KvCache, most_cells: int) -> tuple[str, int]:
    """The states of all blocks, and how many neighbouring blocks a cell stands for: it has the state of most of them.

    Of equally many, the one that holds more wins: pinned, shared, leased, cached, blank.
    """
    return gathered(block_states(cache).decode(), most_cells)


def gathered(cells: str, most_cells: int) -> tuple[str, int]:
    """The same map in no more than so many cells, and how many of the old ones each stands for."""
    size = max(1, -(-len(cells) // most_cells))
    if size == 1:
        return cells, 1
    return "".join([_commonest(cells[at : at + size]) for at in range(0, len(cells), size)]), size


def block_states(cache: KvCache) -> bytes:
    """The state of each block."""
    pool = cache.pool
    marks = bytearray(bytes((CACHED, LEASED, SHARED))[min(holders, 2)] for holders in pool.refs)
    for block in pool.blank():
        marks[block] = BLANK
    for block in cache.pins.blocks:
        marks[block] = PINNED
    return bytes(marks)


def _commonest(cells: str) -> str:
    return max("PSLc.", key=cells.count)


def _live(roster: Roster, waits: Waits, name: RequestId, now: float) -> LiveRequest:
    choices = roster.unfinished(name)
    first = min(choices, key=_place)
    waits_now = first.state not in (ChoiceState.RUNNING, ChoiceState.FOLLOWING)
    return LiveRequest(
        request_id=name,
        tenant=first.request.tenant,
        state=first.state,
        arrival_s=first.request.arrival_s,
        priority=first.request.priority,
        prompt_len=first.prompt_len,
        num_choices=len(choices),
        num_computed=sum([choice.computed for choice in choices]),
        num_generated=sum([max(0, len(choice.tokens) - choice.prompt_len) for choice in choices]),
        num_blocks=_num_blocks(choices),
        num_preempted=sum([choice.wait.num_preempted for choice in choices]),
        lacks=waits.lacks(first) if waits_now else "",
        waited=waits.of(first, now) if waits_now else (),
    )


def _place(choice: Choice) -> int:
    """A follower without tokens stands behind all others: its leader says where the request is."""
    return _PLACES[choice.state] if choice.tokens else len(_PLACES)


def _num_blocks(choices: Sequence[Choice]) -> int:
    if len(choices) == 1:
        return choices[0].lease.num_blocks
    held = set[int]().union(*[choice.lease.table for choice in choices])
    return len([block for block in held if block >= 0])
