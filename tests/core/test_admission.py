"""OK, LATER and NEVER, with the arithmetic. What is refused leaves no trace; what is accepted can finish alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.budget import Never, Terms, judge, most_tokens, worst_case_blocks
from octavo.core.events import Queued, Refused
from octavo.core.groups import KvGroups
from octavo.core.types import FinishReason, Limits
from tests.core.replica import Replica, limits, request


def refusal(replica: Replica, name: str = "r") -> Refused:
    found = replica.outcomes[name].refused
    assert found is not None
    assert not replica.scheduler.has_work and not replica.scheduler.roster.requests
    return found


@pytest.mark.parametrize(
    ("changes", "prompt", "params", "code", "says"),
    [
        ({}, [], {}, "empty_prompt", ["no tokens"]),
        ({}, [1, 8], {}, "token_out_of_range", ["8", "0 .. 7"]),
        ({}, [-1, 1], {}, "token_out_of_range", ["-1"]),
        ({}, [1], {"stop_token_ids": (9,)}, "token_out_of_range", ["stop_token_ids", "9"]),
        ({}, [1], {"logit_bias": {8: 1.0}}, "token_out_of_range", ["logit_bias", "8"]),
        ({"max_num_seqs": 2}, [1], {"n": 3}, "too_many_choices", ["3", "2", "--max-num-seqs"]),
        ({"max_model_len": 8}, [1] * 8, {}, "context_length_exceeded", ["8 tokens", "--max-model-len"]),
        ({"num_blocks": 2}, [1] * 9, {"max_tokens": 1}, "pool_too_small", ["9 tokens", "3 KV blocks", "has 2"]),
        ({"num_blocks": 2}, [1] * 5, {"max_tokens": 5}, "pool_too_small", ["--num-blocks"]),
        ({"num_blocks": 2}, [1] * 9, {"max_tokens": None}, "pool_too_small", ["3 KV blocks"]),
    ],
)
def test_never_says_what_is_needed_what_there_is_and_which_flag_changes_it(
    changes: dict, prompt: list[int], params: dict, code: str, says: list[str]
) -> None:
    replica = Replica(limits(**changes))
    replica.submit(request("r", prompt, **params))
    refused = refusal(replica)
    assert refused.code == code
    for words in says:
        assert words in refused.message


def test_an_id_that_is_live_is_refused_and_its_owner_is_not_hurt() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1, 2]), request("r", [3, 4]))
    assert replica.outcomes["r"].refused is not None and replica.outcomes["r"].refused.code == "duplicate_id"
    replica.run()
    assert len(replica.outcomes["r"].ids()) == 4
    assert len(Replica(limits()).scheduler.submit(request("r", [3]), 0.0)) == 1, "a finished id may be used again"


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("prompt_len", [1, 7, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 10])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("caching", [True, False])
def test_whoever_fits_the_pool_exactly_is_served_and_one_block_less_is_refused(
    size: int, prompt_len: int, max_tokens: int, n: int, caching: bool
) -> None:
    need = worst_case_blocks(prompt_len, max_tokens, n, KvGroups(size))
    exact = limits(num_blocks=need, block_size=size, enable_prefix_caching=caching)
    replica = Replica(exact)
    replica.submit(request("r", range(prompt_len), n=n, max_tokens=max_tokens, temperature=1.0))
    replica.run()
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH] * n
    assert not replica.preemptions(), "alone, it never runs short"
    assert max(event.blocks_leased for event in replica.events if hasattr(event, "blocks_leased")) <= need
    if need > 1:
        fewer = Replica(limits(num_blocks=need - 1, block_size=size))
        fewer.submit(request("r", range(prompt_len), n=n, max_tokens=max_tokens))
        assert refusal(fewer).code == "pool_too_small"


@given(
    prompt_len=st.integers(1, 40), n=st.integers(1, 6), num_blocks=st.integers(1, 40), size=st.sampled_from([1, 4, 8])
)
def test_the_clamp_is_the_inverse_of_the_worst_case(prompt_len: int, n: int, num_blocks: int, size: int) -> None:
    groups = KvGroups(size)
    most = most_tokens(prompt_len, n, num_blocks, groups, 400)
    if most:
        assert worst_case_blocks(prompt_len, most, n, groups) <= num_blocks
    assert worst_case_blocks(prompt_len, most + 1, n, groups) > num_blocks


@pytest.mark.parametrize(
    ("changes", "prompt_len", "params", "max_len"),
    [
        ({"max_model_len": 20}, 6, {"max_tokens": None}, 20),
        ({"max_model_len": 20}, 6, {"max_tokens": 50}, 20),
        ({"max_model_len": 20}, 19, {"max_tokens": 50}, 20),
        ({"num_blocks": 3}, 6, {"max_tokens": None}, 13),
        ({"num_blocks": 5}, 6, {"max_tokens": None, "n": 2}, 13),
        ({"num_blocks": 2}, 8, {"max_tokens": None}, 9),
    ],
)
def test_lengths_are_clamped_to_the_context_and_without_a_limit_to_the_pool(
    changes: dict, prompt_len: int, params: dict, max_len: int
) -> None:
    terms = judge(request("r", [1] * prompt_len, **params), limits(**changes))
    assert terms == Terms(max_len)
    replica = Replica(limits(**changes))
    replica.submit(request("r", [1] * prompt_len, **params))
    replica.run()
    assert len(replica.outcomes["r"].ids()) == max_len - prompt_len
    assert set(replica.outcomes["r"].reasons()) == {FinishReason.LENGTH}


def test_a_limit_that_was_asked_for_is_not_silently_lowered_to_the_pool() -> None:
    assert isinstance(judge(request("r", [1] * 6, max_tokens=20), limits(num_blocks=3)), Never)


def test_later_keeps_waiting_and_enters_when_the_blocks_come_back() -> None:
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("holder", [1] * 9, max_tokens=3), request("waits", [2] * 8, max_tokens=2))
    plan = replica.step()
    assert [work.request_id for work in plan.work] == ["holder"]
    load = replica.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (1, 1, 8)
    replica.run()
    assert [len(replica.outcomes[name].ids()) for name in ("holder", "waits")] == [3, 2]
    assert not replica.preemptions()


@pytest.mark.parametrize(("watermark", "together"), [(0.0, True), (0.25, False)])
def test_newcomers_leave_the_watermark_free_unless_they_are_alone(watermark: float, together: bool) -> None:
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=False), watermark=watermark)
    replica.submit(request("a", [1] * 7, max_tokens=2), request("b", [2] * 7, max_tokens=2))
    assert len(replica.step().work) == 1 + together
    replica.run()


def test_the_need_is_counted_after_the_hit() -> None:
    """Two of three blocks are shared with a running request, so the second fits where it would not alone."""
    replica = Replica(limits(num_blocks=5), watermark=0.0)
    replica.submit(request("a", [1] * 9, max_tokens=5))
    replica.step()
    replica.submit(request("b", [1] * 8 + [2], max_tokens=2))
    assert [work.request_id for work in replica.step().work] == ["a", "b"]
    assert replica.outcomes["b"].cached_tokens == 8
    replica.run()


def test_a_half_computed_prompt_keeps_the_blocks_that_it_was_promised() -> None:
    replica = Replica(limits(num_blocks=6, max_num_batched_tokens=8, max_num_partial_prefills=2), watermark=0.0)
    replica.submit(request("long", [1] * 20, max_tokens=1), request("short", [2] * 8, max_tokens=1))
    replica.step()
    assert [work.request_id for work in replica.step().work] == ["long"], "1 block is free, and short needs 2"
    replica.run()
    assert not replica.preemptions()


@pytest.mark.parametrize(
    "changes", [{"num_blocks": 0}, {"block_size": 0}, {"max_num_seqs": 0}, {"long_prefill_token_threshold": -1}]
)
def test_limits_that_make_no_sense_are_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be at least"):
        limits(**changes)


@pytest.mark.parametrize("option", ["victim", "chunk"])
def test_an_unknown_policy_is_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be one of .*, got 'best'"):
        Replica(limits(), **{option: "best"})
    with pytest.raises(ValueError, match="scheduling_policy must be one of fair, fcfs, priority"):
        Replica(limits(scheduling_policy="best"))


def test_queued_says_how_much_was_asked_for_and_when_it_came() -> None:
    replica = Replica(Limits(num_blocks=4, block_size=4, vocab_size=8, max_model_len=16))
    replica.submit(request("r", [1, 2, 3], max_tokens=5))
    replica.submit(replace(request("s", [1], max_tokens=1), tenant="red", arrival_s=0.5))
    assert replica.events == [Queued("r", 1.0, 3, 1, "", 5, 1.0), Queued("s", 2.0, 1, 1, "red", 1, 0.5)]


@pytest.mark.parametrize("watermark", [0.25, 0.5, 1.0])
def test_alone_a_request_may_use_the_whole_pool_whatever_the_watermark(watermark: float) -> None:
    replica = Replica(limits(num_blocks=4), watermark=watermark)
    replica.submit(*[request(f"r{i}", [i] * 15, max_tokens=2) for i in range(2)])
    replica.run()
    assert all(outcome.reasons() == [FinishReason.LENGTH] for outcome in replica.outcomes.values())
