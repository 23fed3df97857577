"""Short of blocks: who loses its lease, what that costs, and that it changes no token."""

from dataclasses import replace

import pytest

from octavo.core.events import Admitted, Preempted
from octavo.core.request import ChoiceState
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, request


def crowd(replica: Replica, count: int = 4, max_tokens: int = 14) -> list[str]:
    """Requests that all fit when they start, and not when they have grown."""
    names = [f"r{i}" for i in range(count)]
    replica.submit(*[request(name, [i, i + 1], max_tokens=max_tokens) for i, name in enumerate(names)])
    return names


def test_the_first_is_never_preempted_and_everybody_finishes() -> None:
    replica = Replica(limits(num_blocks=8), watermark=0.0)
    names = crowd(replica)
    replica.run()
    assert replica.preemptions()
    assert "r0" not in {event.request_id for event in replica.preemptions()}
    for name in names:
        assert replica.outcomes[name].reasons() == [FinishReason.LENGTH]


def until_preempted(replica: Replica) -> Preempted:
    for _ in range(50):
        replica.step()
        if replica.preemptions():
            return replica.preemptions()[0]
    raise AssertionError("nobody was preempted")


@pytest.mark.parametrize(("victim", "name", "lost"), [("least_work_lost", "mid", 6), ("latest", "young", 8)])
def test_the_victim_is_the_policy_s(victim: str, name: str, lost: int) -> None:
    """`old` needs a seventh block. `young` came last, but has computed more than `mid`."""
    replica = Replica(limits(num_blocks=6, enable_prefix_caching=False), watermark=0.0, victim=victim)
    replica.submit(request("old", [1] * 6, max_tokens=6), request("mid", [2] * 4, max_tokens=6))
    replica.submit(request("young", [3] * 8, max_tokens=6))
    event = until_preempted(replica)
    assert (event.request_id, event.tokens_lost) == (name, lost)
    replica.run()


def test_a_victim_that_frees_nothing_is_passed_over() -> None:
    """Right after a fork all choices share every block, and taking a lease from one of them would free none."""
    replica = Replica(limits(num_blocks=5, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("old", [1] * 6, max_tokens=4), request("lone", [2] * 5, max_tokens=4))
    replica.step()
    replica.step()
    replica.submit(request("twins", [3] * 4, n=2, max_tokens=3, temperature=1.0))
    assert until_preempted(replica).request_id == "lone"
    replica.run()


def test_a_preemption_says_what_was_lost_and_why() -> None:
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("a", [1] * 6, max_tokens=6), request("b", [2] * 6, max_tokens=6))
    event = until_preempted(replica)
    assert isinstance(event, Preempted)
    assert (event.request_id, event.choice, event.tokens_lost) == ("b", 0, 8)
    assert event.reason == "request a needs 1 blocks for its next 1 tokens, 0 are free"
    (choice,) = replica.scheduler.roster.requests["b"]
    assert choice.state is ChoiceState.PREEMPTED and choice.lease.table == ()
    replica.run()


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_choice_computes_prompt_and_generated_tokens_again(caching: bool) -> None:
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=caching), watermark=0.0)
    replica.submit(request("a", [1] * 6, max_tokens=6), request("b", [2] * 6, max_tokens=6))
    replica.run()
    resumed = [event for event in replica.events if isinstance(event, Admitted) and event.resumed]
    assert [event.request_id for event in resumed] == ["b"]
    works = [work for plan in replica.plans for work in plan.work if work.request_id == "b"]
    again = next(work for work in works[1:] if work.start == resumed[0].cached_tokens)
    generated = replica.outcomes["b"].ids()
    assert again.start + len(again.tokens) == 6 + 3
    assert again.tokens == tuple(([2] * 6 + generated[:3])[again.start :])
    assert again.start == (0 if not caching else resumed[0].cached_tokens)


def test_a_preempted_choice_keeps_its_place() -> None:
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("a", [1] * 6, max_tokens=6), request("b", [2] * 6, max_tokens=6))
    replica.submit(request("c", [3] * 6, max_tokens=6))
    until_preempted(replica)
    assert [choice.request_id for choice in replica.scheduler.roster.waiting] == ["b", "c"]
    replica.run()
    admitted = [event.request_id for event in replica.events if isinstance(event, Admitted)]
    assert admitted[-2:] == ["b", "c"]


def test_nobody_is_preempted_and_admitted_in_one_step_or_enters_beside_a_preemption() -> None:
    replica = Replica(limits(num_blocks=8), watermark=0.0)
    crowd(replica, count=6)
    replica.run()
    times: dict[float, set[str]] = {}
    for event in replica.events:
        if isinstance(event, Admitted | Preempted):
            times.setdefault(event.time_s, set()).add(type(event).__name__)
    assert {"Preempted"} in times.values()
    assert {"Preempted", "Admitted"} not in times.values()


@pytest.mark.parametrize("budget", [2, 3, 256])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("victim", ["least_work_lost", "latest"])
@pytest.mark.parametrize("n", [1, 2])
def test_outputs_equal_the_unpreempted_run(budget: int, caching: bool, victim: str, n: int) -> None:
    tight = limits(num_blocks={1: 5, 2: 8}[n], max_num_batched_tokens=budget, enable_prefix_caching=caching)
    replica = Replica(tight, watermark=0.0, victim=victim)
    requests = [
        request(f"r{i}", [i % 3, 1, 2, i % 2], max_tokens=12, n=n, temperature=float(i % 2), logprobs=2)
        for i in range(6)
    ]
    replica.submit(*requests)
    replica.run(max_steps=3000)
    assert replica.preemptions() or budget == n, "two choices that share a budget of two have no neighbours"
    roomy = limits(num_blocks=100, max_num_batched_tokens=256)
    for one in requests:
        assert replica.outcomes[one.request_id].tokens == alone(one, roomy).tokens


def test_outputs_are_the_same_after_eviction_began() -> None:
    """Three rounds of the same requests in a pool that cannot keep them all: hits, evictions, and equal answers."""
    replica = Replica(limits(num_blocks=8))
    prompts = {i: [i, i, 1, 2, 3, i, 4, 5, 6] for i in range(5)}
    for turn in range(3):
        for i, prompt in prompts.items():
            replica.submit(request(f"{turn}/{i}", prompt, max_tokens=5))
        replica.run()
    assert any(type(event).__name__ == "BlockEvicted" for event in replica.events)
    for i in prompts:
        assert len({tuple(replica.outcomes[f"{turn}/{i}"].ids()) for turn in range(3)}) == 1


def test_a_waiting_request_of_a_lower_rank_displaces_for_a_slot() -> None:
    replica = Replica(limits(max_num_seqs=2, scheduling_policy="priority"))
    replica.submit(*[request(f"low{i}", [i + 1] * 3, max_tokens=8, priority=5) for i in range(2)])
    replica.step()
    replica.submit(request("high", [4] * 3, max_tokens=2, priority=1))
    plan = replica.step()
    assert {work.request_id for work in plan.work} == {"low0", "high"}
    assert [event.request_id for event in replica.preemptions()] == ["low1"]
    assert "needs 1 seqs, has 0" in replica.preemptions()[0].reason
    replica.run()
    for name in ("low0", "low1"):
        assert len(replica.outcomes[name].ids()) == 8


def test_a_waiting_request_of_a_lower_rank_displaces_for_blocks() -> None:
    replica = Replica(limits(num_blocks=4, scheduling_policy="priority", enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("low", [1] * 12, max_tokens=4, priority=5))
    replica.step()
    replica.submit(request("high", [2] * 8, max_tokens=2, priority=1))
    assert {work.request_id for work in replica.step().work} == {"high"}
    replica.run()
    assert len(replica.outcomes["low"].ids()) == 4


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_equals_are_never_displaced(policy: str) -> None:
    replica = Replica(limits(max_num_seqs=1, scheduling_policy=policy))
    replica.submit(request("first", [1], max_tokens=6, priority=1))
    replica.step()
    replica.submit(request("second", [2], max_tokens=2, priority=1))
    replica.run()
    assert not replica.preemptions()


def test_nobody_is_displaced_in_vain() -> None:
    """All that the low one holds would not be enough for the high one, which then waits for the middle one."""
    replica = Replica(limits(num_blocks=6, scheduling_policy="priority", enable_prefix_caching=False), watermark=0.0)
    replica.submit(
        request("top", [1] * 15, max_tokens=3, priority=0), request("low", [2] * 3, max_tokens=6, priority=9)
    )
    replica.step()
    replica.submit(request("high", [3] * 16, max_tokens=1, priority=1))
    replica.step()
    assert not replica.preemptions()
    replica.run()
    assert replica.outcomes["high"].reasons() == [FinishReason.LENGTH]


def test_what_the_plan_had_granted_to_a_victim_goes_to_others() -> None:
    tight = limits(num_blocks=5, max_num_batched_tokens=8, scheduling_policy="priority", enable_prefix_caching=False)
    replica = Replica(replace(tight, block_manager="v2"), watermark=0.0)
    replica.submit(request("low", [1] * 4, max_tokens=4, priority=5))
    replica.step()
    replica.submit(request("high", [2] * 16, max_tokens=1, priority=0))
    assert [(work.request_id, len(work.tokens)) for work in replica.step().work] == [("high", 8)]
    replica.run()


def test_a_choice_whose_whole_plan_was_taken_back_has_no_work_and_no_copies_in_it() -> None:
    """The victim had been granted a token and a block copy in the same plan."""
    tight = limits(num_blocks=6, scheduling_policy="priority", enable_prefix_caching=False)
    replica = Replica(tight, watermark=0.0)
    replica.submit(request("low", [1] * 6, n=2, max_tokens=3, priority=5, temperature=1.0))
    replica.step()
    replica.submit(request("high", [2] * 20, max_tokens=1, priority=0))
    plan = replica.step()
    assert [work.request_id for work in plan.work] == ["high"] and plan.copies == ()
    replica.run()
    assert replica.outcomes["low"].reasons() == [FinishReason.LENGTH] * 2


def test_a_victim_does_not_come_back_in_the_same_step_though_it_would_fit() -> None:
    """`small` goes first and is not enough; then `large` goes, and leaves room to spare."""
    tight = limits(num_blocks=5, scheduling_policy="priority", enable_prefix_caching=False)
    replica = Replica(tight, watermark=0.0)
    replica.submit(request("small", [1] * 2, priority=5), request("large", [2] * 14, max_tokens=2, priority=5))
    replica.step()
    replica.submit(request("high", [3] * 12, max_tokens=1, priority=0))
    assert [work.request_id for work in replica.step().work] == ["high"]
    assert [event.request_id for event in replica.preemptions()] == ["small", "large"]
    replica.run()


def test_nobody_enters_on_blocks_that_were_freed_for_another() -> None:
    replica = Replica(limits(num_blocks=6, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("old", [1] * 7), request("large", [2] * 13), request("small", [3]))
    while not replica.preemptions():
        plan = replica.step()
    assert [work.request_id for work in plan.work] == ["old"] and replica.scheduler.load().blocks_blank == 3
    replica.run()
