"""Who is computing which block: one claim a choice, the first to claim a key has it, and nobody waits for the idle."""

from octavo.core.choice import Choice
from octavo.core.claims import Claims
from tests.core.replica import Replica, limits, request

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1]


def choices(*names: str) -> list[Choice]:
    replica = Replica(limits())
    replica.submit(*[request(name, PROMPT) for name in names])
    for choice in replica.scheduler.roster.waiting:
        choice.chain.extend(choice.tokens)
    return replica.scheduler.roster.waiting


def test_a_block_is_in_work_while_its_claimant_has_work_in_this_step() -> None:
    claims, (leader, follower) = Claims(4), choices("leader", "follower")
    assert not claims.is_in_work(follower, 0)
    claims.renew(leader)
    assert not claims.is_in_work(follower, 0), "it makes no headway"
    leader.granted = 4
    assert [claims.is_in_work(follower, num_hit) for num_hit in (0, 1, 2)] == [True, False, False]
    leader.computed = 4
    claims.renew(leader)
    assert [claims.is_in_work(follower, num_hit) for num_hit in (0, 1, 2)] == [False, True, False]


def test_the_first_claim_holds_and_the_second_does_not_end_it() -> None:
    claims, (first, second) = Claims(4), choices("first", "second")
    for choice in (first, second):
        claims.renew(choice)
    claims.drop(second)
    assert claims.by_key == {first.chain.keys[0]: first}
    claims.drop(first)
    claims.drop(first)
    assert not claims.by_key


def test_a_tail_that_is_not_full_is_never_claimed() -> None:
    claims, (one,) = Claims(4), choices("one")
    one.computed = 8
    claims.renew(one)
    assert not claims.by_key and one.claim is None
