"""For what a choice waited, and how long: said when it starts, and by a snapshot while it waits."""

import pytest

from octavo.core.waits import Waited
from tests.core.replica import Replica, limits, request
from tests.core.words import one_of, word_guide


def waited(replica: Replica, name: str) -> list[tuple[str, float]]:
    return [(each.reason, each.seconds) for each in replica.outcomes[name].admissions[-1].waited]


def test_who_comes_to_an_idle_engine_waits_for_its_first_plan() -> None:
    replica = Replica(limits())
    replica.submit(request("a", [1] * 4))
    replica.run()
    assert waited(replica, "a") == [("step", 1.0)]


@pytest.mark.parametrize(
    ("changes", "prompts", "reason", "numbers"),
    [
        ({"max_num_seqs": 1}, [4, 4], "seqs", (1, 0)),
        ({"num_blocks": 4}, [13, 9], "blocks", (1, 0)),
        ({"num_blocks": 5}, [13, 9], "blocks", (3, 1)),
        ({"max_num_batched_tokens": 4}, [4, 4], "tokens", (1, 0)),
        ({"max_num_batched_tokens": 7}, [20, 4], "partial_prefills", (1, 0)),
        ({}, [9, 9], "block_in_work", (1, 0)),
    ],
)
def test_a_shortage_is_told_with_its_numbers(
    changes: dict, prompts: list[int], reason: str, numbers: tuple[int, int]
) -> None:
    """The last one waits for what the first one has."""
    tokens = [1, 1] if reason == "block_in_work" else [1, 2]
    prefix = reason == "block_in_work"
    replica = Replica(limits(block_manager="v2", enable_prefix_caching=prefix, **changes), watermark=0.0)
    replica.submit(*[request(f"r{i}", [tokens[i]] * length) for i, length in enumerate(prompts)])
    replica.step()
    replica.run()
    (first,) = [each for each in replica.outcomes["r1"].admissions[0].waited if each.reason == reason]
    assert (first.need, first.have) == numbers and first.seconds > 0


def test_those_who_are_not_asked_wait_for_what_ran_out_from_the_start() -> None:
    replica = Replica(limits(max_num_seqs=1))
    replica.submit(request("a", [1] * 4, max_tokens=3))
    replica.step()
    replica.submit(request("b", [2] * 4, max_tokens=1), request("c", [3] * 4, max_tokens=1))
    replica.step()
    b, c = (choice for choice in replica.scheduler.roster.waiting)
    assert {replica.scheduler.waits.lacks(choice) for choice in (b, c)} == {"seqs"}
    replica.run()
    assert [name for name, _ in waited(replica, "b")] == ["step", "seqs"]
    assert dict(waited(replica, "c"))["seqs"] > dict(waited(replica, "b"))["seqs"]


def test_who_lost_its_lease_says_what_it_waited_for_since() -> None:
    replica = Replica(limits(num_blocks=6, enable_prefix_caching=False), watermark=0.0)
    replica.submit(*[request(f"r{i}", [i + 1] * 8, max_tokens=8) for i in range(2)])
    replica.run()
    (victim,) = {event.request_id for event in replica.preemptions()}
    first, *again = replica.outcomes[victim].admissions
    assert first.waited == (Waited("step", first.time_s - 2.0),)
    assert again and all(sum(each.seconds for each in resumed.waited) > 0 for resumed in again)


def test_who_is_held_waits_for_its_guide_and_then_for_its_turn() -> None:
    replica = Replica(limits(max_num_seqs=1))
    replica.submit(request("a", [1] * 4, max_tokens=4))
    replica.step()
    replica.submit(request("g", [2] * 4, structured_outputs=one_of("345")))
    held = replica.scheduler.roster.held[0]
    assert replica.scheduler.waits.lacks(held) == "guide"
    replica.step()
    replica.guide("g", word_guide(one_of("345"), 8))
    replica.step()
    assert replica.scheduler.waits.lacks(held) == "seqs"
    replica.run()
    reasons = [name for name, _ in waited(replica, "g")]
    assert reasons[0] == "guide" and "seqs" in reasons


def test_a_reason_that_comes_and_goes_is_counted_where_it_held() -> None:
    """Asked and short of blocks, then not asked since the slots are taken, then asked again."""
    replica = Replica(limits(num_blocks=8, max_num_seqs=2, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("big", [1] * 12, max_tokens=9))
    replica.step()
    replica.submit(request("waits", [2] * 24, max_tokens=1))
    came_at = replica.now
    replica.step()
    replica.submit(request("small", [3] * 4, max_tokens=4))
    for _ in range(3):
        replica.step()
    choice = next(one for one in replica.scheduler.roster.waiting if one.request_id == "waits")
    so_far = {each.reason: each.seconds for each in replica.scheduler.waits.of(choice, replica.now)}
    assert so_far["blocks"] > 0 and sum(so_far.values()) == pytest.approx(replica.now - came_at)
    replica.run()


def test_a_thousand_who_wait_cost_a_plan_nothing() -> None:
    """Only those who are asked are touched: at most as many as a plan looks past."""
    replica = Replica(limits(max_num_seqs=1, num_blocks=4))
    for i in range(200):
        replica.scheduler.submit(request(f"r{i}", [i % 8] * 4, max_tokens=1), 0.0)
    replica.step()
    touched = [one for one in replica.scheduler.roster.waiting if one.wait.own is not None or one.wait.spent]
    assert len(touched) <= 32
