"""Beam search in the engine: one prefill, beams in step with each other, and the same beams whatever comes between."""

import pytest

from octavo.core.events import Admitted, Finished, Generated, Refused
from octavo.core.request import ChoiceState
from octavo.core.types import FinishReason
from tests.core.replica import Outcome, Replica, alone, limits, request


def beams(name: str = "b", prompt: tuple[int, ...] | list[int] = (1, 2, 3, 4, 5, 6), n: int = 3, **params):
    return request(name, prompt, n=n, use_beam_search=True, **{"max_tokens": 6, **params})


def ids(outcome: Outcome) -> list[list[int]]:
    return [outcome.ids(choice) for choice in sorted(outcome.finished)]


def logprobs(outcome: Outcome) -> list[float]:
    return [sum(token.logprob or 0 for token in outcome.tokens[choice]) for choice in sorted(outcome.finished)]


ROOMY = limits(num_blocks=60)


def test_the_prompt_is_computed_once_and_each_round_is_one_token_a_beam() -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=3))
    first = replica.step()
    assert [(len(work.tokens), len(work.samples)) for work in first.work] == [(6, 1)]
    for position in range(6, 11):
        plan = replica.step()
        assert [(work.start, len(work.tokens), len(work.samples)) for work in plan.work] == [(position, 1, 1)] * 3
        assert len({work.block_ids[:1] for work in plan.work}) == 1, "the full blocks of the prompt are shared"
        assert len({work.block_ids[position // 4] for work in plan.work}) == 3
        assert len(plan.copies) <= 2, "at most all but one copy a tail"
    assert not replica.scheduler.has_work
    outcome = replica.outcomes["b"]
    assert outcome.reasons() == [FinishReason.LENGTH] * 3
    assert len({tuple(answer) for answer in ids(outcome)}) == 3
    assert logprobs(outcome) == sorted(logprobs(outcome), reverse=True)


def test_they_come_all_at_once_and_the_best_first() -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=2, best_of=4))
    replica.run()
    events = [event for event in replica.events if isinstance(event, Generated | Finished)]
    assert [(type(event).__name__, event.choice) for event in events] == [
        ("Generated", 0),
        ("Finished", 0),
        ("Generated", 1),
        ("Finished", 1),
    ]
    assert ids(replica.outcomes["b"]) == ids(alone(beams(n=4), ROOMY))[:2], "the width decides, n only how many come"


@pytest.mark.parametrize("eos", [(), (3,)])
@pytest.mark.parametrize("min_tokens", [0, 4])
def test_one_beam_is_greedy(eos: tuple[int, ...], min_tokens: int) -> None:
    few = limits(eos_token_ids=eos)
    for start in range(8):
        greedy = alone(request("g", [start], max_tokens=8, min_tokens=min_tokens), few)
        one = alone(beams(prompt=[start], n=1, max_tokens=8, min_tokens=min_tokens), few)
        assert ids(one) == ids(greedy) and one.reasons() == greedy.reasons()


def test_beams_end_with_stop_tokens_but_not_too_early_and_not_where_these_are_ignored() -> None:
    stopping = limits(num_blocks=60, eos_token_ids=(2,))
    ended = alone(beams(max_tokens=12), stopping)
    stopped = [choice for choice, finished in ended.finished.items() if finished.stop_token == 2]
    assert stopped and all(ended.ids(choice).index(2) == len(ended.ids(choice)) - 1 for choice in stopped)
    later = alone(beams(max_tokens=12, min_tokens=5), stopping)
    assert all(2 not in answer[:5] for answer in ids(later))
    ignored = alone(beams(max_tokens=12, ignore_eos=True), stopping)
    assert ignored.reasons() == [FinishReason.LENGTH] * 3
    assert ids(alone(beams(max_tokens=12, ignore_eos=True, stop_token_ids=[2]), stopping)) == ids(ended)


def test_tokens_carry_their_logprobs_and_just_the_alternatives_that_were_asked_for() -> None:
    for asked in (None, 0, 2, 7):
        outcome = alone(beams(logprobs=asked), ROOMY)
        tokens = [token for choice in outcome.tokens.values() for token in choice]
        assert {len(token.alternatives) for token in tokens} == {asked or 0}
        assert all(token.logprob is not None and token.rank is not None for token in tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 2},
        {"long_prefill_token_threshold": 1},
        {"block_size": 1, "num_blocks": 60},
        {"enable_prefix_caching": False},
        {"num_blocks": 10},
        {"num_blocks": 10, "enable_prefix_caching": False, "max_num_batched_tokens": 2},
    ],
    ids=str,
)
def test_no_limit_changes_the_beams(changes: dict) -> None:
    """A budget below the width makes several steps of a round; so does a pool that is just large enough."""
    one = beams(n=2, best_of=4, prompt_logprobs=1, logprobs=1)
    due, got = alone(one, ROOMY), alone(one, limits(**changes))
    assert got.refused is None
    assert got.tokens == due.tokens and got.scored == due.scored


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("victim", ["least_work_lost", "latest"])
def test_beams_that_fight_for_blocks_all_find_what_they_find_alone(cached: bool, victim: str) -> None:
    tight = limits(num_blocks=10, max_num_seqs=9, enable_prefix_caching=cached)
    asked = [beams(f"b{i}", [i, *range(5)], n=3, max_tokens=9) for i in range(3)]
    replica = Replica(tight, victim=victim)
    replica.submit(*asked, request("greedy", [7] * 5, max_tokens=12))
    replica.run(2000)
    assert replica.preemptions()
    for one in asked:
        assert replica.outcomes[one.request_id].tokens == alone(one, tight, victim=victim).tokens


def test_a_beam_that_waits_gives_its_blocks_to_those_it_waits_for() -> None:
    """Nothing is shared where nothing is cached: a preempted beam comes back with a prompt of its own."""
    tight = limits(num_blocks=5, block_size=4, enable_prefix_caching=False, scheduling_policy="priority")
    replica = Replica(tight)
    replica.submit(beams(prompt=range(8), n=2, max_tokens=5))
    replica.step()
    replica.submit(request("urgent", [1] * 13, priority=-1, max_tokens=2))
    replica.run()
    parked = [event for event in replica.preemptions() if "it can wait without" in event.reason]
    assert parked and replica.outcomes["b"].tokens == alone(beams(prompt=range(8), n=2, max_tokens=5), ROOMY).tokens


def test_a_preempted_beam_computes_again_and_the_others_wait_for_it() -> None:
    replica = Replica(limits(num_blocks=60, max_num_seqs=3, scheduling_policy="priority"))
    replica.submit(beams(n=3, max_tokens=8))
    replica.step()
    replica.submit(request("urgent", [5, 6], priority=-1, max_tokens=3))
    plan = replica.step()
    assert [(work.request_id, work.choice) for work in plan.work] == [("b", 0), ("b", 1), ("urgent", 0)]
    states = [choice.state for choice in replica.scheduler.roster.requests["b"]]
    assert states == [ChoiceState.RUNNING, ChoiceState.RUNNING, ChoiceState.PREEMPTED]
    assert [work.request_id for work in replica.step().work] == ["urgent"]
    replica.run()
    assert replica.outcomes["b"].tokens == alone(beams(n=3, max_tokens=8), ROOMY).tokens
    resumed = [event for event in replica.events if isinstance(event, Admitted) and event.resumed]
    assert [event.request_id for event in resumed] == ["b"]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelling_ends_the_search_and_frees_its_blocks(steps: int) -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=2, best_of=4))
    for _ in range(steps):
        replica.step()
    plan = replica.plan()
    replica.cancel("b")
    assert replica.outcomes["b"].reasons() == [FinishReason.ABORT] * 2
    assert replica.scheduler.load().blocks_leased == 0
    replica.commit(plan)
    assert not replica.scheduler.has_work and not replica.outcomes["b"].tokens


def test_a_result_can_be_cancelled_alone_and_the_others_are_the_same() -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=3))
    replica.step()
    replica.cancel("b", 1)
    replica.cancel("b", 1)
    replica.cancel("b", 7)
    replica.run()
    outcome, due = replica.outcomes["b"], alone(beams(n=3), ROOMY)
    assert [finished.reason for finished in outcome.finished.values()].count(FinishReason.ABORT) == 1
    assert outcome.finished[1].reason is FinishReason.ABORT and not outcome.ids(1)
    assert [outcome.ids(0), outcome.ids(2)] == [due.ids(0), due.ids(2)]


def test_the_search_is_over_when_nobody_waits_for_a_result() -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=2, best_of=4))
    replica.step()
    replica.cancel("b", 0)
    replica.cancel("b", 1)
    assert not replica.scheduler.has_work and replica.scheduler.load().blocks_leased == 0
    assert replica.outcomes["b"].reasons() == [FinishReason.ABORT] * 2


def test_a_failed_step_ends_each_result_once() -> None:
    replica = Replica(ROOMY)
    replica.submit(beams(n=2, best_of=3))
    replica.step()
    replica.fail(replica.plan())
    assert replica.outcomes["b"].reasons() == [FinishReason.ERROR] * 2
    assert not replica.scheduler.has_work and replica.scheduler.load().blocks_leased == 0


def test_the_prompt_is_hit_like_any_other() -> None:
    replica = Replica(ROOMY)
    prompt = list(range(8)) * 2
    replica.submit(beams("first", prompt))
    replica.run()
    replica.submit(beams("second", prompt))
    replica.run()
    assert replica.outcomes["second"].cached_tokens == 15
    assert replica.outcomes["second"].tokens == replica.outcomes["first"].tokens


def refusal(one, **changes) -> Refused:
    outcome = alone(one, limits(**changes))
    assert outcome.refused is not None
    return outcome.refused


def test_what_can_never_be_served_is_refused_with_the_arithmetic() -> None:
    wide = refusal(beams(n=1, best_of=5), max_num_seqs=4)
    assert wide.code == "too_many_choices" and "best_of is 5" in wide.message and "--max-num-seqs" in wide.message
    large = refusal(beams(n=1, best_of=4, max_tokens=9), num_blocks=12)
    assert large.code == "pool_too_small" and "4 x 9" in large.message and "13 KV blocks" in large.message
    few_ids = refusal(beams(n=7, stop_token_ids=[0, 1]))
    assert few_ids.code == "too_many_choices" and "9 most likely tokens" in few_ids.message
    assert "at most 8" in few_ids.message
    assert alone(beams(n=6, stop_token_ids=[0, 1]), ROOMY).refused is None
    assert refusal(beams(n=127, stop_token_ids=[0, 1]), vocab_size=999, max_num_seqs=128).code == "too_many_choices"


def test_without_a_limit_beams_may_fill_the_pool() -> None:
    outcome = alone(beams(n=2, max_tokens=None), limits(num_blocks=9, max_model_len=64))
    assert [len(answer) for answer in ids(outcome)] == [15, 15]


def test_best_of_samples_come_all_with_logprobs_to_choose_by() -> None:
    """Which are the best is decided where their text is: a stop string may end one."""
    outcome = alone(request("s", [1, 2], n=2, best_of=4, temperature=1.0), ROOMY)
    assert len(outcome.finished) == 4
    assert all(token.logprob is not None for choice in outcome.tokens.values() for token in choice)
