"""The watchdog says when nothing advances; and what those who wait lack is known at every step."""

import pytest

from octavo.core.events import Stalled, Stepped
from octavo.core.watchdog import PATIENCE, Watchdog
from tests.core.replica import Replica, limits, request


def told(replica: Replica) -> dict[str, int]:
    return next(event for event in reversed(replica.events) if isinstance(event, Stepped)).waiting


@pytest.mark.parametrize(
    ("changes", "prompts", "reasons"),
    [
        ({"max_num_seqs": 1}, [4, 4, 4], {"seqs": 2}),
        ({"num_blocks": 4}, [13, 9, 9], {"blocks": 2}),
        ({"max_num_batched_tokens": 4}, [4, 4, 4], {"tokens": 2}),
        ({"max_num_batched_tokens": 4}, [20, 20], {"partial_prefills": 1}),
        ({}, [4, 4], {}),
    ],
)
def test_those_who_wait_say_what_they_lack(changes: dict, prompts: list[int], reasons: dict[str, int]) -> None:
    replica = Replica(limits(block_manager="v2", enable_prefix_caching=False, **changes), watermark=0.0)
    replica.submit(*[request(f"r{i}", [i + 1] * length) for i, length in enumerate(prompts)])
    replica.step()
    assert told(replica) == reasons
    replica.run()
    assert told(replica) == {}


def test_an_equal_prompt_waits_for_the_block_in_work() -> None:
    replica = Replica(limits())
    replica.submit(*[request(f"r{i}", [1] * 9) for i in range(3)])
    replica.step()
    assert told(replica) == {"block_in_work": 2}
    replica.run()


def test_the_watchdog_speaks_after_its_patience_and_then_ever_more_rarely() -> None:
    dog = Watchdog()
    replica = Replica(limits(max_num_seqs=1))
    load = replica.scheduler.load()
    spoke = [plan for plan in range(1, 40) if dog.stalled(load, {"blocks": 2}, 0.0)]
    assert spoke == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
    dog.advanced()
    assert dog.num_stalled == 0


def test_a_stall_names_the_reason() -> None:
    """By law there is none, so the scheduler is told of one that is not."""
    replica = Replica(limits(num_blocks=4, enable_prefix_caching=False, block_manager="v2"), watermark=0.0)
    replica.submit(request("holder", [1] * 12), request("waits", [2] * 12))
    replica.step()
    events = [event for i in range(PATIENCE) for event in replica.scheduler.stalled(float(i))]
    (stall,) = [event for event in events if isinstance(event, Stalled)]
    assert (stall.num_plans, stall.waiting) == (PATIENCE, {"blocks": 1})
    assert "1 choices run, 1 wait (1 for blocks)" in stall.message
    replica.step()
    assert replica.scheduler.watchdog.num_stalled == 0
    replica.run()
