"""Fair shares: two tenants that both have something waiting are served equally, within the paper's bound."""

from random import Random

import pytest

from octavo.core.events import Admitted, Generated
from octavo.core.turns import INPUT_WEIGHT, OUTPUT_WEIGHT, FairShares
from octavo.core.types import FinishReason
from tests.core.replica import Replica, limits, request


def fair(**changes: object) -> Replica:
    return Replica(limits(scheduling_policy="fair", **changes), watermark=0.0)


def shares(replica: Replica) -> FairShares:
    turns = replica.scheduler.roster.turns
    assert isinstance(turns, FairShares)
    return turns


def admitted(replica: Replica) -> list[str]:
    return [event.request_id for event in replica.events if isinstance(event, Admitted) and not event.resumed]


def services(replica: Replica, prompts: dict[str, int]) -> list[dict[str, int]]:
    """What each tenant was served, step by step. A request's name begins with its tenant's."""
    total = {"a": 0, "b": 0}
    steps: list[dict[str, int]] = []
    seen = 0
    while replica.scheduler.has_work:
        replica.step()
        for event in replica.events[seen:]:
            if isinstance(event, Admitted) and not event.resumed:
                total[event.request_id[0]] += INPUT_WEIGHT * prompts[event.request_id]
            elif isinstance(event, Generated):
                total[event.request_id[0]] += OUTPUT_WEIGHT
        seen = len(replica.events)
        waiting = {choice.request.tenant for choice in replica.scheduler.roster.waiting}
        if waiting >= {"a", "b"}:
            steps.append(dict(total))
    return steps


def widest_difference(steps: list[dict[str, int]]) -> int:
    """The most by which the services of two tenants differ, over any interval in which both had something waiting."""
    differences = [served["a"] - served["b"] for served in steps]
    return max(differences) - min(differences)


def crowd(random: Random, lopsided: bool) -> list:
    """Backlogs of two tenants: of the same kind, or many long ones against few short ones. One after the other."""
    asked = []
    for tenant in "ab":
        for i in range(12):
            long = lopsided and tenant == "a"
            prompt_len = random.randint(8, 20) if long else random.randint(1, 12)
            max_tokens = random.randint(6, 14) if long else random.randint(1, 8)
            n = random.choice([1, 1, 1, 2])
            prompt = [random.randrange(8) for _ in range(prompt_len)]
            params = {"max_tokens": max_tokens, "n": n, "temperature": 1.0}
            asked.append(request(f"{tenant}{i}", prompt, tenant=tenant, **params))
    return asked


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lopsided", [False, True])
def test_the_services_of_two_backlogged_tenants_differ_by_no_more_than_the_papers_bound(
    seed: int, lopsided: bool
) -> None:
    random = Random(seed)
    replica = fair(
        num_blocks=random.choice([10, 14]),
        max_model_len=34,
        max_num_seqs=random.choice([2, 3, 6]),
        max_num_batched_tokens=random.choice([4, 16, 64]),
        max_num_partial_prefills=random.choice([1, 2]),
        block_manager=random.choice(["v1", "v2"]),
        enable_prefix_caching=bool(seed % 2),
    )
    asked = crowd(random, lopsided)
    replica.submit(*asked)
    steps = services(replica, {one.request_id: len(one.prompt) for one in asked})
    assert widest_difference(steps) <= 2 * shares(replica).bound
    assert all(FinishReason.ABORT not in replica.outcomes[one.request_id].reasons() for one in asked)


def test_under_fcfs_who_comes_first_with_much_is_served_alone_and_under_fair_not() -> None:
    """The bound is worth something: the same backlogs by another policy are far beyond it."""
    for policy, within in (("fcfs", False), ("fair", True)):
        replica = Replica(limits(num_blocks=4, max_model_len=12, scheduling_policy=policy), watermark=0.0)
        asked = [request(f"{tenant}{i}", [1] * 4, tenant=tenant, max_tokens=4) for tenant in "ab" for i in range(40)]
        replica.submit(*asked)
        steps = services(replica, {one.request_id: 4 for one in asked})
        bound = 2 * FairShares(replica.scheduler.limits).bound
        assert (widest_difference(steps) <= bound) == within


def test_the_counter_is_what_the_tenant_was_served() -> None:
    replica = fair()
    replica.submit(request("a0", [1] * 6, tenant="a", n=2, max_tokens=4, temperature=1.0))
    replica.submit(request("b0", [2] * 3, tenant="b", max_tokens=2))
    replica.run()
    assert shares(replica).counters() == {"a": 6 + 2 * 2 * 4, "b": 3 + 2 * 2}
    assert set(shares(replica)._pledged.values()) == {0}


@pytest.mark.parametrize("weight", [2, 3, 7])
def test_a_tenant_is_served_by_its_weight(weight: int) -> None:
    """While both have something waiting, b gets so many times what a gets, within the same bound."""
    replica = fair(num_blocks=8, max_model_len=12, max_num_seqs=2)
    asked = [
        request(f"{tenant}{i}", [1] * 4, tenant=tenant, max_tokens=4, weight=weight if tenant == "b" else 1)
        for tenant in "ab"
        for i in range(60)
    ]
    replica.submit(*asked)
    steps = services(replica, {one.request_id: 4 for one in asked})
    normal = [{"a": served["a"], "b": served["b"] / weight} for served in steps]
    assert widest_difference(normal) <= 2 * shares(replica).bound
    assert steps[-1]["b"] > (weight - 1) * steps[-1]["a"] > 0


def test_the_least_served_goes_next() -> None:
    replica = fair(max_num_seqs=1)
    replica.submit(*[request(f"a{i}", [1] * 8, tenant="a", max_tokens=4) for i in range(4)])
    replica.submit(*[request(f"b{i}", [2] * 2, tenant="b", max_tokens=1) for i in range(4)])
    replica.run()
    assert admitted(replica) == ["a0", "b0", "b1", "b2", "b3", "a1", "a2", "a3"]


def test_who_comes_back_after_a_rest_has_not_saved_up() -> None:
    replica = fair(max_num_seqs=1)
    replica.submit(*[request(f"a{i}", [1] * 4, tenant="a", max_tokens=4) for i in range(12)])
    for _ in range(25):
        replica.step()
    before = len(admitted(replica))
    replica.submit(*[request(f"b{i}", [2] * 4, tenant="b", max_tokens=4) for i in range(6)])
    replica.run()
    turns = [name[0] for name in admitted(replica)[before : before + 8]]
    assert turns.count("a") >= 3, "b takes turns with a, instead of all that it might have had before"


def test_within_a_tenant_first_come_first_served_and_one_tenant_is_fcfs() -> None:
    replica = fair(max_num_seqs=1)
    replica.submit(*[request(f"r{i}", [1, 2], max_tokens=2, priority=-i) for i in range(4)])
    replica.run()
    assert admitted(replica) == ["r0", "r1", "r2", "r3"]


def test_a_short_request_passes_the_long_prompt_of_another_tenant_that_waits() -> None:
    """Its worst case is within the bound, so nothing is lost by letting it go first."""
    replica = fair(num_blocks=40, max_model_len=100, max_num_batched_tokens=8)
    replica.submit(*[request(f"a{i}", [i + 1] * 80, tenant="a", max_tokens=2) for i in range(2)])
    replica.step()
    replica.submit(request("b", [7] * 3, tenant="b", max_tokens=2))
    replica.step()
    assert admitted(replica) == ["a0", "b"]
    replica.run()


def test_a_tenant_that_was_passed_to_the_bound_is_passed_no_more() -> None:
    """`a` waits for blocks that `holder` has; `b` passes until its worst case would exceed the bound."""
    replica = fair(num_blocks=8, max_model_len=32, enable_prefix_caching=False)
    replica.submit(request("holder", [1] * 12, tenant="c", max_tokens=12))
    replica.step()
    replica.submit(request("a", [2] * 27, tenant="a", max_tokens=4))
    for i in range(30):
        replica.submit(request(f"b{i}", [3] * 2, tenant="b", max_tokens=2))
        replica.step()
    replica.run()
    served_before = [name for name in admitted(replica) if name != "holder"].index("a") * (2 + 2 * 2)
    assert served_before <= shares(replica).bound
