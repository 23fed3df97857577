"""How much may wait: the limits, their arithmetic, and the time after which there is room again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.backlog import LONGEST_RETRY_S, DrainRate, retry_after_s
from octavo.core.lengths import MEMORY, PRIOR, AnswerLengths
from octavo.core.types import FinishReason
from tests.core.replica import Replica, limits, request


def submitted(replica: Replica, count: int, prompt_len: int = 4, **params) -> list[str]:
    """The codes of those of `count` requests that were refused."""
    names = [f"r{len(replica.outcomes)}-{i}" for i in range(count)]
    for name in names:
        replica.submit(request(name, [1] * prompt_len, **params))
    refusals = [replica.outcomes[name].refused for name in names]
    return [refused.code for refused in refusals if refused is not None]


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("seqs", [1, 2])
def test_so_many_may_wait_beyond_those_that_can_start(most: int, seqs: int) -> None:
    replica = Replica(limits(max_num_seqs=seqs, max_num_queued_reqs=most))
    assert submitted(replica, 20) == ["queue_full"] * (20 - seqs - most)
    replica.step()
    assert submitted(replica, 1) == ["queue_full"], "those who run have left the queue, and their slots are taken"
    replica.run()
    assert submitted(replica, seqs + most) == []
    replica.run()


def test_without_limits_any_number_may_wait() -> None:
    replica = Replica(limits(max_num_seqs=1))
    assert submitted(replica, 200) == []


def test_a_refusal_for_now_has_the_arithmetic_and_leaves_no_trace() -> None:
    replica = Replica(limits(max_num_seqs=1, max_num_queued_reqs=1))
    submitted(replica, 2)
    before = replica.scheduler.load()
    replica.submit(request("late", [1]))
    refused = replica.outcomes["late"].refused
    assert refused is not None and refused.retry_after_s == 1
    assert "2 requests wait, and 1 could start" in refused.message and "--max-num-queued-reqs" in refused.message
    assert replica.scheduler.load() == before and "late" not in replica.scheduler.roster.requests
    replica.run()


def test_tokens_of_prompts_and_expected_answers_may_wait_beyond_what_fits_into_free_blocks() -> None:
    """48 slots are free, 20 may wait beyond; each request is 6 + 4."""
    replica = Replica(limits(max_num_queued_tokens=20))
    assert submitted(replica, 10, prompt_len=6) == ["queue_tokens_full"] * 4
    replica.run()
    assert submitted(replica, 4, prompt_len=6, n=4, temperature=1.0) == ["queue_tokens_full"], "22 each: n answers"
    replica.run()


def test_a_request_of_any_size_enters_an_empty_queue() -> None:
    replica = Replica(limits(max_num_queued_tokens=1))
    assert submitted(replica, 1, prompt_len=40) == []
    replica.step()
    assert submitted(replica, 1, prompt_len=40) == []
    replica.run()


def test_what_leaves_the_queue_by_any_door_makes_room() -> None:
    replica = Replica(limits(max_num_seqs=1, max_num_queued_reqs=2))
    replica.submit(*[request(f"r{i}", [i]) for i in range(3)])
    for i in range(3):
        replica.cancel(f"r{i}")
    assert replica.scheduler.roster.waiting_tokens == 0
    assert submitted(replica, 3) == []
    replica.run()
    assert replica.scheduler.roster.waiting_tokens == 0


def test_nonsense_is_refused_for_good_even_where_the_queue_is_full() -> None:
    replica = Replica(limits(max_num_seqs=1, max_num_queued_reqs=1))
    submitted(replica, 2)
    replica.submit(request("bad", []))
    refused = replica.outcomes["bad"].refused
    assert refused is not None and (refused.code, refused.retry_after_s) == ("empty_prompt", None)
    replica.run()


def test_the_time_to_come_back_is_what_must_drain_at_the_measured_rate() -> None:
    """A step computes its tokens in one tick of the replica's clock."""
    replica = Replica(limits(num_blocks=100, max_model_len=400, max_num_seqs=1, max_num_queued_tokens=1))
    submitted(replica, 1, prompt_len=64, max_tokens=1)
    replica.run()
    assert replica.scheduler.submit(request("long", [1] * 200, max_tokens=200), replica.now)
    replica.submit(request("later", [1] * 200, max_tokens=200))
    refused = replica.outcomes["later"].refused
    assert refused is not None
    over = 2 * 400 - 100 * 4 - 1
    assert refused.retry_after_s == -(-over // 64)
    replica.run()


@given(st.floats(0, 1e9), st.none() | st.floats(0, 1e6))
def test_the_time_to_come_back_is_whole_seconds_within_bounds(num_tokens: float, rate: float | None) -> None:
    after_s = retry_after_s(num_tokens, rate)
    assert isinstance(after_s, int) and 1 <= after_s <= LONGEST_RETRY_S


@given(st.lists(st.tuples(st.integers(1, 4000), st.floats(0.001, 5)), min_size=1))
def test_the_drain_rate_is_between_the_slowest_and_the_fastest_step(steps: list[tuple[int, float]]) -> None:
    drained = DrainRate()
    assert drained.tokens_per_s is None
    for num_tokens, took_s in steps:
        drained.note(num_tokens, took_s)
    rates = [num_tokens / took_s for num_tokens, took_s in steps]
    found = drained.tokens_per_s
    assert found is not None and min(rates) * 0.999 <= found <= max(rates) * 1.001


def test_the_drain_rate_forgets() -> None:
    drained = DrainRate()
    for _ in range(100):
        drained.note(1000, 1.0)
    for _ in range(300):
        drained.note(10, 1.0)
    assert drained.tokens_per_s == pytest.approx(10, rel=0.05)


@given(st.lists(st.integers(1, 500), max_size=80), st.integers(1, 4000))
def test_an_expected_answer_is_one_that_may_be(lengths: list[int], most: int) -> None:
    answers = AnswerLengths()
    for length in lengths:
        answers.learn(most, min(length, most))
    assert 1 <= answers.expect(most) <= most


def test_answers_are_expected_to_be_as_long_as_the_last_ones_of_their_class() -> None:
    answers = AnswerLengths()
    assert (answers.expect(100), answers.expect(5000)) == (100, PRIOR)
    for length in (10, 20, 30):
        answers.learn(1000, length)
    assert (answers.expect(900), answers.expect(100)) == (20, 100)
    for _ in range(10 * MEMORY):
        answers.learn(600, 400)
    assert answers.expect(1000) == 400


def test_the_replica_learns_from_every_answer_that_ends() -> None:
    replica = Replica(limits(eos_token_ids=(5,)))
    replica.submit(*[request(f"r{i}", [i, 1], max_tokens=20, ignore_eos=False) for i in range(6)])
    replica.run()
    ended = [len(replica.outcomes[f"r{i}"].ids()) for i in range(6)]
    assert FinishReason.STOP in {replica.outcomes[f"r{i}"].reasons()[0] for i in range(6)}
    replica.submit(request("next", [1], max_tokens=20))
    assert replica.scheduler.roster.waiting[0].demand == 1 + round(sum(ended) / 6)
    replica.run()
