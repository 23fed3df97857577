"""Pins: what is pinned is never evicted, its time ends, and nobody is left without room for it."""

from dataclasses import replace

import pytest

from octavo.core.events import PrefixPinned, PrefixUnpinned
from octavo.core.pins import PinOutcome
from tests.core.replica import Replica, embedding, limits, request

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 3]
ROOMY = limits(num_blocks=12, max_model_len=16)
"""Four of twelve blocks are the most that one request needs, so pins may hold six."""


def cached(replica: Replica, *prompts: list[int], **fields) -> Replica:
    for prompt in prompts:
        replica.submit(request(f"cached at {replica.now}", prompt, max_tokens=1, **fields))
        replica.run()
    return replica


def churn(replica: Replica) -> None:
    """Evicts all that can be evicted."""
    for number in range(8):
        replica.submit(request(f"churn {replica.now}", [number] * 15, max_tokens=1))
        replica.run()


def hit(replica: Replica, prompt: list[int]) -> int:
    name = f"asks at {replica.now}"
    replica.submit(request(name, prompt, max_tokens=1))
    replica.run()
    return replica.outcomes[name].cached_tokens


def test_what_is_pinned_survives_whatever_else_comes() -> None:
    replica = cached(Replica(ROOMY), PROMPT)
    pin = replica.pin("p", PROMPT).pin
    assert pin is not None and (pin.num_tokens, pin.num_blocks) == (8, 2)
    churn(replica)
    assert hit(replica, PROMPT) == 8 and replica.scheduler.load().blocks_pinned == 2
    assert replica.unpin("p")
    churn(replica)
    assert hit(replica, PROMPT) == 0 and replica.scheduler.load().blocks_pinned == 0


def test_a_pin_ends_when_its_time_is_up() -> None:
    replica = cached(Replica(ROOMY), PROMPT)
    replica.pin("short", PROMPT[:4], ttl_s=3)
    replica.pin("long", PROMPT, ttl_s=1000)
    churn(replica)
    assert [pin.pin_id for pin in replica.scheduler.cache.pins.of("")] == ["long"]
    assert replica.scheduler.load().blocks_pinned == 2, "the other one holds the common block"
    over = [event for event in replica.events if isinstance(event, PrefixUnpinned)]
    assert [(event.pin_id, event.expired) for event in over] == [("short", True)]


def test_what_is_not_cached_whole_must_be_computed_first() -> None:
    replica = cached(Replica(ROOMY), PROMPT[:4])
    assert replica.pin("p", PROMPT) == PinOutcome(num_missing=4)
    cached(replica, PROMPT[:8])
    assert replica.pin("p", PROMPT).pin


def test_a_prefix_shorter_than_a_block_cannot_be_pinned() -> None:
    outcome = Replica(ROOMY).pin("p", PROMPT[:3])
    assert outcome.code == "shorter_than_block" and "3 tokens" in outcome.message and "of 4" in outcome.message


def test_nor_can_anything_where_the_cache_is_off() -> None:
    assert Replica(replace(ROOMY, enable_prefix_caching=False)).pin("p", PROMPT).code == "disabled"


def test_two_pins_of_a_prefix_count_its_blocks_once_and_the_last_one_frees_them() -> None:
    replica = cached(Replica(ROOMY), PROMPT)
    assert replica.pin("a", PROMPT).pin and replica.pin("b", PROMPT, quota=2).pin
    assert replica.pin("b", PROMPT).code == "duplicate_id"
    assert replica.scheduler.load().blocks_pinned == 2
    assert replica.unpin("a") and replica.scheduler.load().blocks_pinned == 2
    assert replica.unpin("b") and replica.scheduler.load().blocks_pinned == 0
    assert not replica.unpin("b"), "twice is harmless"


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_tenant_has_a_quota_and_only_its_own_pins(is_cached: bool) -> None:
    replica = Replica(ROOMY)
    if is_cached:
        cached(replica, PROMPT, [7] * 8)
    refused = replica.pin("p", PROMPT, tenant="a", quota=1)
    assert refused.code == "pin_quota_exceeded" and refused.num_missing == 0, "told before anything is computed"
    if is_cached:
        assert replica.pin("p", PROMPT, tenant="a", quota=2).pin
        assert replica.pin("q", [7] * 8, tenant="a", quota=3).code == "pin_quota_exceeded"
        assert replica.pin("q", [7] * 8, tenant="b", quota=2).pin
        assert not replica.unpin("p", tenant="b") and replica.unpin("p", tenant="a")
        assert [pin.pin_id for pin in replica.scheduler.cache.pins.of("b")] == ["q"]


def test_pins_leave_room_for_one_request_of_the_whole_context() -> None:
    replica = cached(Replica(limits(num_blocks=6, max_model_len=20)), PROMPT)
    assert replica.pin("p", PROMPT).code == "no_room_to_pin", "5 of 6 blocks are the context's"
    assert replica.pin("p", PROMPT[:4]).pin
    replica.submit(request("longest", [5] * 19, max_tokens=1), embedding("whole", [5] * 20))
    replica.run()
    assert len(replica.outcomes["longest"].ids()) == 1 and replica.outcomes["whole"].embedding


def test_pins_hold_at_most_half_of_the_pool() -> None:
    replica = cached(Replica(limits(num_blocks=12, max_model_len=8)), *[[i] * 7 for i in range(8)])
    pinned = [replica.pin(f"p{i}", [i] * 4).pin for i in range(8)]
    assert [pin is not None for pin in pinned] == [True] * 6 + [False] * 2


def test_a_request_that_pins_leave_no_room_for_is_refused_with_the_arithmetic() -> None:
    replica = cached(Replica(ROOMY), PROMPT)
    assert replica.pin("p", PROMPT).pin
    replica.submit(request("wide", PROMPT[:7], n=4, max_tokens=9))
    refused = replica.outcomes["wide"].refused
    assert refused is not None and refused.code == "pool_too_small" and "12, 2 of them pinned" in refused.message
    replica.unpin("p")
    replica.submit(request("wide again", PROMPT[:7], n=3, max_tokens=9))
    replica.run()
    assert len(replica.outcomes["wide again"].finished) == 3


def test_a_pin_that_would_leave_a_live_request_without_room_is_refused() -> None:
    replica = cached(Replica(replace(ROOMY, num_blocks=11)), PROMPT)
    replica.submit(request("wide", PROMPT[:7], n=3, max_tokens=9))
    refused = replica.pin("p", PROMPT)
    assert refused.code == "no_room_to_pin" and "run or wait" in refused.message
    replica.run()
    assert replica.pin("p", PROMPT).pin or replica.pin("p", PROMPT).num_missing


def test_a_reset_keeps_what_is_pinned() -> None:
    replica = cached(Replica(ROOMY), PROMPT, [7] * 9)
    replica.pin("p", PROMPT)
    assert replica.scheduler.reset_prefix_cache(replica.now) is not None
    load = replica.scheduler.load()
    assert (load.blocks_blank, load.blocks_cached, load.blocks_leased, load.blocks_pinned) == (10, 0, 0, 2)
    assert hit(replica, PROMPT) == 8 and hit(replica, [7] * 9) == 0


def test_pinned_blocks_are_a_state_of_their_own_also_while_they_are_in_use() -> None:
    replica = cached(Replica(ROOMY), PROMPT)
    replica.pin("p", PROMPT)
    replica.submit(request("uses it", PROMPT, max_tokens=2))
    replica.step()
    load = replica.scheduler.load()
    assert (load.blocks_leased, load.blocks_pinned) == (1, 2)
    assert [event.num_blocks for event in replica.events if isinstance(event, PrefixPinned)] == [2]
    replica.run()


def test_another_namespace_has_its_own_pins() -> None:
    replica = cached(Replica(ROOMY), PROMPT, namespace=b"a")
    assert replica.pin("p", PROMPT, namespace=b"b").num_missing == 8
    assert replica.pin("p", PROMPT, namespace=b"a").pin


@pytest.mark.parametrize("windows", [(5,), (None, 5), (3, 6)])
def test_layers_with_a_window_keep_what_the_next_token_reads(windows: tuple[int | None, ...]) -> None:
    prompt = [*PROMPT, 2, 2]
    replica = cached(Replica(limits(num_blocks=40, max_model_len=16, windows=windows)), prompt)
    assert replica.pin("p", prompt).pin
    for _ in range(4):
        churn(replica)
    assert hit(replica, [*prompt, 6]) == 12 and hit(replica, prompt) == 11
