"""n > 1: one prefill, then forks on the same blocks, each choice with its own draws and its own end."""

import pytest

from octavo.core.events import Finished, Generated
from octavo.core.request import ChoiceState
from octavo.core.types import FinishReason
from tests.core.replica import Outcome, Replica, alone, limits, request


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("prompt_len", [1, 4, 7, 8])
def test_the_prompt_is_computed_once_and_its_full_blocks_are_shared(n: int, prompt_len: int) -> None:
    replica = Replica(limits(num_blocks=40))
    replica.submit(request("r", range(prompt_len), n=n, max_tokens=4, temperature=1.0))
    first, second = replica.step(), replica.step()
    assert [len(work.tokens) for work in first.work] == [prompt_len]
    assert [sample.choice for sample in first.work[0].samples] == list(range(n))
    assert [(work.choice, work.start, len(work.tokens)) for work in second.work] == [
        (i, prompt_len, 1) for i in range(n)
    ]
    full = prompt_len // 4
    assert len({work.block_ids[:full] for work in second.work}) == 1
    assert len({work.block_ids[full] for work in second.work}) == n
    assert len(second.copies) == (n - 1 if prompt_len % 4 else 0), "all but the last copy a partial tail"
    replica.run()
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH] * n


def test_choices_end_on_their_own_and_the_request_with_the_last() -> None:
    replica = Replica(limits(num_blocks=40, eos_token_ids=(0,)))
    replica.submit(request("r", [1, 2, 3], n=6, max_tokens=12, temperature=1.0))
    replica.run()
    outcome = replica.outcomes["r"]
    lengths = {len(outcome.ids(choice)) for choice in range(6)}
    assert len(lengths) > 1, "this seed gives answers of several lengths"
    for choice, finished in outcome.finished.items():
        ended_by_eos = finished.reason is FinishReason.STOP
        assert (outcome.ids(choice)[-1] == 0) == ended_by_eos
    assert not replica.scheduler.roster.requests


@pytest.mark.parametrize("n", [2, 5])
def test_a_choice_is_the_same_whatever_n_is(n: int) -> None:
    """Draws are keyed by (seed, choice, index): asking for more choices changes none of those before."""
    few = alone(request("r", [1, 2, 3, 4, 5], n=n, temperature=1.0, max_tokens=6), limits(num_blocks=60))
    many = alone(request("r", [1, 2, 3, 4, 5], n=n + 3, temperature=1.0, max_tokens=6), limits(num_blocks=60))
    assert [few.ids(choice) for choice in range(n)] == [many.ids(choice) for choice in range(n)]
    assert len({tuple(many.ids(choice)) for choice in range(n + 3)}) > 1


def test_choices_that_end_with_their_first_token_never_fork() -> None:
    replica = Replica(limits(num_blocks=2))
    replica.submit(request("r", range(6), n=5, max_tokens=1, temperature=1.0))
    assert replica.run() == 1
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH] * 5


def test_the_first_tokens_come_in_order_and_before_any_end() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1], n=3, max_tokens=2, temperature=1.0))
    replica.step()
    events = [event for event in replica.events if isinstance(event, Generated | Finished)]
    assert [(type(event).__name__, event.choice) for event in events] == [("Generated", i) for i in range(3)]
    replica.run()


def test_followers_wait_while_the_prompt_is_computed_and_all_end_on_cancel() -> None:
    replica = Replica(limits(max_num_batched_tokens=4))
    replica.submit(request("r", range(8), n=3))
    replica.step()
    states = [choice.state for choice in replica.scheduler.roster.requests["r"]]
    assert states == [ChoiceState.RUNNING, ChoiceState.FOLLOWING, ChoiceState.FOLLOWING]
    replica.cancel("r")
    assert replica.outcomes["r"].reasons() == [FinishReason.ABORT] * 3
    assert replica.scheduler.load().blocks_leased == 0


def test_a_prompt_preempted_before_its_end_still_forks_once() -> None:
    """It comes back as one work with n samples."""
    tight = limits(num_blocks=6, max_num_batched_tokens=5, enable_prefix_caching=False, max_num_partial_prefills=2)
    replica = Replica(tight, watermark=0.0)
    replica.submit(request("old", [1] * 3, max_tokens=16), request("r", [2] * 12, n=2, max_tokens=2))
    while replica.scheduler.roster.requests["r"][0].computed < 4:
        replica.step()
    replica.run()
    forks = [work for plan in replica.plans for work in plan.work if len(work.samples) == 2]
    assert len(forks) == 1 and forks[0].request_id == "r"
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH] * 2


ROOMY = limits(num_blocks=40, max_num_batched_tokens=4)
"""A prompt of 8 tokens takes two steps."""
THREE = request("r", range(8), n=3, max_tokens=6, temperature=1.0)
DUE = alone(THREE, ROOMY)


def cancelled_in(state: str, choice: int) -> Replica:
    """Three choices, of which one is cancelled in this state of their request."""
    replica = Replica(ROOMY)
    replica.submit(THREE)
    steps = {"queued": 0, "half computed": 1, "before the fork": 1, "forked": 2, "in flight": 3}[state]
    for _ in range(steps):
        replica.step()
    plan = replica.plan() if state in ("before the fork", "in flight") else None
    replica.cancel("r", choice)
    assert replica.outcomes["r"].finished[choice].reason is FinishReason.ABORT, "at once"
    if plan is not None:
        replica.commit(plan)
    return replica


def as_due(outcome: Outcome, choice: int) -> bool:
    last, due = outcome.finished[choice], DUE.finished[choice]
    return outcome.tokens[choice] == DUE.tokens[choice] and last.reason == due.reason


@pytest.mark.parametrize("state", ["queued", "half computed", "before the fork", "forked", "in flight"])
@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_choice_is_cancelled_alone_in_every_state(state: str, choice: int) -> None:
    """The first one computes the prompt for all, the others follow it: it makes no difference."""
    replica = cancelled_in(state, choice)
    sofar = len(replica.outcomes["r"].ids(choice))
    assert sofar == {"forked": 1, "in flight": 2}.get(state, 0), "what it had it keeps, and the step in flight is lost"
    replica.cancel("r", choice)
    replica.run()
    outcome = replica.outcomes["r"]
    assert [as_due(outcome, other) for other in range(3) if other != choice] == [True, True]
    assert len(outcome.ids(choice)) == sofar, "nothing is drawn for it any more"
    computed = sum(len(work.tokens) for plan in replica.plans for work in plan.work if work.start < 8)
    assert computed == 8, "the prompt was computed once"


@pytest.mark.parametrize("state", ["queued", "half computed", "before the fork", "forked", "in flight"])
def test_the_last_choice_that_is_cancelled_ends_the_request(state: str) -> None:
    replica = cancelled_in(state, 0)
    replica.cancel("r", 2)
    assert "r" in replica.scheduler.roster.requests
    replica.cancel("r", 1)
    assert replica.outcomes["r"].reasons() == [FinishReason.ABORT] * 3
    assert not replica.scheduler.has_work and replica.scheduler.load().blocks_leased == 0


def test_a_choice_that_is_left_alone_computes_its_prompt_and_draws_for_itself() -> None:
    replica = Replica(ROOMY)
    replica.submit(THREE)
    replica.step()
    replica.cancel("r", 0)
    replica.cancel("r", 1)
    assert [work.choice for work in replica.step().work] == [2]
    assert [[sample.choice for sample in work.samples] for work in replica.plans[-1].work] == [[2]]
    replica.run()
    assert as_due(replica.outcomes["r"], 2)


def test_a_cancelled_choice_gives_back_its_own_blocks_and_its_slot() -> None:
    replica = Replica(limits(num_blocks=40, max_num_seqs=3))
    replica.submit(THREE, request("next", [5] * 3, max_tokens=1))
    replica.step()
    replica.step()
    held = replica.scheduler.load().blocks_leased
    replica.cancel("r", 1)
    assert replica.scheduler.load().blocks_leased == held - 1
    assert {work.request_id for work in replica.step().work} == {"r", "next"}
    replica.run()


@pytest.mark.parametrize("choice", [0, 1])
def test_a_choice_of_a_preempted_prompt_is_cancelled(choice: int) -> None:
    """Of two choices one is left, which takes the old place and computes the prompt again."""
    tight = limits(num_blocks=6, max_num_batched_tokens=2, enable_prefix_caching=False)
    pair = request("r", [2] * 15, n=2, max_tokens=2, temperature=1.0)
    replica = Replica(tight, watermark=0.0)
    replica.submit(request("old", [1] * 3, max_tokens=16), pair)
    while not replica.preemptions():
        assert replica.step().work
    assert not replica.outcomes["r"].tokens
    replica.cancel("r", choice)
    replica.run()
    outcome = replica.outcomes["r"]
    assert outcome.reasons()[1 - choice] is FinishReason.LENGTH and not outcome.ids(choice)
    assert outcome.ids(1 - choice) == alone(pair, tight).ids(1 - choice)


@pytest.mark.parametrize(("name", "choice"), [("r", 3), ("r", -1), ("nobody", 0)])
def test_what_is_not_there_cannot_be_cancelled(name: str, choice: int) -> None:
    replica = Replica(ROOMY)
    replica.submit(THREE)
    assert replica.scheduler.cancel(name, 0.0, choice) == ()
    replica.run()
    assert all(as_due(replica.outcomes["r"], each) for each in range(3))
