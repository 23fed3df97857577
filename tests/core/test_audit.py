"""Each law notices its own violation: a healthy scheduler is broken on purpose, and the audit names the law."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.core.audit import LAWS, audit
from octavo.core.pins import Pin
from octavo.core.prefix import CachedBlock
from octavo.core.request import ChoiceState
from octavo.core.scheduler import Scheduler
from octavo.core.tiers import Tier
from octavo.core.types import NO_BLOCK
from tests.core.replica import Replica, embedding, limits, request, tier


def busy() -> Replica:
    """A fork with a shared tail, beams, a half-computed embedding, a queue, cached blocks, a tier, a plan in flight."""
    lower = tier(2, persistent=True)
    replica = Replica(limits(num_blocks=20, max_num_batched_tokens=8, max_num_seqs=5), tier=lower)
    replica.submit(request("done", [1] * 9, max_tokens=1))
    replica.run()
    replica.save(2)
    replica.submit(request("forked", [2] * 6, n=2, temperature=1.0))
    replica.submit(request("beams", [5], n=2, use_beam_search=True))
    replica.submit(embedding("long", [3] * 20), request("last", [4]))
    replica.step()
    replica.plan()
    return replica


def lease_a_blank_block(scheduler: Scheduler) -> None:
    scheduler.cache.pool.refs[scheduler.cache.pool.blank()[0]] = 1


def take_a_block(scheduler: Scheduler) -> None:
    scheduler.cache.pool.take()


def promise_too_much(scheduler: Scheduler) -> None:
    scheduler.cache.pool.num_promised += 1


def hold_twice(scheduler: Scheduler) -> None:
    scheduler.cache.pool.refs[scheduler.roster.running[0].lease.table[0]] += 1


def lose_an_entry(scheduler: Scheduler) -> None:
    scheduler.cache.index.forget(scheduler.cache.pool.cached()[0])


def publish_too_early(scheduler: Scheduler) -> None:
    choice = scheduler.roster.running[-1]
    scheduler.cache.index.publish(b"key", (3, 3, 3, 3), None, choice.lease.table[-1:])


def publish_a_lie(scheduler: Scheduler) -> None:
    choice = scheduler.roster.running[0]
    block = choice.lease.table[0]
    scheduler.cache.index.forget(block)
    scheduler.cache.index.publish(b"key", (7, 7, 7, 7), None, [block])


def publish_half_a_block(scheduler: Scheduler) -> None:
    scheduler.cache.index.publish(b"key", (7,), None, scheduler.cache.pool.blank()[:1])


def lose_a_block(scheduler: Scheduler) -> None:
    scheduler.roster.running[0].lease.table = (NO_BLOCK, *scheduler.roster.running[0].lease.table[1:])


def keep_what_is_behind_the_window(scheduler: Scheduler) -> None:
    scheduler.cache.groups = replace(scheduler.cache.groups, windows=(1,))


def plan_into_a_shared_block(scheduler: Scheduler) -> None:
    plan = scheduler.in_flight
    assert plan is not None
    work = plan.work[0]
    cached = scheduler.cache.pool.cached()[0]
    work = work._replace(block_ids=(*work.block_ids[:-1], cached))
    scheduler.in_flight = replace(plan, work=(work, *plan.work[1:]))


def overspend(scheduler: Scheduler) -> None:
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=1)


def differ_in_a_shared_block(scheduler: Scheduler) -> None:
    scheduler.roster.running[1].tokens[0] += 1


def run_without_a_move(scheduler: Scheduler) -> None:
    scheduler.roster.waiting[0].state = ChoiceState.RUNNING


def finish_and_keep_blocks(scheduler: Scheduler) -> None:
    scheduler.roster.running[0].state = ChoiceState.PREEMPTED


def forget_a_demand(scheduler: Scheduler) -> None:
    scheduler.roster.demands.remove("", scheduler.roster.waiting[0].demand)


def queue_out_of_order(scheduler: Scheduler) -> None:
    scheduler.roster.running.reverse()


def compute_too_much(scheduler: Scheduler) -> None:
    scheduler.roster.running[0].computed += 5


def draw_for_the_finished(scheduler: Scheduler) -> None:
    scheduler.roster.running[0].draw_for((0, 1))


def follow_nobody(scheduler: Scheduler) -> None:
    scheduler.roster.requests["last"][0].state = ChoiceState.FOLLOWING
    scheduler.roster.requests["last"] *= 2


def skip_what_is_owed(scheduler: Scheduler) -> None:
    scheduler.roster.requests["long"][0].noted -= 1


def go_on_after_an_embedding(scheduler: Scheduler) -> None:
    scheduler.roster.requests["long"][0].tokens.append(1)


def lose_a_sum(scheduler: Scheduler) -> None:
    scheduler.roster.requests["long"][0].total = b""


def mistake_a_beam(scheduler: Scheduler) -> None:
    scheduler.roster.requests["beams"][1].tokens[-1] ^= 1


def wait_without_candidates(scheduler: Scheduler) -> None:
    choice = scheduler.roster.requests["beams"][0]
    choice.computed = len(choice.tokens)


def claim_for_ever(scheduler: Scheduler) -> None:
    scheduler.cache.claims.by_key[b"key"] = scheduler.roster.running[0]


def remember_what_never_was(scheduler: Scheduler) -> None:
    scheduler.roster.waiting[0].chain.found = scheduler.cache.index.entries()[:1]


def pin_what_cannot_be_hit(scheduler: Scheduler) -> None:
    lease = scheduler.cache.new_lease()
    assert lease.append_slots(1) == ()
    scheduler.cache.pins.add(Pin("p", "", 1, 1, 1e9), lease)


def accept_who_has_no_room_beside_a_pin(scheduler: Scheduler) -> None:
    scheduler.limits = replace(scheduler.limits, max_model_len=80)
    entry = scheduler.cache.index.entry_of(scheduler.cache.pool.cached()[0])
    assert entry is not None
    scheduler.cache.pins.add(Pin("p", "", 4, 1, 1e9), scheduler.cache.new_lease([entry], 4))


def miscount_the_tier(scheduler: Scheduler) -> None:
    tier_of(scheduler).num_storing += 1


def overfill_the_tier(scheduler: Scheduler) -> None:
    lower = tier_of(scheduler)
    lower.limits = replace(lower.limits, num_blocks=0)


def drop_from_the_tier_what_is_on_its_way(scheduler: Scheduler) -> None:
    tier_of(scheduler).evictable[b"key"] = None


def misname_a_block_of_the_tier(scheduler: Scheduler) -> None:
    blocks = tier_of(scheduler).blocks
    key = next(iter(blocks))
    blocks[b"another"] = blocks.pop(key)


def run_and_want_a_block_of_the_tier(scheduler: Scheduler) -> None:
    lower = tier_of(scheduler)
    next(iter(lower.blocks.values())).owners.add(scheduler.roster.running[0])


def forget_who_waits(scheduler: Scheduler) -> None:
    scheduler.waits.left(scheduler.roster.waiting[0], 9.0)


def time_who_runs(scheduler: Scheduler) -> None:
    scheduler.waits.enter(scheduler.roster.running[0], 9.0)


def tier_of(scheduler: Scheduler) -> Tier:
    assert scheduler.cache.tier is not None
    return scheduler.cache.tier


BREAKS: list[tuple[str, Callable[[Scheduler], None]]] = [
    ("reservations_add_up", promise_too_much),
    ("blocks_add_up", lease_a_blank_block),
    ("counts_are_holders", take_a_block),
    ("counts_are_holders", hold_twice),
    ("index_and_blocks_are_inverse", lose_an_entry),
    ("entries_are_full", publish_too_early),
    ("entries_are_full", publish_a_lie),
    ("entries_are_full", publish_half_a_block),
    ("windows_are_held", lose_a_block),
    ("windows_are_held", keep_what_is_behind_the_window),
    ("writes_are_exclusive", plan_into_a_shared_block),
    ("steps_keep_their_budgets", overspend),
    ("sharing_is_of_equals", differ_in_a_shared_block),
    ("life_cycle_is_kept", run_without_a_move),
    ("life_cycle_is_kept", finish_and_keep_blocks),
    ("life_cycle_is_kept", queue_out_of_order),
    ("demands_add_up", forget_a_demand),
    ("tokens_are_within_bounds", compute_too_much),
    ("nobody_draws_for_the_finished", draw_for_the_finished),
    ("nobody_draws_for_the_finished", follow_nobody),
    ("what_is_owed_is_computed", skip_what_is_owed),
    ("what_is_owed_is_computed", go_on_after_an_embedding),
    ("what_is_owed_is_computed", lose_a_sum),
    ("beams_keep_step", mistake_a_beam),
    ("beams_keep_step", wait_without_candidates),
    ("claims_are_live", claim_for_ever),
    ("what_was_found_is_there", remember_what_never_was),
    ("pins_leave_room", pin_what_cannot_be_hit),
    ("pins_leave_room", accept_who_has_no_room_beside_a_pin),
    ("tier_adds_up", miscount_the_tier),
    ("tier_adds_up", overfill_the_tier),
    ("tier_adds_up", drop_from_the_tier_what_is_on_its_way),
    ("tier_adds_up", misname_a_block_of_the_tier),
    ("tier_adds_up", run_and_want_a_block_of_the_tier),
    ("waits_are_timed", forget_who_waits),
    ("waits_are_timed", time_who_runs),
]


def test_a_healthy_scheduler_keeps_every_law() -> None:
    assert audit(busy().scheduler) == ()


@pytest.mark.parametrize(("law", "harm"), BREAKS)
def test_a_broken_law_is_named(law: str, harm: Callable[[Scheduler], None]) -> None:
    scheduler = busy().scheduler
    harm(scheduler)
    assert law in {violation.partition(":")[0] for violation in audit(scheduler)}


def test_every_law_has_a_break() -> None:
    assert {law.__name__ for law in LAWS} == {name for name, _ in BREAKS}


def test_an_audit_changes_nothing() -> None:
    replica = busy()
    before = (
        list(replica.scheduler.cache.pool.refs),
        replica.scheduler.cache.pool.cached(),
        replica.scheduler.in_flight,
    )
    for _ in range(2):
        audit(replica.scheduler)
    assert before == (
        list(replica.scheduler.cache.pool.refs),
        replica.scheduler.cache.pool.cached(),
        replica.scheduler.in_flight,
    )
    assert isinstance(replica.scheduler.cache.index.entries()[0], CachedBlock)
