"""The block managers: v1 is greedy, v2 reserves; a reservation is a count, and goes before anybody is preempted."""

from dataclasses import replace

import pytest

from octavo.core.events import Preempted, Stepped
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, request

NO_CACHE = {"enable_prefix_caching": False}


def v2(**changes: object) -> Replica:
    return Replica(limits(block_manager="v2", **changes), watermark=0.0)


def reserved(replica: Replica) -> int:
    load = replica.scheduler.load()
    assert load.blocks_blank + load.blocks_cached + load.blocks_leased == replica.scheduler.limits.num_blocks
    assert 0 <= load.blocks_reserved <= load.blocks_blank + load.blocks_cached
    return load.blocks_reserved


@pytest.mark.parametrize(("manager", "names"), [("v1", ["a", "b"]), ("v2", ["a"])])
def test_greedy_lets_in_who_fits_now_and_v2_who_will_fit(manager: str, names: list[str]) -> None:
    """Each takes 2 blocks at first and 4 at its end, of 6."""
    replica = Replica(limits(num_blocks=6, block_manager=manager, **NO_CACHE), watermark=0.0)
    replica.submit(request("a", [1] * 8, max_tokens=9), request("b", [2] * 8, max_tokens=9))
    assert [work.request_id for work in replica.step().work] == names
    replica.run()
    assert bool(replica.preemptions()) == (manager == "v1")
    assert all(outcome.reasons() == [FinishReason.LENGTH] for outcome in replica.outcomes.values())


def test_greedy_asks_for_the_first_chunk_alone_and_v2_for_the_whole_prompt() -> None:
    for manager, admitted in (("v1", 2), ("v2", 1)):
        small = limits(num_blocks=6, max_num_batched_tokens=4, max_num_partial_prefills=3, block_manager=manager)
        replica = Replica(small, watermark=0.0)
        replica.submit(request("a", [1] * 16, max_tokens=1), request("b", [2] * 16, max_tokens=1))
        for _ in range(3):
            replica.step()
        assert len(replica.scheduler.roster.running) == admitted
        replica.run()


def test_who_was_preempted_comes_back_only_when_all_that_it_knows_fits() -> None:
    """Else greedy would let it in for a chunk, only to take it away again."""
    replica = Replica(limits(num_blocks=6, max_num_batched_tokens=8, **NO_CACHE), watermark=0.0)
    replica.submit(request("a", [1] * 8, max_tokens=9), request("b", [2] * 8, max_tokens=9))
    replica.run()
    assert [event.request_id for event in replica.preemptions()] == ["b"]


def test_what_is_reserved_is_what_will_be_taken() -> None:
    """8 + 9 tokens are 4 blocks: the last token is never stored. Every block taken is one less to keep."""
    replica = v2(num_blocks=10)
    replica.submit(request("a", [1] * 8, max_tokens=9))
    seen = []
    while replica.scheduler.has_work:
        replica.step()
        seen.append((reserved(replica), replica.scheduler.load().blocks_leased))
    assert seen[:-1] == [(2, 2)] + [(1, 3)] * 4 + [(0, 4)] * 3 and seen[-1] == (0, 0)


def test_reservations_are_told_with_each_step_and_greedy_has_none() -> None:
    for manager, most in (("v1", 0), ("v2", 2)):
        replica = Replica(limits(block_manager=manager))
        replica.submit(request("a", [1] * 8, max_tokens=9))
        replica.run()
        assert max(event.blocks_reserved for event in replica.events if isinstance(event, Stepped)) == most


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("prompt_len", [7, 8, 129])
@pytest.mark.parametrize("max_tokens", [1, 10])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_all_block_sizes_with_all_managers(size: int, prompt_len: int, max_tokens: int, n: int, manager: str) -> None:
    """Two such requests beside each other: the tokens of each alone, and with v2 nobody loses anything."""
    roomy = limits(
        num_blocks=3 * (-(-140 // size)) * n,
        block_size=size,
        max_model_len=300,
        max_num_batched_tokens=130,
        block_manager=manager,
    )
    replica = Replica(roomy, watermark=0.0)
    asked = [
        request(name, [i % 8] * prompt_len, n=n, max_tokens=max_tokens, temperature=1.0) for i, name in enumerate("ab")
    ]
    replica.submit(*asked)
    replica.run(max_steps=800)
    assert not replica.preemptions() or manager == "v1"
    for one in asked:
        assert replica.outcomes[one.request_id].tokens == alone(one, roomy).tokens


def test_n_answers_are_reserved_for_and_each_takes_its_share_when_it_forks() -> None:
    """The prompt is 2 blocks; 4 answers of 8 tokens end in 2 blocks each."""
    replica = v2(num_blocks=12)
    replica.submit(request("a", [1] * 8, n=4, max_tokens=8, temperature=1.0))
    replica.step()
    assert reserved(replica) == 4 * 2
    replica.run()
    assert not replica.preemptions()


def test_a_choice_that_is_cancelled_before_the_fork_keeps_nothing() -> None:
    replica = v2(num_blocks=12, max_num_batched_tokens=4)
    replica.submit(request("a", [1] * 8, n=2, max_tokens=8, temperature=1.0))
    replica.step()
    assert reserved(replica) == 1 + 2 * 2
    replica.cancel("a", 1)
    assert reserved(replica) == 1 + 2
    replica.cancel("a")
    assert reserved(replica) == 0


def test_what_was_expected_is_learned_so_that_more_run_at_once() -> None:
    """Answers of up to 40 tokens that all end after 1: at first none fits beside another, then many do."""

    every = tuple(range(8))

    def num_started(replica: Replica, turn: int) -> int:
        replica.submit(*[request(f"{turn}/{i}", [i, turn], max_tokens=40, stop_token_ids=every) for i in range(6)])
        count = len(replica.step().work)
        replica.run()
        return count

    replica = v2(num_blocks=12)
    assert (num_started(replica, 0), num_started(replica, 1)) == (1, 6)


def outgrown(replica: Replica) -> None:
    """Two running choices that were expected to end by now: 4 tokens expected, 16 to come."""
    for i in range(40):
        replica.submit(request(f"short{i}", [1], max_tokens=16, stop_token_ids=tuple(range(8))))
        replica.run()


def test_a_running_choice_takes_what_is_reserved_for_another_before_anybody_is_preempted() -> None:
    replica = v2(num_blocks=8, **NO_CACHE)
    outgrown(replica)
    replica.submit(request("longer", [1] * 4, max_tokens=16))
    replica.step()
    assert reserved(replica) == 0, "one token was expected, and is there"
    replica.submit(request("keeps", [2] * 4, max_tokens=5), request("too", [3] * 4, max_tokens=5))
    replica.step()
    free = replica.scheduler.load().blocks_blank
    assert reserved(replica) == 2 and free == 4
    replica.run()
    assert not [event for event in replica.events if isinstance(event, Preempted)]
    assert replica.outcomes["longer"].reasons() == [FinishReason.LENGTH]


def test_reservations_of_lower_ones_are_reclaimed_before_one_of_them_is_preempted() -> None:
    replica = v2(num_blocks=6, scheduling_policy="priority", **NO_CACHE)
    replica.submit(request("low", [1] * 8, max_tokens=17, priority=5))
    replica.step()
    assert reserved(replica) == 4
    replica.submit(request("high", [2] * 8, max_tokens=2, priority=0))
    assert {work.request_id for work in replica.step().work} == {"low", "high"}
    assert not replica.preemptions()
    replica.run()
    assert len(replica.outcomes["low"].ids()) == 17


def test_alone_a_request_enters_whatever_is_expected_of_it() -> None:
    replica = Replica(limits(num_blocks=4, block_manager="v2"), watermark=1.0)
    replica.submit(request("a", [1] * 3, max_tokens=13), request("b", [2] * 3, max_tokens=13))
    replica.run()
    assert not replica.preemptions()


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_answers_are_the_same_with_either(manager: str) -> None:
    tight = limits(num_blocks=7, max_num_batched_tokens=6, block_manager=manager)
    replica = Replica(tight, watermark=0.0)
    asked = [request(f"r{i}", [i % 3, 1, 2, i % 2], max_tokens=12, n=1 + i % 2, temperature=1.0) for i in range(8)]
    replica.submit(*asked)
    replica.run(max_steps=2000)
    for one in asked:
        assert replica.outcomes[one.request_id].tokens == alone(one, replace(tight, num_blocks=100)).tokens


def test_an_unknown_manager_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="block_manager must be one of v1, v2, got 'v3'"):
        Replica(limits(block_manager="v3"))
