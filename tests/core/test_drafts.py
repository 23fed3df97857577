"""Guesses ahead: where they come from, when they are left, and that tokens, blocks and ends are those without them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.drafts import MOST_PAUSES, Hopes, NgramIndex, Pace, num_foreseen
from octavo.core.events import Drafted, Generated
from octavo.core.types import FinishReason, Speculation
from tests.core.replica import Replica, limits, request

GUESSES = Speculation(num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=1)


def naive(tokens: list[int], shortest: int, longest: int, most: int) -> tuple[int, ...]:
    """What followed the longest ending that occurred before, where it occurred last."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if n < len(tokens) and tokens[end - n : end] == tokens[-n:]:
                return tuple(tokens[end : end + most])
    return ()


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    most=st.integers(1, 6),
    cuts=st.lists(st.integers(1, 40), max_size=5),
)
def test_a_proposal_is_what_followed_the_longest_ending_last_time(tokens, shortest, more, most, cuts):
    index = NgramIndex(shortest, shortest + more)
    for cut in sorted(cut for cut in cuts if cut < len(tokens)):
        assert index.propose(tokens[:cut], most) == naive(tokens[:cut], shortest, shortest + more, most)
    assert index.propose(tokens, most) == naive(tokens, shortest, shortest + more, most)


@pytest.mark.parametrize(
    ("draft", "drawn", "right"),
    [((), (5,), 0), ((5,), (5, 6), 1), ((5, 6), (5, 7, 8), 1), ((4, 6), (5, 6, 7), 0), ((5, 6), (5, 6, 9), 2)],
)
def test_guesses_are_right_up_to_the_first_that_is_not(draft, drawn, right):
    assert num_foreseen(draft, drawn) == right


def test_a_choice_whose_guesses_are_wrong_pauses_longer_each_time_and_hopes_again_after_one_success():
    hopes = Hopes(NgramIndex(1, 1))
    tokens, pauses = [1, 2, 1], []
    for _ in range(9):
        hopes.learn(0)
        count = 0
        while not hopes.draft(tokens, 4):
            count += 1
        pauses.append(count)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, MOST_PAUSES, MOST_PAUSES]
    hopes.learn(1)
    hopes.learn(0)
    assert hopes.pause == 1


@pytest.mark.parametrize(("with_drafts_s", "expected"), [(0.5, True), (2.0, False)])
def test_the_faster_way_is_found_kept_and_rechecked(with_drafts_s, expected):
    pace, ways = Pace(), []
    for _ in range(2000):
        ways.append(pace.drafts_pay())
        pace.learn(ways[-1], with_drafts_s if ways[-1] else 1.0, 1)
    assert set(ways[:8]) == {True, False}
    assert ways[100:250].count(expected) == 150
    assert 0.95 < ways.count(expected) / len(ways) < 1


def test_the_pace_follows_a_change():
    pace = Pace()
    for count in range(3000):
        drafted = pace.drafts_pay()
        pace.learn(drafted, 1.0 if not drafted else 0.5 if count < 1000 else 3.0, 1)
    assert not pace.drafts_pay()


def always() -> Pace:
    """Guesses cost nothing."""
    pace = Pace()
    for drafted in (False, True) * 4:
        pace.learn(drafted, 1e-9 if drafted else 1e9, 1)
    return pace


def eager(speculation: Speculation = GUESSES, **changes) -> Replica:
    """A replica that guesses whenever it can, on a text of two tokens."""
    replica = Replica(limits(speculation=speculation, **changes), alphabet=2)
    replica.scheduler._drafting._pace = always
    return replica


LONG = {"max_tokens": 40, "logprobs": 1}


def test_guesses_change_nothing_but_the_number_of_steps():
    one = request("r", [1, 0, 1, 1, 0, 1, 0, 1], **LONG)
    plain = Replica(limits(), alphabet=2)
    plain.submit(one)
    num_plain = plain.run()
    replica = eager()
    replica.submit(one)
    num_steps = replica.run()
    assert replica.outcomes["r"].tokens == plain.outcomes["r"].tokens
    drafts = [event for event in replica.events if isinstance(event, Drafted)]
    saved = sum(event.num_accepted for event in drafts)
    assert saved > 0 and num_steps == num_plain - saved
    assert all(0 <= event.num_accepted <= event.num_drafted <= 4 for event in drafts)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"frequency_penalty": 0.5},
        {"min_tokens": 9},
        {"stop_token_ids": (0,)},
        {"bad_words_token_ids": ((0, 0, 1), (1, 1, 1, 1))},
        {"n": 3},
    ],
)
@pytest.mark.parametrize(
    "pool", [{}, {"num_blocks": 9}, {"max_num_batched_tokens": 3}, {"windows": (None, 3), "num_blocks": 24}]
)
def test_every_kind_of_draw_is_as_without(temperature, changes, pool):
    base = {"temperature": temperature, "max_tokens": 20, "logprobs": 1, "ignore_eos": False, **changes}
    if base.get("n") == 3 and pool.get("num_blocks") == 9:
        base["max_tokens"] = 8
    one = request("r", [1, 0, 1, 1, 0, 1, 0, 1], **base)
    two = request("s", [1, 0, 1, 1, 0, 1], **{**base, "n": 1})
    replica = eager(**pool)
    replica.submit(one, two)
    replica.run()
    for each in (one, two):
        expected = _alone(each, pool)
        assert replica.outcomes[each.request_id].tokens == expected.tokens
        assert replica.outcomes[each.request_id].reasons() == expected.reasons()


def _alone(one, pool):
    replica = Replica(limits(**pool), alphabet=2)
    replica.submit(one)
    replica.run()
    return replica.outcomes[one.request_id]


def test_a_stop_token_among_the_guesses_ends_the_answer_there():
    one = request("r", [1, 0, 1, 1, 0, 1, 0, 1], max_tokens=40)
    told = _alone(one, {}).ids()
    stop = told[12]
    replica = eager()
    stopping = replace(one, params=replace(one.params, stop_token_ids=(stop,), min_tokens=10))
    replica.submit(stopping)
    replica.run()
    assert replica.outcomes["r"].ids() == _alone(stopping, {}).ids()
    assert replica.outcomes["r"].finished[0].reason is FinishReason.STOP


def test_one_step_is_one_event():
    replica = eager()
    replica.submit(request("r", [1, 0, 1, 1, 0, 1, 0, 1], **LONG))
    while replica.scheduler.has_work:
        before = len(replica.events)
        replica.step()
        assert sum(isinstance(event, Generated) for event in replica.events[before:]) <= 1


def test_a_cancel_while_guesses_are_checked_frees_all():
    replica = eager()
    replica.submit(request("r", [1, 0, 1, 1, 0, 1, 0, 1], **LONG))
    while True:
        plan = replica.plan()
        if any(work.num_drafted for work in plan.work):
            break
        replica.commit(plan)
    replica.cancel("r")
    replica.commit(plan)
    assert replica.scheduler.load().blocks_leased == 0


def test_nobody_loses_blocks_to_guesses():
    replica = eager(num_blocks=10)
    for name in "abc":
        replica.submit(request(name, [1, 0, 1, 1], max_tokens=9))
    replica.run()
    assert not replica.preemptions()


def test_a_draw_that_fails_behind_a_wrong_guess_is_none():
    """The step is done again without guesses: its failure, where it is real, comes then."""
    replica = eager()
    replica.submit(request("r", [1, 0, 1, 1, 0, 1, 0, 1], **LONG))
    while True:
        plan = replica.plan()
        result = replica.execute(plan)
        if any(work.num_drafted for work in plan.work):
            break
        replica.commit_result(plan, result)
    failed = result.results[0]._replace(sampled=(), error="no token may be drawn", code="nothing_allowed")
    replica.commit_result(plan, replace(result, results=(failed,)))
    replica.run()
    assert replica.outcomes["r"].tokens == _alone(request("r", [1, 0, 1, 1, 0, 1, 0, 1], **LONG), {}).tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": 65},
        {"num_speculative_tokens": 1, "prompt_lookup_min": 5},
        {"num_speculative_tokens": 1, "prompt_lookup_min": 0},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be from 1 to"):
        Speculation(**wrong)
