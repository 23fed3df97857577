"""How much may wait: the limits, their arithmetic, and the time after which there is room again."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.core.backlog import LINE_S, LONGEST_RETRY_S, DrainRate, Line, beyond
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
    assert replica.scheduler.roster.demands.total.num_tokens == 0
    assert submitted(replica, 3) == []
    replica.run()
    assert replica.scheduler.roster.demands.total.num_tokens == 0


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


def test_a_token_takes_a_slot_in_each_group_of_layers() -> None:
    """48 slots are free: with three groups that is room for 16 tokens, not for 48."""
    replica = Replica(limits(max_num_queued_tokens=20, windows=(None, None, None)))
    assert submitted(replica, 10, prompt_len=6) == ["queue_tokens_full"] * 7
    replica.run()


def test_what_is_kept_for_those_who_run_is_not_free() -> None:
    """The one that runs has 20 slots, and 24 more are kept for it: of 48, 4 are free for others."""
    replica = Replica(limits(max_num_queued_tokens=10, block_manager="v2", max_model_len=44))
    submitted(replica, 1, prompt_len=20, max_tokens=24)
    replica.step()
    assert replica.scheduler.load().blocks_reserved == 6
    assert submitted(replica, 3, prompt_len=3) == ["queue_tokens_full"]
    replica.run()


# ---- tenants ----


def from_tenant(replica: Replica, tenant: str, count: int, **params) -> int:
    """How many of this tenant's requests were refused."""
    names = [f"{tenant}{len(replica.outcomes)}-{i}" for i in range(count)]
    for name in names:
        replica.submit(request(name, [1] * 4, tenant=tenant, **params))
    return sum(replica.outcomes[name].refused is not None for name in names)


@pytest.mark.parametrize("by", [{"max_num_queued_reqs": 12}, {"max_num_queued_tokens": 96 - 48}])
def test_a_full_queue_still_takes_from_a_tenant_with_less_than_its_share(by: dict[str, int]) -> None:
    """12 wait beyond those that could start, in one count or the other."""
    replica = Replica(limits(max_num_seqs=1, **by))
    replica.submit(request("runs", [1] * 4, tenant="red", max_tokens=40 if "max_num_queued_reqs" in by else 4))
    replica.step()
    room = 20 - from_tenant(replica, "red", 20)
    assert room in (11, 12)
    assert from_tenant(replica, "red", 1) == 1
    assert from_tenant(replica, "blue", 20) == 20 - room // 2
    assert from_tenant(replica, "green", 20) == 20 - room // 3
    assert from_tenant(replica, "red", 1) == from_tenant(replica, "blue", 1) == 1
    refused = [outcome.refused for outcome in replica.outcomes.values() if outcome.refused]
    assert "share beside 2 more" in refused[-1].message
    replica.run()


def test_a_tenant_with_nothing_in_the_queue_may_send_one_of_any_size() -> None:
    replica = Replica(limits(max_num_queued_tokens=1))
    submitted(replica, 2, prompt_len=40)
    assert submitted(replica, 1, prompt_len=40) == ["queue_tokens_full"]
    replica.submit(request("other", [1] * 40, tenant="blue"))
    assert replica.outcomes["other"].refused is None
    replica.run()


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=120))
def test_tenants_fill_a_queue_a_little_over_its_limit_and_never_refuse_anybody_s_share(
    most: int, arrivals: list[tuple[int, int]]
) -> None:
    waiting = Counter[int]()
    for tenant, count in arrivals:
        num_tenants = len(waiting | {tenant: 1})
        if beyond(most, waiting.total(), waiting[tenant], count, num_tenants):
            assert waiting[tenant] and waiting[tenant] + count > most // num_tenants
        else:
            waiting[tenant] += count
    largest = 9 * len(waiting)  # a tenant's first is let in whatever its size
    assert waiting.total() <= most * sum(1 / n for n in range(1, len(waiting) + 1)) + largest
    if len(waiting) == 1:
        assert waiting.total() <= max(most, 9)


# ---- when to come back ----


@example([("a", 1e9, 1.0, 1e6 / 3)], 1.0)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 100)), max_size=50),
    st.none() | st.floats(0, 1e6),
)
def test_the_time_to_come_back_is_whole_seconds_within_bounds(
    asked: list[tuple[str, float, float, float]], rate: float | None
) -> None:
    line, now = Line(), 0.0
    for tenant, num_before, num_wanted, later_s in asked:
        now += later_s
        after_s = line.join(tenant, num_before, num_wanted, rate, now)
        assert isinstance(after_s, int) and 1 <= after_s <= LONGEST_RETRY_S
        assert after_s <= max(LINE_S, num_before / rate if rate else 0) + 2


def test_those_who_are_sent_away_together_are_told_one_time_after_the_other() -> None:
    line = Line()
    assert [line.join("", 500, 100, 100.0, 0.0) for _ in range(4)] == [5, 6, 7, 8]
    assert line.join("", 500, 100, 100.0, 2.5) == 7, "9 s from the beginning"
    assert line.join("", 500, 100, 100.0, 60.0) == 5, "all who were told have come"


def test_after_a_minute_the_line_begins_anew() -> None:
    line = Line()
    told = [line.join("", 100, 1000, 100.0, 0.0) for _ in range(12)]
    assert told == [1, 11, 21, 31, 41, 51] * 2


def test_who_does_not_wait_keeps_nobody_waiting_but_his_own_tenant() -> None:
    line = Line()
    for _ in range(30):
        line.join("red", 100, 100, 100.0, 0.0)
    assert line.join("blue", 100, 100, 100.0, 0.0) == 1
    assert line.join("blue", 100, 100, 100.0, 0.0) == 3, "two tenants take turns"


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
