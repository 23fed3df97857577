"""Embeddings: each hidden state that counts is added once, in order, whatever the chunks, hits and preemptions."""

import struct
from dataclasses import replace

import pytest

from octavo.backends.ledger import mix
from octavo.core.events import Embedded, Finished, Generated
from octavo.core.misses import MissReason
from octavo.core.plan import StepResult, WorkResult, check_result
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import FinishReason, Limits, Pooling
from tests.core.replica import Replica, alone, embedding, limits, request, tier

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
MEAN, LAST = Pooling.MEAN, Pooling.LAST
BOTH = pytest.mark.parametrize("pooling", [MEAN, LAST])


def due(prompt: list[int], pooling: Pooling) -> tuple[bytes, int]:
    """The ledger's hidden states, added up here."""
    state, states = 0, []
    for token in prompt:
        state = mix(state, token)
        states.append(state)
    counted = states if pooling is MEAN else states[-1:]
    halves = sum(state & 0xFFFFFFFF for state in counted), sum(state >> 32 for state in counted)
    return struct.pack("=3d", len(counted), *halves), len(counted)


@BOTH
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("prompt_len", [1, 2, 4, 8, 11])
def test_the_right_hidden_states_are_added_whatever_the_chunks(pooling: Pooling, budget: int, prompt_len: int) -> None:
    replica = Replica(limits(max_num_batched_tokens=budget))
    replica.submit(embedding("e", PROMPT[:prompt_len], pooling))
    replica.run()
    outcome = replica.outcomes["e"]
    assert outcome.embedding == due(PROMPT[:prompt_len], pooling)
    assert outcome.reasons() == [FinishReason.STOP] and outcome.tokens == {}
    assert not any(work.samples or work.targets for plan in replica.plans for work in plan.work)


@BOTH
def test_it_says_what_it_is_and_then_that_it_is_over(pooling: Pooling) -> None:
    replica = Replica(limits())
    replica.submit(embedding("e", PROMPT, pooling))
    replica.run()
    told = [type(event) for event in replica.events if getattr(event, "request_id", "") == "e"]
    assert told[-2:] == [Embedded, Finished] and Generated not in told


def test_it_draws_nothing_so_it_takes_no_sampling_parameters() -> None:
    with pytest.raises(ValueError, match="no sampling parameters"):
        Request(request_id="e", prompt=(1,), pooling=MEAN, params=SamplingParams(max_tokens=1))


@BOTH
def test_the_prompt_may_fill_the_context_and_the_pool(pooling: Pooling) -> None:
    tight = limits(num_blocks=3, max_model_len=12)
    assert alone(embedding("e", [1] * 12, pooling), tight).embedding == due([1] * 12, pooling)
    long = alone(embedding("e", [1] * 13, pooling), tight).refused
    assert long is not None and long.code == "context_length_exceeded"
    assert "13 tokens" in long.message and "context of 12" in long.message
    large = alone(embedding("e", [1] * 13, pooling), limits(num_blocks=3)).refused
    assert large is not None and large.code == "pool_too_small" and "4 KV blocks" in large.message


@pytest.mark.parametrize(("pooling", "cached"), [(MEAN, 0), (LAST, 8)])
def test_the_mean_computes_what_is_cached_and_the_last_does_not(pooling: Pooling, cached: int) -> None:
    replica = Replica(limits())
    replica.submit(request("before", PROMPT, max_tokens=1))
    replica.run()
    replica.submit(embedding("e", PROMPT[:9], pooling))
    replica.run()
    outcome = replica.outcomes["e"]
    assert outcome.embedding == due(PROMPT[:9], pooling) and outcome.cached_tokens == cached
    miss = outcome.admissions[0].miss
    assert miss is None if pooling is LAST else miss is not None and miss.reason is MissReason.MEAN_POOLING


@BOTH
def test_a_wholly_cached_prompt_computes_what_it_must(pooling: Pooling) -> None:
    replica = Replica(limits())
    for name in ("first", "second"):
        replica.submit(embedding(name, PROMPT[:8], pooling))
        replica.run()
        assert replica.outcomes[name].embedding == due(PROMPT[:8], pooling)
    assert replica.outcomes["second"].cached_tokens == (7 if pooling is LAST else 0)


@BOTH
def test_what_an_embedding_computed_can_be_hit(pooling: Pooling) -> None:
    replica = Replica(limits())
    replica.submit(embedding("e", PROMPT, pooling))
    replica.run()
    replica.submit(request("r", PROMPT))
    replica.run()
    assert replica.outcomes["r"].cached_tokens == 8
    assert replica.outcomes["r"].tokens == alone(request("r", PROMPT), limits()).tokens


def test_the_mean_waits_for_nobody_who_computes_the_same_block() -> None:
    """It could not use the block: waiting would cost a step, and bring nothing."""
    replica = Replica(limits(max_num_batched_tokens=12))
    replica.submit(request("r", PROMPT[:8]), embedding("e", PROMPT[:4], MEAN))
    assert {work.request_id for work in replica.step().work} == {"r", "e"}
    assert replica.outcomes["e"].embedding == due(PROMPT[:4], MEAN)


def crowded(**changes: object) -> Limits:
    """Few blocks; a prompt comes in short chunks, and one of a lower rank number takes the blocks of others."""
    roomy = {"max_num_partial_prefills": 3, "scheduling_policy": "priority", "block_manager": "v2"}
    return limits(**{"num_blocks": 5, **roomy, **changes})


def displaced(replica: Replica, pooling: Pooling, lost_after: int) -> None:
    """An embedding loses its blocks once so many tokens are computed, and comes back when whoever took them is over."""
    replica.submit(embedding("e", PROMPT, pooling, priority=5))
    while replica.scheduler.roster.requests["e"][0].computed < lost_after:
        replica.step()
    replica.submit(request("urgent", [7] * 13, max_tokens=2, priority=0))
    replica.run()


@BOTH
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("lost_after", [5, 7, 9])
@pytest.mark.parametrize("neighbours", [0, 1])
def test_a_preemption_adds_nothing_twice_and_nothing_never(
    pooling: Pooling, chunk: int, caching: bool, lost_after: int, neighbours: int
) -> None:
    """Half-way, and where only the last hidden state is still to be added."""
    replica = Replica(crowded(long_prefill_token_threshold=chunk, enable_prefix_caching=caching), watermark=0.0)
    replica.submit(*[request(f"neighbour{i}", [6], max_tokens=3, ignore_eos=True) for i in range(neighbours)])
    displaced(replica, pooling, lost_after)
    assert [event.request_id for event in replica.preemptions()] == ["e"]
    assert replica.outcomes["e"].embedding == due(PROMPT, pooling)


@pytest.mark.parametrize(("pooling", "why"), [(LAST, "swap: "), (MEAN, "still owes logprobs or hidden states")])
def test_a_preempted_one_is_swapped_where_its_blocks_can_be_used_again(pooling: Pooling, why: str) -> None:
    replica = Replica(crowded(long_prefill_token_threshold=4), watermark=0.0, tier=tier(8))
    displaced(replica, pooling, 8)
    (preempted,) = replica.preemptions()
    assert why in preempted.reason
    assert replica.outcomes["e"].embedding == due(PROMPT, pooling)


@BOTH
def test_a_work_that_fails_ends_its_request_and_gives_nothing(pooling: Pooling) -> None:
    replica = Replica(limits(max_num_batched_tokens=4))
    replica.submit(embedding("e", PROMPT, pooling))
    replica.step()
    plan = replica.plan()
    failed = WorkResult("e", 0, error="the hidden states are not finite", code="not_finite")
    replica.commit_result(plan, StepResult(plan.step, (failed,)))
    replica.run()
    assert replica.outcomes["e"].reasons() == [FinishReason.ERROR] and replica.outcomes["e"].embedding is None


def test_after_a_failed_step_another_of_the_same_name_begins_anew() -> None:
    replica = Replica(limits(max_num_batched_tokens=4))
    replica.submit(embedding("e", PROMPT))
    replica.step()
    replica.fail(replica.plan())
    assert replica.outcomes.pop("e").reasons() == [FinishReason.ERROR]
    replica.submit(embedding("e", PROMPT))
    replica.run()
    assert replica.outcomes["e"].embedding == due(PROMPT, MEAN)


def test_one_that_was_cancelled_in_flight_gives_nothing() -> None:
    replica = Replica(limits())
    replica.submit(embedding("e", PROMPT))
    plan = replica.plan()
    replica.cancel("e")
    replica.commit(plan)
    assert replica.outcomes["e"].reasons() == [FinishReason.ABORT] and replica.outcomes["e"].embedding is None


def test_a_result_without_the_sum_is_none() -> None:
    replica = Replica(limits())
    replica.submit(embedding("e", PROMPT), request("r", [1]))
    plan = replica.plan()
    result = replica.execute(plan)
    check_result(plan, result)
    for position in range(2):
        one = result.results[position]
        other = one._replace(hidden_sum=None if one.hidden_sum else b"more")
        with pytest.raises(ValueError, match="lacks samples, scores or a sum"):
            check_result(
                plan, replace(result, results=tuple(other if one is each else each for each in result.results))
            )


@BOTH
def test_decodes_go_first_and_embeddings_take_what_they_leave(pooling: Pooling) -> None:
    """Beside a flood of embeddings a running choice gets its token in each step."""
    replica = Replica(limits(max_num_batched_tokens=5, num_blocks=40))
    replica.submit(request("r", [1, 2, 3], max_tokens=8, ignore_eos=True))
    replica.step()
    replica.submit(*[embedding(f"e{i}", PROMPT[i:], pooling) for i in range(6)])
    for _ in range(7):
        assert replica.step().work[0].request_id == "r"
    replica.run()
    for i in range(6):
        assert replica.outcomes[f"e{i}"].embedding == due(PROMPT[i:], pooling)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_it_counts_in_queues_and_shares_with_its_prompt_alone(policy: str) -> None:
    roomy: Limits = limits(max_num_seqs=1, num_blocks=40, scheduling_policy=policy, max_num_queued_tokens=0)
    replica = Replica(roomy)
    replica.submit(request("first", [1], tenant="a", max_tokens=3), embedding("e", PROMPT, tenant="b"))
    assert replica.scheduler.roster.demands.of("b").num_tokens == len(PROMPT)
    replica.run()
    assert replica.outcomes["e"].embedding == due(PROMPT, MEAN)


def test_windows_do_not_matter() -> None:
    windowed = limits(windows=(None, 3), num_blocks=24, max_num_batched_tokens=3)
    replica = Replica(windowed)
    for pooling in (MEAN, LAST):
        replica.submit(embedding(f"again {pooling}", PROMPT, pooling))
        replica.run()
        assert replica.outcomes[f"again {pooling}"].embedding == due(PROMPT, pooling)
