"""Prompt logprobs: each prompt token after the first is scored once, whatever the chunks and preemptions."""

import pytest

from tests.core.replica import Replica, alone, limits, request

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("prompt_len", [1, 2, 4, 11])
def test_every_token_but_the_first_is_scored_once(budget: int, prompt_len: int) -> None:
    replica = Replica(limits(max_num_batched_tokens=budget))
    replica.submit(request("r", PROMPT[:prompt_len], prompt_logprobs=2, max_tokens=2))
    replica.run()
    scored = replica.outcomes["r"].scored
    assert [score.token for score in scored] == PROMPT[1:prompt_len]
    assert all(score.logprob is not None and len(score.alternatives) == 2 for score in scored)
    for work in (work for plan in replica.plans for work in plan.work):
        ends_prompt = work.start + len(work.tokens) == prompt_len
        scoring = work.start < prompt_len
        assert len(work.targets) == (len(work.tokens) - ends_prompt if scoring else 0)
        assert work.num_target_alternatives == (2 if work.targets else 0)


def test_zero_alternatives_asks_for_the_token_s_own_logprob() -> None:
    outcome = alone(request("r", PROMPT, prompt_logprobs=0, max_tokens=1), limits())
    assert len(outcome.scored) == 10
    assert all(score.logprob is not None and score.alternatives == () for score in outcome.scored)


def test_nothing_is_scored_where_nobody_asked() -> None:
    replica = Replica(limits())
    replica.submit(request("r", PROMPT))
    replica.run()
    assert not any(work.targets for plan in replica.plans for work in plan.work)


@pytest.mark.parametrize("budget", [2, 3, 5])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("lost_after", [3, 7, 11, 12, 14])
@pytest.mark.parametrize("neighbours", [0, 1])
def test_a_preemption_scores_nothing_twice_and_nothing_never(
    budget: int, caching: bool, lost_after: int, neighbours: int
) -> None:
    """A request of a lower rank takes all the blocks once `lost_after` tokens are computed.

    A neighbour that decodes at first makes the chunks before and after the preemption differ.
    """
    tight = limits(
        num_blocks=5,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        block_manager="v2",
        scheduling_policy="priority",
    )
    replica = Replica(tight, watermark=0.0)
    scores = request("scores", PROMPT, prompt_logprobs=1, max_tokens=5, priority=5)
    replica.submit(*[request(f"neighbour{i}", [6], max_tokens=3) for i in range(neighbours)], scores)
    while replica.scheduler.roster.requests["scores"][0].computed < lost_after:
        replica.step()
    replica.submit(request("urgent", [7] * 13, max_tokens=2, priority=0))
    replica.run()
    assert [event.request_id for event in replica.preemptions()] == ["scores"]
    due = alone(scores, limits())
    assert replica.outcomes["scores"].scored == due.scored
    assert replica.outcomes["scores"].tokens == due.tokens


def test_scores_of_a_hit_prefix_are_computed_not_guessed() -> None:
    replica = Replica(limits())
    for name in ("first", "second"):
        replica.submit(request(name, PROMPT, prompt_logprobs=1, max_tokens=3))
        replica.run()
    assert replica.outcomes["first"].scored == replica.outcomes["second"].scored
    assert replica.outcomes["second"].cached_tokens == 0
