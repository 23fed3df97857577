"""A throttled scheduler: shorter steps, fewer choices in them, nobody stopped, and not a token different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import Admitted, Preempted
from octavo.core.throttle import Throttle
from tests.core.replica import Replica, limits, request

BLOCK = 4
ROOMY = {"num_blocks": 200, "max_model_len": 200, "max_num_partial_prefills": 4}


def chatting(count: int, **changes) -> Replica:
    """A replica with `count` choices that decode."""
    replica = Replica(limits(**{**ROOMY, **changes}))
    replica.submit(*[request(f"chat{i}", [i % 8, 1], max_tokens=40) for i in range(count)])
    replica.step()
    return replica


@pytest.mark.parametrize("num_tokens", [1, 5, 12, 40, 64])
def test_a_prompt_beside_decodes_gets_what_the_throttle_leaves_and_a_block_at_least(num_tokens: int) -> None:
    replica = chatting(4)
    replica.scheduler.throttle(Throttle(num_tokens, 64))
    replica.submit(request("long", [2] * 150))
    plan = replica.step()
    assert plan.num_tokens == max(num_tokens, 4 + BLOCK)
    replica.run()


def test_a_step_without_decodes_has_all_its_tokens() -> None:
    replica = Replica(limits(**ROOMY))
    replica.scheduler.throttle(Throttle(1, 64))
    replica.submit(request("long", [2] * 150))
    assert replica.step().num_tokens == 64
    replica.run()


def test_decodes_are_never_left_out() -> None:
    replica = chatting(20)
    replica.scheduler.throttle(Throttle(3, 64))
    assert replica.step().num_tokens == 20
    replica.run()


def test_who_runs_goes_on_and_newcomers_wait_until_few_enough_do() -> None:
    replica = chatting(6)
    replica.scheduler.throttle(Throttle(64, 2))
    replica.submit(request("new", [7], max_tokens=2))
    replica.step()
    assert len(replica.scheduler.roster.running) == 6
    for i in range(5):
        assert "new" not in [c.request_id for c in replica.scheduler.roster.running]
        replica.cancel(f"chat{i}")
        replica.step()
    assert "new" in [c.request_id for c in replica.scheduler.roster.running]
    replica.run()


def test_the_queue_counts_only_those_who_may_start() -> None:
    replica = chatting(2, max_num_queued_reqs=3)
    replica.scheduler.throttle(Throttle(64, 4))
    replica.submit(*[request(f"r{i}", [3]) for i in range(8)])
    assert sum(replica.outcomes[f"r{i}"].refused is not None for i in range(8)) == 8 - 2 - 3
    replica.run()


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
def test_a_request_with_more_choices_than_run_gets_its_turn(policy: str) -> None:
    replica = chatting(2, scheduling_policy=policy)
    replica.scheduler.throttle(Throttle(8, 2))
    wide = request("wide", [5] * 9, n=6, temperature=1.0, max_tokens=3, tenant="wide")
    replica.submit(wide, *[request(f"r{i}", [3], max_tokens=2) for i in range(4)])
    replica.run()
    assert len(replica.outcomes["wide"].finished) == 6


def test_who_displaces_another_takes_its_place_and_no_more() -> None:
    """Six run where two may: one of a lower rank takes the place of one of them, not of five."""
    replica = Replica(limits(**ROOMY, scheduling_policy="priority"))
    replica.submit(*[request(f"chat{i}", [i, 1], max_tokens=20, priority=5) for i in range(6)])
    replica.step()
    replica.scheduler.throttle(Throttle(64, 2))
    replica.submit(request("urgent", [7], max_tokens=3, priority=0))
    replica.step()
    assert any(isinstance(event, Admitted) and event.request_id == "urgent" for event in replica.events)
    assert sum(isinstance(event, Preempted) for event in replica.events) == 1
    replica.run()


def test_nonsense_is_refused() -> None:
    for numbers in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least"):
            Throttle(*numbers)
    replica = chatting(1)
    plan = replica.plan()
    with pytest.raises(RuntimeError, match="in flight"):
        replica.scheduler.throttle(Throttle(1, 1))
    replica.commit(plan)


sizes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=8)


@given(sizes, st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=30))
def test_throttled_anyhow_everybody_gets_the_same_tokens(
    wanted: list[tuple[int, int, int]], throttles: list[tuple[int, int]]
) -> None:
    """Against the same requests without a throttle; it changes at every step."""
    requests = [
        request(f"r{i}", [i, *[1] * (length - 1)], max_tokens=most, n=n, temperature=1.0)
        for i, (length, most, n) in enumerate(wanted)
    ]
    free, replica = (Replica(limits(num_blocks=60, block_manager="v2")) for _ in range(2))
    for each in (free, replica):
        each.submit(*requests)
    free.run()
    for num_tokens, num_seqs in throttles:
        replica.scheduler.throttle(Throttle(num_tokens, num_seqs))
        if not replica.scheduler.has_work:
            break
        decodes = sum(c.num_left == 1 for c in replica.scheduler.roster.running)
        running = replica.scheduler.roster.num_seqs
        plan = replica.step()
        assert not decodes or plan.num_tokens <= max(num_tokens, decodes + BLOCK)
        assert replica.scheduler.roster.num_seqs <= max(num_seqs, running or 3)
    replica.run()
    for name in free.outcomes:
        assert [replica.outcomes[name].ids(i) for i in range(3)] == [free.outcomes[name].ids(i) for i in range(3)]
