"""The prefix cache as the scheduler uses it: hits, the last token, equal prompts that arrive together, isolation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import BlockEvicted, BlockStored
from octavo.core.hashing import HASHES, BlockHash
from octavo.core.misses import Miss, MissReason
from octavo.core.plan import BlockCopy
from octavo.core.siblings import num_common
from tests.core.replica import Replica, alone, limits, request

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 3]


def ask_twice(replica: Replica, prompt: list[int], **params) -> None:
    for name in ("first", "second"):
        replica.submit(request(name, prompt, **params))
        replica.run()


@pytest.mark.parametrize("prompt_len", range(1, 11))
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_second_computes_only_what_is_not_in_a_full_block_and_always_the_last_token(
    prompt_len: int, size: int
) -> None:
    replica = Replica(limits(block_size=size, num_blocks=20))
    ask_twice(replica, PROMPT[:prompt_len], max_tokens=1)
    cached = replica.outcomes["second"].cached_tokens
    assert cached == min(prompt_len // size * size, prompt_len - 1)
    work = replica.plans[-1].work[0]
    assert (work.start, len(work.tokens)) == (cached, prompt_len - cached)
    assert replica.outcomes["first"].ids() == replica.outcomes["second"].ids()


def test_a_whole_cached_prompt_costs_one_block_copy_and_one_token() -> None:
    replica = Replica(limits())
    ask_twice(replica, PROMPT[:8], max_tokens=3)
    first = next(plan for plan in replica.plans if plan.work[0].request_id == "first")
    second = next(plan for plan in replica.plans if plan.work[0].request_id == "second")
    assert len(second.work[0].tokens) == 1
    assert second.copies == (BlockCopy(first.work[0].block_ids[1], second.work[0].block_ids[1]),)
    assert second.work[0].block_ids[0] == first.work[0].block_ids[0]


def test_where_the_copy_does_not_fit_the_last_block_is_computed_instead() -> None:
    """The pool has just the blocks of this prompt: to hold the cached tail and its copy would take one more."""
    replica = Replica(limits(num_blocks=2))
    ask_twice(replica, PROMPT[:8], max_tokens=1)
    assert replica.outcomes["second"].cached_tokens == 4
    assert replica.outcomes["first"].ids() == replica.outcomes["second"].ids()


SIXTEEN = [1, 2, 3, 4, 5, 6, 7, 0, 1, 3, 5, 7, 2, 4, 6, 0]


def halves(**changes: object) -> Replica:
    """Blocks of 8 tokens, hit by fours."""
    return Replica(limits(**{"block_size": 8, "prefix_match_unit": 4, "num_blocks": 20, **changes}))


@pytest.mark.parametrize("common", range(8, 16))
def test_a_block_that_begins_alike_is_hit_in_part_by_copying_it(common: int) -> None:
    replica = halves()
    replica.submit(request("first", SIXTEEN, max_tokens=1))
    replica.run()
    other = [*SIXTEEN[:common], *[(token + 1) % 8 for token in SIXTEEN[common:]], 5]
    replica.submit(request("second", other, max_tokens=3))
    replica.run()
    cached = 8 + (common - 8) // 4 * 4
    plan = next(plan for plan in replica.plans if plan.work and plan.work[0].request_id == "second")
    assert replica.outcomes["second"].cached_tokens == plan.work[0].start == cached
    assert [copy.target for copy in plan.copies] == [plan.work[0].block_ids[1]] * (cached > 8)
    assert replica.outcomes["second"].ids() == alone(request("r", other, max_tokens=3), limits()).ids()


def test_even_the_first_block_is_hit_in_part() -> None:
    replica = halves()
    ask_twice(replica, SIXTEEN)
    replica.submit(request("other", [*SIXTEEN[:5], 0, 0, 0, 0]))
    replica.run()
    assert replica.outcomes["other"].cached_tokens == 4


def test_the_end_of_a_prompt_is_found_within_a_longer_one() -> None:
    replica = halves()
    ask_twice(replica, SIXTEEN)
    for length, cached in ((11, 8), (12, 11), (13, 12), (15, 12), (16, 15)):
        replica.submit(request(f"r{length}", SIXTEEN[:length], max_tokens=1))
        replica.run()
        assert replica.outcomes[f"r{length}"].cached_tokens == cached, "the last token is always computed"


def test_the_likest_of_several_is_hit() -> None:
    replica = halves(prefix_match_unit=1)
    for number, common in enumerate((9, 13, 11)):
        replica.submit(request(f"r{number}", [*SIXTEEN[:common], *[number + 5] * (16 - common)], max_tokens=1))
        replica.run()
    replica.submit(request("other", SIXTEEN, max_tokens=1))
    replica.run()
    assert replica.outcomes["other"].cached_tokens == 13


def test_from_the_block_size_on_blocks_are_hit_as_a_whole_only() -> None:
    replica = halves(prefix_match_unit=8)
    ask_twice(replica, SIXTEEN)
    replica.submit(request("other", [*SIXTEEN[:15], 1, 1], max_tokens=1))
    replica.run()
    assert replica.outcomes["other"].cached_tokens == 8


def test_nothing_is_copied_where_the_pool_is_short() -> None:
    """To hold a block beside its copy takes one more than to compute it: three blocks are just the prompt's own."""
    replica = halves(num_blocks=3)
    replica.submit(request("first", SIXTEEN, max_tokens=1))
    replica.run()
    replica.submit(request("other", [*SIXTEEN[:14], 1, 1, 1, 1], max_tokens=1))
    replica.run()
    admitted = replica.outcomes["other"].admissions[0]
    assert admitted.cached_tokens == 8 and admitted.miss == Miss(MissReason.NO_ROOM_TO_COPY, 8)


def test_a_part_of_a_block_is_not_hit_across_namespaces() -> None:
    replica = halves()
    replica.submit(request("a", SIXTEEN, namespace=b"a"))
    replica.run()
    replica.submit(request("b", [*SIXTEEN[:14], 1, 1], namespace=b"b"))
    replica.run()
    assert replica.outcomes["b"].cached_tokens == 0


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=11), min_size=1, max_size=5),
    last=st.lists(st.integers(0, 1), min_size=1, max_size=11),
    size=st.sampled_from([1, 2, 4]),
    unit=st.integers(1, 4),
)
def test_the_hit_is_the_longest_beginning_that_any_full_block_has(
    prompts: list[list[int]], last: list[int], size: int, unit: int
) -> None:
    replica = Replica(limits(block_size=size, prefix_match_unit=unit, num_blocks=60))
    for number, prompt in enumerate([*prompts, last]):
        replica.submit(request(f"r{number}", prompt, max_tokens=1))
        replica.run()
    full = [prompt[: len(prompt) // size * size] for prompt in prompts]
    common = max(num_common(prompt, last) for prompt in full)
    part = common % size // unit * unit
    due = min(common // size * size + part, len(last) - 1)
    assert replica.outcomes[f"r{len(prompts)}"].cached_tokens == due


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    replica = Replica(limits())
    replica.submit(request("turn1", PROMPT[:6], max_tokens=7))
    replica.run()
    conversation = PROMPT[:6] + replica.outcomes["turn1"].ids()
    replica.submit(request("turn2", [*conversation, 5, 5], max_tokens=2))
    replica.run()
    assert replica.outcomes["turn2"].cached_tokens == 12, "of 13 tokens; the last generated one was never computed"


@pytest.mark.parametrize("budget", [3, 4, 5, 64])
@pytest.mark.parametrize("followers", [1, 3])
def test_equal_prompts_that_arrive_together_are_computed_once(budget: int, followers: int) -> None:
    replica = Replica(limits(num_blocks=40, max_num_batched_tokens=budget))
    names = [f"r{i}" for i in range(1 + followers)]
    replica.submit(*[request(name, PROMPT, max_tokens=1) for name in names])
    replica.run()
    computed = sum(len(work.tokens) for plan in replica.plans for work in plan.work)
    assert computed == 10 + 2 * followers, "each follower computes what is past the last full block"
    assert len({tuple(replica.outcomes[name].ids()) for name in names}) == 1


def test_prompts_that_part_go_on_side_by_side_from_there() -> None:
    replica = Replica(limits(num_blocks=40, max_num_batched_tokens=64))
    replica.submit(request("a", PROMPT[:4] + [1] * 8, max_tokens=1), request("b", PROMPT[:4] + [2] * 8, max_tokens=1))
    replica.submit(request("c", [7] * 8, max_tokens=1))
    assert [work.request_id for work in replica.step().work] == ["a", "c"]
    (work,) = replica.step().work
    assert (work.request_id, work.start) == ("b", 4)


def test_a_follower_goes_on_alone_when_its_leader_is_cancelled() -> None:
    replica = Replica(limits(max_num_batched_tokens=3))
    replica.submit(request("leader", PROMPT), request("follower", PROMPT))
    replica.step()
    replica.cancel("leader")
    assert [work.request_id for work in replica.step().work] == ["follower"]
    replica.run()
    assert replica.outcomes["follower"].ids() == alone(request("r", PROMPT), limits()).ids()


def test_blocks_of_a_step_in_flight_cannot_be_hit() -> None:
    replica = Replica(limits())
    replica.submit(request("a", PROMPT))
    plan = replica.plan()
    assert not len(replica.scheduler.cache.index)
    replica.commit(plan)
    assert len(replica.scheduler.cache.index) == 2


def test_another_namespace_or_model_shares_nothing() -> None:
    replica = Replica(limits())
    replica.submit(request("a", PROMPT, namespace=b"tenant a"))
    replica.run()
    replica.submit(request("b", PROMPT, namespace=b"tenant b"), request("a2", PROMPT, namespace=b"tenant a"))
    replica.run()
    assert replica.outcomes["b"].cached_tokens == 0
    assert replica.outcomes["a2"].cached_tokens == 8
    assert replica.outcomes["b"].ids() == replica.outcomes["a2"].ids()


def test_without_caching_nothing_is_hashed_stored_or_hit() -> None:
    replica = Replica(limits(enable_prefix_caching=False))
    ask_twice(replica, PROMPT)
    assert not [event for event in replica.events if isinstance(event, BlockStored)]
    assert replica.outcomes["second"].cached_tokens == 0
    assert replica.scheduler.load().blocks_cached == 0


def test_a_waiting_prompt_is_hashed_once() -> None:
    hashed: list[bytes] = []
    sha256 = HASHES["sha256"].digest
    counting = BlockHash(lambda data: (hashed.append(data), sha256(data))[1])
    replica = Replica(limits(max_num_seqs=1), block_hash=counting)
    replica.submit(request("runs", [7], max_tokens=8), request("waits", PROMPT, max_tokens=1))
    for _ in range(7):
        replica.step()
    assert len(hashed) <= 2 + 2 + 1, "two roots, the two blocks that wait, and one that was generated"
    replica.run()


def test_a_cached_block_is_not_evicted_to_serve_the_request_that_hits_it() -> None:
    replica = Replica(limits(num_blocks=4))
    replica.submit(request("a", PROMPT[:8], max_tokens=1))
    replica.run()
    replica.submit(request("other", [7] * 8, max_tokens=1))
    replica.run()
    replica.submit(request("again", PROMPT[:8] + [6] * 6, max_tokens=2))
    replica.run()
    assert replica.outcomes["again"].cached_tokens == 8
    evicted = [event for event in replica.events if isinstance(event, BlockEvicted)]
    assert len(evicted) == 2, "both of the other's, though they were used later"


def test_requests_that_ask_for_prompt_logprobs_do_not_read_the_cache() -> None:
    replica = Replica(limits())
    replica.submit(request("a", PROMPT, max_tokens=1))
    replica.run()
    replica.submit(request("scores", PROMPT, max_tokens=1, prompt_logprobs=0))
    replica.run()
    assert replica.outcomes["scores"].cached_tokens == 0
    assert len(replica.outcomes["scores"].scored) == 9


def test_and_so_they_do_not_wait_for_an_equal_prompt_either() -> None:
    replica = Replica(limits(num_blocks=40))
    replica.submit(request("a", PROMPT, max_tokens=1), request("scores", PROMPT, max_tokens=1, prompt_logprobs=0))
    assert [work.request_id for work in replica.step().work] == ["a", "scores"]


def test_hit_rates_go_from_nothing_towards_one_and_restart_after_a_reset() -> None:
    replica = Replica(limits(num_blocks=40, max_model_len=100))
    rates = []
    for i in range(6):
        replica.submit(request(f"r{i}", PROMPT[:8] * 4, max_tokens=1))
        replica.run()
        load = replica.scheduler.load()
        assert load.prefix_queries == 32 * (i + 1)
        rates.append(load.prefix_hits / load.prefix_queries)
    assert rates[0] == 0 and rates == sorted(rates) and rates[1] == 31 / 64 and rates[-1] > 0.8
    assert replica.scheduler.reset_prefix_cache(0.0)
    assert replica.scheduler.load().prefix_queries == replica.scheduler.load().prefix_hits == 0
    replica.submit(request("after", PROMPT[:8] * 4, max_tokens=1))
    replica.run()
    assert replica.outcomes["after"].cached_tokens == 0


def test_a_reset_is_refused_while_blocks_are_held() -> None:
    replica = Replica(limits())
    replica.submit(request("r", PROMPT))
    replica.step()
    assert replica.scheduler.reset_prefix_cache(0.0) is None
    assert len(replica.scheduler.cache.index) == 2
    replica.run()
    events = replica.scheduler.reset_prefix_cache(9.0)
    assert events is not None and {type(event) for event in events} == {BlockEvicted}
    assert replica.scheduler.load().blocks_blank == 12


def test_stored_and_evicted_events_are_the_index() -> None:
    replica = Replica(limits(num_blocks=6))
    for i in range(6):
        replica.submit(request(f"r{i}", [i] * 9, max_tokens=4))
        replica.run()
    keys: set[bytes] = set()
    parents: dict[bytes, bytes | None] = {}
    for event in replica.events:
        if isinstance(event, BlockStored):
            assert event.key not in keys and event.num_tokens == 4
            assert event.parent is None or event.parent in parents
            keys.add(event.key)
            parents[event.key] = event.parent
        elif isinstance(event, BlockEvicted):
            keys.remove(event.key)
    assert keys == {entry.key for entry in replica.scheduler.cache.index.entries()}


@pytest.mark.parametrize("budget", [2, 3, 256])
def test_chunked_and_cached_answers_equal_plain_ones(budget: int) -> None:
    replica = Replica(limits(num_blocks=30, max_num_batched_tokens=budget))
    requests = [request(f"r{i}", [*PROMPT[: 3 + i], i], max_tokens=6, temperature=1.0, logprobs=1) for i in range(7)]
    replica.submit(*requests)
    replica.run()
    plain = limits(num_blocks=30, enable_prefix_caching=False)
    for one in requests:
        assert replica.outcomes[one.request_id].tokens == alone(one, plain).tokens


def test_a_prompt_of_a_hundred_thousand_tokens() -> None:
    huge = limits(
        num_blocks=6400, block_size=16, max_model_len=102_400, max_num_batched_tokens=32_768, vocab_size=50_000
    )
    replica = Replica(huge)
    prompt = [(i * 31) % 50_000 for i in range(100_000)]
    ask_twice(replica, prompt, max_tokens=1)
    assert replica.outcomes["second"].cached_tokens == 99_999
    assert replica.outcomes["first"].ids() == replica.outcomes["second"].ids()
