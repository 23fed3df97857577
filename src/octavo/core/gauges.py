"""Gauges: how full one replica is, counted from its blocks and from everybody's place."""

from octavo.core.cache import KvCache
from octavo.core.events import Stepped
from octavo.core.roster import Roster
from octavo.core.types import Load


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
    )


def stepped(
    cache: KvCache,
    roster: Roster,
    now: float,
    step: int,
    num_tokens: int,
    timings_s: dict[str, float],
    waiting: dict[str, int],
) -> Stepped:
    """For metrics, after each step: in O(1). `waiting`: how many lacked what, when the step was planned."""
    pool, num_held = cache.pool, len(roster.held)
    blocks = (pool.num_blank, pool.num_cached, cache.num_leased)
    counts = (len(roster.running), len(roster.waiting) + num_held)
    others = (num_held, cache.pins.num_blocks, pool.num_reserved, waiting)
    return Stepped(now, step, *counts, num_tokens, *blocks, timings_s, *others)
