"""Gauges: how full one replica is, counted from its blocks and from everybody's place."""

from octavo.core.cache import KvCache
from octavo.core.events import Stepped
from octavo.core.roster import Roster
from octavo.core.types import Load
from octavo.core.waits import GUIDE, STEP


def load_of(cache: KvCache, roster: Roster) -> Load:
    """For admission and routers: what there is, and what is still to be done."""
    pool, waiting = cache.pool, (*roster.waiting, *roster.held)
    return Load(
        num_running=len(roster.running),
        num_waiting=len(waiting),
        num_waiting_tokens=sum([len(choice.tokens) for choice in waiting]),
        num_held=len(roster.held),
        blocks_blank=pool.num_blank,
        blocks_cached=pool.num_cached,
        blocks_leased=cache.num_leased,
        blocks_pinned=cache.pins.num_blocks,
        blocks_reserved=pool.num_reserved,
        prefix_queries=cache.queries,
        prefix_hits=cache.hits,
        tier_hits=cache.tier_hits,
    )


def stepped(
    cache: KvCache,
    roster: Roster,
    now: float,
    step: int,
    num_tokens: int,
    timings_s: dict[str, float],
    planned: dict[str, int],
) -> Stepped:
    """For metrics, after each step: in O(1). `planned`: how many lacked what, when the step was planned."""
    pool, num_queued, num_held = cache.pool, len(roster.waiting), len(roster.held)
    blocks = (pool.num_blank, pool.num_cached, cache.num_leased)
    counts = (len(roster.running), num_queued + num_held)
    others = (num_held, cache.pins.num_blocks, pool.num_reserved, _waiting(planned, num_queued, num_held))
    return Stepped(now, step, *counts, num_tokens, *blocks, timings_s, *others)


def _waiting(planned: dict[str, int], num_queued: int, num_held: int) -> dict[str, int]:
    """What those who wait now lack: as it was when the step was planned, and added up to them.

    Who came back in the step waits for the next plan; who is held lacks the guide.
    """
    told: dict[str, int] = {}
    for reason, count in planned.items():
        if num_queued:
            told[reason] = min(count, num_queued)
            num_queued -= told[reason]
    if num_queued:
        told[STEP] = told.get(STEP, 0) + num_queued
    return told | {GUIDE: num_held} if num_held else told
