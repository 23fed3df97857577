"""What users of such engines complain about, as cases: each within a stated number of steps, and all blocks come back.

`Replica.step` also asserts, at every step, that all laws hold and that whatever has work gets some.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from octavo.core.events import Admitted
from octavo.core.scheduler import MAX_PASSED
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, request

DONE = (FinishReason.LENGTH, FinishReason.STOP)


@dataclass(frozen=True)
class Case:
    """Who asks for what, in which limits; `drive` does more than wait; `refused`: those who are told at once."""

    name: str
    asked: list
    steps: int
    limits: dict = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    drive: Callable[[Replica], None] = lambda replica: None


def many(count: int, prompt_len: int, prefix: str = "r", **params) -> list:
    return [request(f"{prefix}{i}", [(i + j) % 8 for j in range(prompt_len)], **params) for i in range(count)]


def storm(every: int, choice: int | None = None) -> Callable[[Replica], None]:
    """Cancels at random, in every state, while steps go on."""

    def drive(replica: Replica) -> None:
        random = Random(every)
        names = list(replica.scheduler.roster.requests)
        for name in random.sample(names, len(names) - 1):
            replica.cancel(name, choice)
            if random.randrange(every) == 0:
                replica.step()

    return drive


def in_flight(replica: Replica) -> None:
    """Everybody is cancelled while a step with them is in flight."""
    plan = replica.plan()
    for name in list(replica.scheduler.roster.requests):
        replica.cancel(name)
    replica.commit(plan)


def failing(replica: Replica) -> None:
    """Three steps in a row fail."""
    for _ in range(3):
        plan = replica.plan()
        if plan.work:
            replica.fail(plan)


def late(*requests, after: int = 2) -> Callable[[Replica], None]:
    def drive(replica: Replica) -> None:
        for _ in range(after):
            replica.step()
        replica.submit(*requests)

    return drive


def stream_of_small_ones(replica: Replica) -> None:
    """One arrives at each step, for ever, as far as the large one can tell."""
    for i in range(MAX_PASSED + 40):
        replica.submit(request(f"late{i}", [3] * 4, max_tokens=5))
        replica.step()


OFF = {"enable_prefix_caching": False}
PRIORITY = {"scheduling_policy": "priority"}
CASES = [
    Case("longer than the pool", [request("r", [1] * 60, max_tokens=2), *many(2, 4)], 20, {"num_blocks": 8}, ("r",)),
    Case("longer than the pool with its answer", [request("r", [1] * 4, max_tokens=40)], 5, {"num_blocks": 8}, ("r",)),
    Case("longer than the context", [request("r", [1] * 70), *many(2, 4)], 20, {}, ("r",)),
    Case("exactly the context but one", [request("r", [1] * 39, max_tokens=9)], 3, {"max_model_len": 40}),
    Case("exactly the pool", many(3, 24, max_tokens=9), 40, {"num_blocks": 8}),
    Case(
        "longer than the budget",
        [request("r", [1] * 60, max_tokens=2)],
        32,
        {"max_num_batched_tokens": 2, "num_blocks": 16},
    ),
    Case("a budget of one token", many(3, 9, n=2, temperature=1.0), 3 * 9 + 3 * 2 * 4, {"max_num_batched_tokens": 1}),
    Case(
        "a budget of one with a threshold",
        many(2, 9),
        30,
        {"max_num_batched_tokens": 1, "long_prefill_token_threshold": 1},
    ),
    Case("a budget below the running ones", many(6, 2, max_tokens=6), 40, {"max_num_batched_tokens": 3}),
    Case("a block larger than the prompt", many(5, 3), 30, {"block_size": 128, "num_blocks": 2}),
    Case("a block larger than the context", many(5, 3), 30, {"block_size": 128, "num_blocks": 1}),
    Case("blocks of one token", many(5, 7), 60, {"block_size": 1, "num_blocks": 12}),
    Case("a pool of one block", many(4, 2, max_tokens=2), 20, {"num_blocks": 1}),
    Case("one at a time", many(8, 5), 60, {"max_num_seqs": 1}),
    Case("n above the slots", [request("r", [1], n=5, temperature=1.0), *many(2, 4)], 20, {"max_num_seqs": 4}, ("r",)),
    Case(
        "n as many as the slots behind others",
        [*many(4, 4), request("z", [1], n=4, temperature=1.0)],
        30,
        {"max_num_seqs": 4},
    ),
    Case("n answers short of blocks", many(3, 6, n=3, temperature=1.0, max_tokens=8), 80, {"num_blocks": 10}),
    Case(
        "no blocks for the head but for smaller ones",
        [request("a", [1] * 28, max_tokens=8), request("b", [2] * 40), *many(6, 3)],
        60,
        OFF,
    ),
    Case(
        "a head that small ones keep passing",
        [request("a", [1] * 8, max_tokens=5), request("b", [2] * 20, max_tokens=2)],
        400,
        {"num_blocks": 6, **OFF},
        drive=stream_of_small_ones,
    ),
    Case("everybody preempts everybody", many(8, 4, max_tokens=24), 400, {"num_blocks": 8, **OFF}),
    Case(
        "all preempted by one of a lower rank",
        many(4, 8, priority=5, max_tokens=8),
        80,
        {"num_blocks": 12, **PRIORITY, **OFF},
        drive=late(request("high", [1] * 40, max_tokens=4)),
    ),
    Case(
        "preempted again and again",
        many(3, 4, priority=5, max_tokens=12),
        200,
        {"num_blocks": 6, **PRIORITY, **OFF},
        drive=late(*many(6, 8, "h", priority=0)),
    ),
    Case(
        "a high one behind low ones for slots",
        many(4, 4, priority=5, max_tokens=20),
        60,
        {"max_num_seqs": 4, **PRIORITY},
        drive=late(request("high", [1] * 4)),
    ),
    Case(
        "a high one behind low ones for blocks",
        many(2, 16, priority=5, max_tokens=8),
        60,
        {"num_blocks": 12, **PRIORITY, **OFF},
        drive=late(request("high", [1] * 24)),
    ),
    Case(
        "ranks that alternate",
        [one for i in range(6) for one in many(1, 6, f"p{i}", priority=i % 2, max_tokens=10)],
        120,
        {"num_blocks": 7, **PRIORITY},
    ),
    Case(
        "a long prompt before short ones",
        [request("a", [1] * 44, max_tokens=1), *many(5, 3)],
        40,
        {"max_num_batched_tokens": 4, "num_blocks": 30},
    ),
    Case("long prompts at once", many(5, 40, max_tokens=2), 80, {"max_num_batched_tokens": 8, "num_blocks": 40}),
    Case("equal prompts at once", [request(f"r{i}", [1, 2, 3] * 5) for i in range(9)], 60, {"num_blocks": 9}),
    Case("equal prompts, no cache", [request(f"r{i}", [1, 2, 3] * 5) for i in range(9)], 80, {"num_blocks": 9, **OFF}),
    Case(
        "prompt logprobs short of blocks",
        many(4, 12, prompt_logprobs=1, max_tokens=8),
        80,
        {"num_blocks": 6, "max_num_batched_tokens": 5},
    ),
    Case("a storm of cancels", many(30, 6, max_tokens=12), 120, {"num_blocks": 8}, drive=storm(2)),
    Case(
        "a storm of cancelled choices",
        many(12, 6, n=3, temperature=1.0, max_tokens=6),
        200,
        {"num_blocks": 12},
        drive=storm(2, choice=0),
    ),
    Case("cancelled in flight", many(6, 6), 3, {"num_blocks": 12}, drive=in_flight),
    Case("steps that fail", many(12, 6), 120, {"num_blocks": 8, "max_num_seqs": 2}, drive=failing),
    Case(
        "one tenant floods the others",
        [
            *[request(f"f{i}", [1] * 4, tenant="flood") for i in range(20)],
            *[request(f"t{i}", [2] * 4, tenant="t") for i in range(3)],
        ],
        200,
        {"scheduling_policy": "fair", "max_num_seqs": 2},
    ),
    Case(
        "a tenant whose head cannot be placed",
        [
            request("a", [1] * 28, tenant="a", max_tokens=8),
            request("b", [2] * 40, tenant="b"),
            *[request(f"c{i}", [3] * 3, tenant="c") for i in range(6)],
        ],
        80,
        {"scheduling_policy": "fair", **OFF},
    ),
]


def test_there_are_thirty_six_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 36


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_hangs_and_all_blocks_come_back(case: Case, manager: str) -> None:
    replica = Replica(limits(block_manager=manager, **case.limits), watermark=0.0)
    replica.submit(*case.asked)
    before = len(replica.plans)
    case.drive(replica)
    replica.run(max_steps=case.steps)
    assert len(replica.plans) - before <= case.steps + 2 * MAX_PASSED
    load = replica.scheduler.load()
    assert (load.blocks_leased, load.blocks_reserved, load.num_waiting, load.num_running) == (0, 0, 0, 0)
    assert load.blocks_blank + load.blocks_cached == replica.scheduler.limits.num_blocks
    for one in case.asked:
        outcome = replica.outcomes[one.request_id]
        assert (outcome.refused is not None) == (one.request_id in case.refused)
        if set(outcome.reasons()) <= set(DONE) and not outcome.refused:
            roomy = limits(**{**case.limits, "num_blocks": 200, "max_num_batched_tokens": 64})
            assert outcome.tokens == alone(one, roomy).tokens


def test_who_keeps_being_passed_is_passed_at_most_so_often() -> None:
    case = next(case for case in CASES if case.name == "a head that small ones keep passing")
    replica = Replica(limits(**case.limits), watermark=0.0)
    replica.submit(*case.asked)
    case.drive(replica)
    admitted = [event.request_id for event in replica.events if isinstance(event, Admitted)]
    assert "b" in admitted and admitted.index("b") <= MAX_PASSED + 4
    replica.run(max_steps=case.steps)


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_a_choice_is_no_victim_for_ever_while_there_is_another(manager: str) -> None:
    """Under pressure that lasts, those behind share the losses: nobody is preempted much more often than the rest."""
    replica = Replica(limits(num_blocks=14, block_manager=manager, **OFF), watermark=0.0)
    replica.submit(*many(10, 4, max_tokens=30))
    replica.run(max_steps=1500)
    assert all(outcome.reasons() == [FinishReason.LENGTH] for outcome in replica.outcomes.values())
    times = [event.times for event in replica.preemptions()]
    assert max(times, default=0) <= 12
