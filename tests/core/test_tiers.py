"""The lower tier by name: what goes down, what comes up, what it costs, and that it changes no token."""

import msgspec
import pytest

from octavo.core.audit import audit
from octavo.core.events import Admitted, Tiered
from octavo.core.hashing import BlockHash
from octavo.core.plan import StepPlan
from octavo.core.request import ChoiceState
from octavo.core.tiers import Costs, Found, NotStored, Room, Scanned, TierState, swap_pays
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, one_bit, request, tier

A, B = [1, 2, 3, 4] * 3, [5, 6, 7, 0] * 3
"""Prompts of three blocks: two of them, and what they generate, do not fit into four blocks."""


def tight(num_blocks: int = 20, num_pool: int = 4, **changes) -> Replica:
    """A pool of four blocks, over a tier."""
    caching = changes.pop("enable_prefix_caching", True)
    below = tier(num_blocks, **changes)
    return Replica(limits(num_blocks=num_pool, enable_prefix_caching=caching), tier=below, watermark=0.0)


def serve(replica: Replica, name: str, prompt: list[int], **params) -> int:
    """Runs one request to its end; returns how many tokens it found."""
    replica.submit(request(name, prompt, **{"max_tokens": 2, **params}))
    replica.run()
    return replica.outcomes[name].cached_tokens


def last(replica: Replica) -> Tiered:
    return next(event for event in reversed(replica.events) if isinstance(event, Tiered))


# ---- down and up ----


def test_what_the_pool_evicts_is_stored_and_can_be_hit_again() -> None:
    replica = tight()
    first = [serve(replica, f"{turn}/{name}", prompt) for turn in range(2) for name, prompt in (("a", A), ("b", B))]
    assert first == [0, 0, 11, 11]
    told = last(replica)
    assert told.stores == told.blocks_stored == 6 and told.loads >= 4 and told.blocks_staged == 0
    assert replica.outcomes["0/a"].tokens == replica.outcomes["1/a"].tokens


def test_the_last_block_of_a_prompt_is_loaded_to_compute_one_token_and_not_copied() -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("again", A, max_tokens=1))
    plans = [replica.step() for _ in range(2)]
    assert not plans[0].work and len(plans[0].transfers.fetches) == 3
    (work,) = plans[1].work
    assert (work.start, len(work.tokens), plans[1].copies) == (11, 1, ())
    assert [load.block for load in plans[1].transfers.loads] == list(work.block_ids)


def test_a_hit_in_the_pool_is_continued_in_the_tier() -> None:
    """A chain loses its tail first: its head is still in the pool."""
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", [9 % 8] * 5)
    assert len(replica.scheduler.cache.index.match(chain := key_chain(replica, A))) == 2
    assert len(replica.scheduler.cache.tier.match(chain, replica.scheduler.cache.index.match(chain))) == 1
    assert serve(replica, "again", A) == 11


def key_chain(replica: Replica, tokens: list[int], namespace: bytes = b""):
    chain = replica.scheduler.cache.new_chain(namespace)
    chain.extend(tokens)
    return chain


def test_what_is_loaded_can_be_hit_only_after_the_step_and_is_loaded_once() -> None:
    """Equal prompts arrive together: the second waits for the first to load, as it does where that one computes."""
    replica = tight(num_pool=7)
    serve(replica, "a", A)
    serve(replica, "b", B * 2)
    replica.submit(request("x", [*A, 0], max_tokens=2), request("y", [*A, 1], max_tokens=2))
    replica.run()
    assert last(replica).loads == 3
    assert [replica.outcomes[name].cached_tokens for name in "xy"] == [12, 12]


def test_what_was_loaded_by_a_step_that_fails_cannot_be_hit() -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("again", A))
    replica.step()
    plan = replica.plan()
    assert plan.transfers.loads
    replica.shelf.execute(plan, lambda: None)
    replica.fail(plan)
    assert not len(replica.scheduler.cache.index) or not replica.scheduler.cache.index.match(key_chain(replica, A))
    assert serve(replica, "once more", A) == 11


def test_a_tier_drops_what_was_used_least_recently_and_tails_first() -> None:
    replica = tight(num_blocks=3)
    serve(replica, "a", A)
    serve(replica, "b", B)
    held = replica.scheduler.cache.tier
    assert [held.blocks[key].content.tokens for key in held.evictable] == [tuple(A[:4])] * 3
    assert list(held.evictable) == key_chain(replica, A).keys[::-1]
    serve(replica, "c", [1] * 5)
    assert next(iter(held.evictable)) == key_chain(replica, A).keys[1]
    assert last(replica).evictions == 1


# ---- OK, LATER, NEVER ----


def test_room_is_ok_later_or_never() -> None:
    assert tier(1).room() is Room.OK
    assert tier(1, num_storing=0).room() is Room.LATER
    assert tier(0).room() is Room.NEVER
    dear = tier(1)
    dear.note(Costs(block_bytes=100, store_bytes_per_s=100.0, load_bytes_per_s=100.0, prefill_tokens_per_s=4.0))
    assert dear.room() is Room.NEVER, "two seconds to move what takes one to compute"
    shut = tier(1)
    shut.note(NotStored(b"unknown", gives_up=True))
    assert shut.room() is Room.NEVER and shut.closed


def test_a_full_tier_takes_more_later_where_all_of_it_is_on_its_way() -> None:
    replica = tight(num_blocks=1, num_storing=1)
    serve(replica, "a", A)
    replica.submit(request("b", B, max_tokens=2))
    plan = replica.step(deliver=False)
    assert len(plan.transfers.stores) == 1 and replica.scheduler.cache.tier.room() is Room.LATER
    replica.step(deliver=False)
    assert last(replica).skipped == 2 and last(replica).blocks_storing == 1
    replica.deliver()
    assert replica.scheduler.cache.tier.room() is Room.OK
    replica.run()


@pytest.mark.parametrize(("num_blocks", "found"), [(0, 0), (1, 4), (2, 7)])
def test_a_pool_of_one_block_is_handled_exactly(num_blocks: int, found: int) -> None:
    """Each request takes all of it, and the tier has the others' block: while it has room for it."""
    tiny = limits(num_blocks=2, max_model_len=8)
    replica = Replica(tiny, tier=tier(num_blocks), watermark=0.0)
    prompts = [[1] * 4 + [2] * 3, [3] * 4 + [4] * 3]
    for turn in range(2):
        got = [serve(replica, f"{turn}/{i}", prompt, max_tokens=1) for i, prompt in enumerate(prompts)]
    assert got[0] == min(found, 4)
    for i in range(2):
        assert replica.outcomes[f"0/{i}"].tokens == replica.outcomes[f"1/{i}"].tokens


def test_what_does_not_fit_into_the_buffers_is_computed_and_not_waited_for() -> None:
    replica = tight(num_staged=2)
    serve(replica, "a", A)
    serve(replica, "b", B)
    assert serve(replica, "again", A) == 8
    none = tight(num_staged=0)
    serve(none, "a", A)
    serve(none, "b", B)
    assert serve(none, "again", A) < 8


# ---- preemption ----


def two(replica: Replica) -> None:
    replica.submit(request("a", [1] * 6, max_tokens=6), request("b", [2] * 6, max_tokens=6))
    replica.run()


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_choice_loses_its_partial_block_only(caching: bool) -> None:
    replica = tight(enable_prefix_caching=caching)
    two(replica)
    (event,) = replica.preemptions()
    assert (event.request_id, event.tokens_swapped, event.tokens_lost) == ("b", 8, 0)
    assert "; swap: to move 2 blocks takes" in event.reason
    resumed = next(e for e in replica.events if isinstance(e, Admitted) and e.resumed)
    assert resumed.cached_tokens == 8
    roomy = limits(num_blocks=100)
    assert replica.outcomes["b"].tokens == alone(request("b", [2] * 6, max_tokens=6), roomy).tokens


def test_a_preempted_choice_computes_again_where_that_is_cheaper() -> None:
    replica = tight(enable_prefix_caching=False)
    costs = Costs(block_bytes=100, store_bytes_per_s=50.0, load_bytes_per_s=50.0, prefill_tokens_per_s=1000.0)
    replica.scheduler.note([costs], 0.0)
    two(replica)
    (event,) = replica.preemptions()
    assert (event.tokens_swapped, event.tokens_lost) == (0, 8)
    assert event.reason.endswith("; recompute: to move 2 blocks takes 8000.0 ms, to compute them 8.0 ms")
    assert not replica.shelf.kept


def test_swap_pays_where_moving_is_cheaper_than_computing() -> None:
    costs = Costs(block_bytes=10**6, store_bytes_per_s=10**9, load_bytes_per_s=10**9, prefill_tokens_per_s=1000.0)
    assert swap_pays(costs, 3, 48)[0] and not swap_pays(costs, 3, 5)[0]
    assert swap_pays(Costs(block_bytes=10**6), 3, 48)[0], "nothing is measured yet"


@pytest.mark.parametrize("budget", [2, 3, 256])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_swapped_is_recomputed_is_undisturbed(budget: int, caching: bool, n: int) -> None:
    small = limits(num_blocks={1: 5, 2: 8}[n], max_num_batched_tokens=budget, enable_prefix_caching=caching)
    requests = [
        request(f"r{i}", [i % 3, 1, 2, i % 2], max_tokens=12, n=n, temperature=float(i % 2), logprobs=2)
        for i in range(6)
    ]
    outcomes = []
    for below in (tier(30), tier(2, num_staged=1), None):
        replica = Replica(small, tier=below, watermark=0.0)
        replica.submit(*requests)
        replica.run(max_steps=3000)
        outcomes.append({one.request_id: replica.outcomes[one.request_id].tokens for one in requests})
        swapped = any(event.tokens_swapped for event in replica.preemptions())
        assert swapped == (below is not None and bool(replica.preemptions()))
    roomy = limits(num_blocks=100, max_num_batched_tokens=256)
    due = {one.request_id: alone(one, roomy).tokens for one in requests}
    assert outcomes == [due] * 3


def test_a_choice_s_own_blocks_are_gone_when_it_is_over() -> None:
    replica = tight(enable_prefix_caching=False)
    two(replica)
    cache = replica.scheduler.cache
    assert (len(cache.index), len(cache.tier.blocks), cache.pool.num_cached) == (0, 0, 0)
    replica.save(1)
    assert not replica.shelf.kept


def test_without_prefix_caching_nobody_finds_another_s_blocks() -> None:
    replica = tight(enable_prefix_caching=False)
    two(replica)
    assert serve(replica, "c", [2] * 6) == 0
    replica.submit(request("d", [2] * 6, max_tokens=6), request("e", [2] * 6, max_tokens=6))
    replica.run()
    first = [replica.outcomes[name].cached_tokens for name in "de"]
    assert first == [0, 0]


# ---- safety ----


def test_tokens_are_compared_back_to_the_first() -> None:
    """Under a hash of one bit nearly everything collides."""
    replica = Replica(limits(num_blocks=4), tier=tier(20), watermark=0.0, block_hash=BlockHash(one_bit))
    prompts = {f"{turn}/{i}": [i, turn % 2, i, 1, 2, 3, i, i, 3] for turn in range(3) for i in range(6)}
    for name, prompt in prompts.items():
        serve(replica, name, prompt)
        assert replica.outcomes[name].tokens == alone(request(name, prompt, max_tokens=2), limits()).tokens


def test_a_namespace_has_blocks_of_its_own() -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("other", A, namespace=b"tenant", max_tokens=2))
    replica.run()
    assert replica.outcomes["other"].cached_tokens == 0


def test_a_block_that_cannot_be_read_is_computed() -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("again", A, max_tokens=2))
    replica.step(deliver=False)
    replica.shelf.spoil(1)
    replica.deliver()
    replica.run()
    assert replica.outcomes["again"].cached_tokens == 4
    assert replica.outcomes["again"].tokens == replica.outcomes["a"].tokens
    assert last(replica).load_failures == 1


def test_a_tier_that_does_not_answer_is_closed_and_nobody_waits() -> None:
    replica = tight(patience_s=3.0)
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("again", A, max_tokens=2))
    for _ in range(4):
        assert not replica.step(deliver=False).work
    assert replica.step(deliver=False).work
    replica.run()
    assert replica.outcomes["again"].tokens == replica.outcomes["a"].tokens
    told = last(replica)
    assert told.closed == "a block was not read within 3 s" and told.num_blocks == told.blocks_stored == 0
    assert serve(replica, "b again", B) < 8


def test_when_nothing_can_be_written_what_is_there_is_still_read() -> None:
    replica = tight()
    serve(replica, "a", A)
    replica.submit(request("b", B, max_tokens=2))
    replica.step(deliver=False)
    replica.shelf.spoil(len(replica.shelf.reports) - 1, gives_up=True)
    replica.deliver()
    replica.run()
    stores = last(replica).stores
    assert last(replica).closed == "nothing can be written" and last(replica).store_failures == 1
    assert serve(replica, "again", A) < 11
    assert last(replica).stores == stores


@pytest.mark.parametrize("fetched", [False, True])
def test_whoever_is_cancelled_while_it_waits_leaves_no_buffer(fetched: bool) -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    replica.submit(request("again", A))
    replica.step(deliver=fetched)
    assert replica.scheduler.roster.waiting[0].state is ChoiceState.WAITING
    replica.cancel("again")
    replica.deliver()
    replica.save(0)
    assert replica.outcomes["again"].reasons() == [FinishReason.ABORT]
    assert last(replica).blocks_staged == 0 or replica.scheduler.cache.tier.num_staged == 0
    assert audit(replica.scheduler) == ()


def test_a_reset_empties_the_tier() -> None:
    replica = tight()
    serve(replica, "a", A)
    serve(replica, "b", B)
    assert replica.scheduler.reset_prefix_cache(0.0) is not None
    replica.save(0)
    assert not replica.shelf.kept and not replica.scheduler.cache.tier.blocks
    assert serve(replica, "again", A) == 0


# ---- what survives ----


def test_a_persistent_tier_is_given_what_only_the_pool_has_parents_first() -> None:
    replica = tight(persistent=True)
    serve(replica, "a", A)
    stores = [store for _ in range(4) for store in saved(replica.save(1))]
    assert [store.key for store in stores] == key_chain(replica, A).keys
    assert [store.parent for store in stores] == [None, stores[0].key, stores[1].key]
    serve(replica, "b", B)
    assert last(replica).stores == 3, "what is there is not stored again when it is evicted"


def saved(plan: StepPlan):
    return plan.transfers.stores if plan.transfers else ()


def test_a_tier_that_does_not_survive_is_given_only_what_is_evicted() -> None:
    replica = tight()
    serve(replica, "a", A)
    assert replica.save(9).transfers is None


def found(replica: Replica, tokens: list[int]) -> list[Found]:
    chain = key_chain(replica, tokens)
    return [Found(key, chain.keys[i - 1] if i else None, chain.pieces[i]) for i, key in enumerate(chain.keys)]


def test_what_an_earlier_process_left_can_be_hit() -> None:
    first = tight(persistent=True)
    serve(first, "a", A)
    first.save(9)
    second = tight(persistent=True)
    second.shelf.kept = dict(first.shelf.kept)
    second.scheduler.note([Scanned(tuple(reversed(found(second, A))))], 0.0)
    assert serve(second, "again", A) == 11
    assert second.outcomes["again"].tokens == first.outcomes["a"].tokens


def test_what_cannot_be_reached_from_a_first_block_is_dropped() -> None:
    replica = tight(num_blocks=3)
    whole, orphans = found(replica, A), found(replica, B)[1:]
    odd = Found(b"odd", None, (1, 2))
    replica.scheduler.note([Scanned((*whole, *orphans, odd))], 0.0)
    assert set(replica.scheduler.cache.tier.blocks) == {one.key for one in whole}
    assert set(replica.save(0).transfers.drops) == {one.key for one in (*orphans, odd)}


def test_a_scan_that_comes_late_does_not_disturb_what_is_there() -> None:
    replica = tight(num_blocks=4)
    serve(replica, "a", A)
    serve(replica, "b", B)
    before = {key: entry.state for key, entry in replica.scheduler.cache.tier.blocks.items()}
    replica.scheduler.note([Scanned((*found(replica, A), *found(replica, [0] * 12)))], 0.0)
    replica.check()
    assert set(before.values()) == {TierState.STORED}
    assert before.keys() <= replica.scheduler.cache.tier.blocks.keys()
    assert len(replica.scheduler.cache.tier.blocks) == 4


# ---- as a value ----


def test_a_plan_with_transfers_is_json() -> None:
    replica = tight()
    for name, prompt in (("a", A), ("b", B), ("c", A)):
        serve(replica, name, prompt)
    plans = [plan for plan in replica.plans if plan.transfers]
    assert {kind for plan in plans for kind in ("stores", "fetches", "loads") if getattr(plan.transfers, kind)} == {
        "stores",
        "fetches",
        "loads",
    }
    for plan in plans:
        assert msgspec.json.decode(msgspec.json.encode(plan), type=StepPlan) == plan
