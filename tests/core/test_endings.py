"""How a choice ends: tokens, lengths, minimum lengths, cancellation in every state, failed works and failed steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import Finished, Preempted, Stepped
from octavo.core.plan import StepResult, WorkResult
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, request

GREEDY = alone(request("r", [1, 2, 3], max_tokens=12), limits()).ids()
"""What the ledger answers to this prompt."""


def position_of_first(token: int) -> int:
    return GREEDY.index(token)


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens(max_tokens: int) -> None:
    outcome = alone(request("r", [1, 2, 3], max_tokens=max_tokens), limits())
    assert outcome.ids() == GREEDY[:max_tokens]
    assert outcome.finished[0] == Finished("r", 0, outcome.finished[0].time_s, FinishReason.LENGTH)


def test_the_context_limit_ends_a_choice_and_its_last_token_counts() -> None:
    outcome = alone(request("r", [1, 2, 3], max_tokens=None), limits(max_model_len=9))
    assert outcome.ids() == GREEDY[:6] and outcome.reasons() == [FinishReason.LENGTH]


@pytest.mark.parametrize("token", sorted(set(GREEDY)))
@pytest.mark.parametrize("by", ["eos", "stop_token_ids"])
def test_a_stop_token_ends_a_choice_and_is_reported(token: int, by: str) -> None:
    eos = (token,) if by == "eos" else ()
    params = {} if by == "eos" else {"stop_token_ids": (token,)}
    outcome = alone(request("r", [1, 2, 3], max_tokens=12, **params), limits(eos_token_ids=eos))
    assert outcome.ids() == GREEDY[: position_of_first(token) + 1]
    assert (outcome.finished[0].reason, outcome.finished[0].stop_token) == (FinishReason.STOP, token)


def test_ignore_eos_ignores_eos_and_nothing_else() -> None:
    eos, stop = GREEDY[0], next(token for token in GREEDY if token != GREEDY[0])
    outcome = alone(
        request("r", [1, 2, 3], max_tokens=12, ignore_eos=True, stop_token_ids=(stop,)), limits(eos_token_ids=(eos,))
    )
    assert outcome.finished[0].stop_token == stop and outcome.ids()[0] == eos


def test_a_stop_token_at_the_last_position_is_a_stop() -> None:
    outcome = alone(request("r", [1, 2, 3], max_tokens=1), limits(eos_token_ids=(GREEDY[0],)))
    assert outcome.reasons() == [FinishReason.STOP]


@pytest.mark.parametrize("min_tokens", [0, 1, 4, 12])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_tokens_are_banned_until_min_tokens(min_tokens: int, ignore_eos: bool) -> None:
    stops = tuple(range(7))
    replica = Replica(limits(eos_token_ids=(7,)))
    params = {"min_tokens": min_tokens, "stop_token_ids": stops[:5], "ignore_eos": ignore_eos}
    replica.submit(request("r", [1, 2, 3], max_tokens=12, **params))
    replica.run()
    samples = [work.samples[0] for plan in replica.plans for work in plan.work]
    for index, sample in enumerate(samples):
        due = sorted({*stops[:5], *(() if ignore_eos else (7,))}) if index < min_tokens else []
        assert (sample.index, list(sample.banned)) == (index, due)
    tokens = replica.outcomes["r"].ids()
    assert len(tokens) > min_tokens or len(tokens) == 12
    assert not set(tokens[:min_tokens]) & set(stops[:5])


bad_words = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=6).map(tuple)


@given(bad_words, st.integers(0, 3))
def test_bad_words_are_never_generated_whole(words: tuple[tuple[int, ...], ...], min_tokens: int) -> None:
    """Their last token is banned just where the others came before it, of the answer alone; nothing else is."""
    replica = Replica(limits(eos_token_ids=(0,)), alphabet=4)
    replica.submit(request("r", [1, 2, 1, 2], max_tokens=16, min_tokens=min_tokens, bad_words_token_ids=words))
    replica.run()
    outcome = replica.outcomes["r"]
    tokens = outcome.ids()
    for index, sample in enumerate(work.samples[0] for plan in replica.plans for work in plan.work):
        due = {word[-1] for word in words if (*tokens[:index], word[-1])[-len(word) :] == word}
        assert set(sample.banned) == due | ({0} if index < min_tokens else set())
    assert not [word for word in words for end in range(len(tokens) + 1) if tuple(tokens[:end][-len(word) :]) == word]
    assert outcome.reasons() in ([FinishReason.LENGTH], [FinishReason.STOP], [FinishReason.ERROR])


def cancelled_in(state: str) -> Replica:
    replica = Replica(limits(num_blocks=5, max_num_batched_tokens=6), watermark=0.0)
    if state == "queued":
        replica.submit(request("r", [1] * 5))
    elif state == "half computed":
        replica.submit(request("r", [1] * 9))
        replica.step()
    elif state == "decoding":
        replica.submit(request("r", [1] * 5))
        replica.step()
        replica.step()
    elif state == "in flight":
        replica.submit(request("r", [1] * 5))
        replica.plan()
    elif state == "preempted":
        replica.submit(request("old", [2] * 5, max_tokens=12), request("r", [1] * 5, max_tokens=12))
        while not replica.preemptions():
            replica.step()
    replica.cancel("r")
    return replica


@pytest.mark.parametrize("state", ["queued", "half computed", "decoding", "in flight", "preempted"])
def test_cancel_in_every_state_frees_everything_at_once_and_stays_silent_after(state: str) -> None:
    replica = cancelled_in(state)
    assert replica.outcomes["r"].reasons() == [FinishReason.ABORT]
    assert "r" not in replica.scheduler.roster.requests
    if state != "preempted":
        assert replica.scheduler.load().blocks_leased == 0
    num_tokens = len(replica.outcomes["r"].ids())
    if state == "in flight":
        replica.commit(replica.plans[-1])
    replica.cancel("r")
    replica.run()
    assert len(replica.outcomes["r"].ids()) == num_tokens
    assert replica.scheduler.load().blocks_leased == 0


def test_blocks_of_a_cancelled_request_stay_cached() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1] * 9))
    replica.step()
    replica.cancel("r")
    assert replica.scheduler.load().blocks_cached == 2
    replica.submit(request("again", [1] * 9))
    replica.run()
    assert replica.outcomes["again"].cached_tokens == 8


def test_an_id_cancelled_in_flight_may_be_submitted_again_before_the_commit() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1, 2, 3], max_tokens=3))
    plan = replica.plan()
    replica.cancel("r")
    replica.outcomes.pop("r")
    replica.submit(request("r", [1, 2, 3], max_tokens=3))
    replica.commit(plan)
    assert replica.outcomes["r"].ids() == [], "the old one's token is not the new one's"
    replica.run()
    assert replica.outcomes["r"].ids() == GREEDY[:3]


def test_an_unknown_id_is_ignored() -> None:
    assert Replica(limits()).scheduler.cancel("nobody", 0.0) == ()


def test_a_failed_step_ends_its_requests_only_and_publishes_nothing() -> None:
    replica = Replica(limits(num_blocks=12, max_num_seqs=2))
    replica.submit(request("a", [1] * 8), request("b", [2] * 9, n=1), request("queued", [3] * 3))
    plan = replica.plan()
    replica.ledger.execute(plan)
    replica.fail(plan)
    for name in ("a", "b"):
        (finished,) = replica.outcomes[name].finished.values()
        assert (finished.reason, finished.message) == (FinishReason.ERROR, "the step failed")
    assert isinstance(replica.events[-1], Stepped) and replica.events[-1].num_tokens == 0
    load = replica.scheduler.load()
    assert (load.blocks_leased, load.blocks_cached, len(replica.scheduler.cache.index)) == (0, 0, 0)
    replica.run()
    assert replica.outcomes["queued"].reasons() == [FinishReason.LENGTH]


def test_a_failed_step_ends_all_choices_of_its_requests() -> None:
    replica = Replica(limits(num_blocks=9, max_num_batched_tokens=4), watermark=0.0)
    replica.submit(request("r", [1] * 4, n=3, max_tokens=9, temperature=1.0))
    replica.step()
    plan = replica.plan()
    replica.fail(plan)
    assert replica.outcomes["r"].reasons() == [FinishReason.ERROR] * 3


def test_what_an_earlier_step_published_outlives_a_failed_one() -> None:
    replica = Replica(limits(max_num_batched_tokens=4))
    replica.submit(request("r", [1] * 9))
    replica.step()
    replica.fail(replica.plan())
    assert len(replica.scheduler.cache.index) == 1


@pytest.mark.parametrize("n", [1, 3])
def test_a_failed_work_ends_its_request_only(n: int) -> None:
    replica = Replica(limits(num_blocks=30))
    replica.submit(request("a", [1, 2, 3], max_tokens=5), request("b", [4] * 3, n=n, max_tokens=5, temperature=1.0))
    replica.step()
    plan = replica.plan()
    results = list(replica.ledger.execute(plan).results)
    results[-1] = WorkResult("b", n - 1, error="logits are not finite")
    replica.commit_result(plan, StepResult(plan.step, tuple(results)))
    assert replica.outcomes["b"].reasons() == [FinishReason.ERROR] * n
    assert replica.outcomes["b"].finished[0].message == "logits are not finite"
    replica.run()
    assert replica.outcomes["a"].ids() == GREEDY[:5]


def test_events_come_once_and_in_order_even_when_a_cancel_comes_between_plan_and_commit() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1, 2, 3]))
    plan = replica.plan()
    replica.cancel("r")
    assert [type(event).__name__ for event in replica.events] == ["Queued", "Admitted", "Finished"]
    replica.commit(plan)
    assert [type(event).__name__ for event in replica.events[3:]] == ["Stepped"]


def test_nothing_of_a_preempted_request_is_lost_when_it_is_cancelled_and_asked_again() -> None:
    replica = cancelled_in("preempted")
    assert any(isinstance(event, Preempted) for event in replica.events)
    replica.run()
    replica.submit(request("again", [1] * 5, max_tokens=12))
    replica.run()
    due = alone(request("r", [1] * 5, max_tokens=12), limits()).ids()
    assert replica.outcomes["again"].ids() == due
    assert replica.outcomes["r"].ids() == due[: len(replica.outcomes["r"].ids())]
