"""The law of latency objectives by itself: what follows from which reading."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.schema import SloConfig
from octavo.control.governor import governor_for
from octavo.control.slo import (
    AIM,
    HIGH,
    LOW,
    MOST_CUT,
    RAISE_STEPS,
    REST_S,
    Bounds,
    Objectives,
    Reading,
    State,
    decide,
    rested,
)
from octavo.core.throttle import Throttle
from octavo.core.types import Limits

BOUNDS = Bounds(num_tokens=2048, num_seqs=64, block_size=16)
ITL_S = 0.2
AIMS = Objectives(itl_s=ITL_S)
CALM = Reading(
    num_steps=RAISE_STEPS,
    num_over=0,
    itl_s=ITL_S * (LOW + HIGH) / 2,
    ttft_s=None,
    num_running=8,
    over_tokens=0,
    over_decodes=0,
    full_s=None,
    seqs_bound=False,
)
"""Within the band, and nothing held anybody up."""
LATE = replace(CALM, itl_s=ITL_S * 1.5, num_over=5, over_tokens=1000, over_decodes=8)


def test_without_objectives_there_is_nobody_who_governs() -> None:
    limits = Limits(num_blocks=9, block_size=16, vocab_size=9, max_model_len=9)
    assert governor_for(SloConfig(), limits) is None
    assert governor_for(SloConfig(slo_itl_ms=5.0), limits) and governor_for(SloConfig(slo_ttft_ms=5.0), limits)


def at(num_tokens: int, num_seqs: int = 64, *missed: str) -> State:
    return State(Throttle(num_tokens, num_seqs), frozenset(missed))


def test_within_the_band_nothing_changes() -> None:
    for share in (LOW + 0.01, HIGH - 0.01):
        state, decision = decide(AIMS, BOUNDS, at(500), replace(CALM, itl_s=share * ITL_S, full_s=0.15))
        assert (state, decision.reason) == (at(500), "hold")


def test_a_cut_aims_below_the_objective_in_proportion() -> None:
    state, decision = decide(AIMS, BOUNDS, at(1000), LATE)
    assert decision.reason == "cut_tokens"
    assert state == at(int(1000 * AIM / 1.5))
    assert "p99 itl is 300 ms, the objective 200 ms" in decision.message and "1000 -> 500 tokens" in decision.message


def test_a_cut_begins_at_what_steps_really_had() -> None:
    state, _ = decide(AIMS, BOUNDS, at(2048), replace(LATE, over_tokens=400))
    assert state == at(int(400 * AIM / 1.5))


def test_no_cut_takes_more_than_half() -> None:
    state, _ = decide(AIMS, BOUNDS, at(1000), replace(LATE, itl_s=100.0))
    assert state == at(int(1000 * MOST_CUT))


def test_a_step_or_two_that_were_too_long_are_no_reason() -> None:
    assert decide(AIMS, BOUNDS, at(1000), replace(LATE, num_over=2))[1].reason == "hold"


def test_below_the_decodes_and_a_block_choices_are_cut() -> None:
    floor = 8 + BOUNDS.block_size
    state, decision = decide(AIMS, BOUNDS, at(floor), LATE)
    assert (state, decision.reason) == (at(floor, int(8 * AIM / 1.5)), "cut_seqs")
    state, decision = decide(AIMS, BOUNDS, at(2048), replace(LATE, over_tokens=floor))
    assert (state, decision.reason) == (at(2048, int(8 * AIM / 1.5)), "cut_seqs"), "no step had more"


def test_choices_are_not_cut_again_before_so_many_have_ended() -> None:
    assert decide(AIMS, BOUNDS, at(24, 4), LATE)[1].reason == "hold"
    state, decision = decide(AIMS, BOUNDS, at(20, 4), replace(LATE, num_running=4, over_decodes=4))
    assert (state, decision.reason) == (at(20, 2), "cut_seqs")


def test_what_is_out_of_reach_is_said_once_until_it_is_met_again() -> None:
    alone = replace(LATE, num_running=1, over_decodes=1)
    state, decision = decide(AIMS, BOUNDS, at(17, 1), alone)
    assert (state, decision.reason) == (at(17, 1, "itl"), "itl_out_of_reach")
    state, decision = decide(AIMS, BOUNDS, state, alone)
    assert (state, decision.reason) == (at(17, 1, "itl"), "hold")
    state, decision = decide(AIMS, BOUNDS, state, replace(CALM, num_running=1))
    assert state == at(17, 1)
    assert decide(AIMS, BOUNDS, state, alone)[1].reason == "itl_out_of_reach"


@pytest.mark.parametrize("tokens", [40, 500, 2000])
def test_a_raise_is_a_step_and_never_beyond_the_aim(tokens: int) -> None:
    easy = replace(CALM, itl_s=0.01, full_s=ITL_S * LOW * 0.99)
    state, decision = decide(AIMS, BOUNDS, at(tokens), easy)
    assert decision.reason == "raise_tokens"
    more = state.throttle.num_tokens - tokens
    assert 0 < more <= BOUNDS.num_tokens // 32
    assert (tokens + more) / tokens <= AIM / (LOW * 0.99) or more == 1


def test_only_what_held_somebody_up_is_raised_and_choices_first() -> None:
    easy = replace(CALM, itl_s=0.01)
    assert decide(AIMS, BOUNDS, at(100, 4), easy)[1].reason == "hold"
    assert decide(AIMS, BOUNDS, at(100, 4), replace(easy, full_s=0.01))[1].reason == "raise_tokens"
    state, decision = decide(AIMS, BOUNDS, at(100, 4), replace(easy, full_s=0.01, seqs_bound=True))
    assert (state, decision.reason) == (at(100, 8), "raise_seqs")


def test_steps_as_long_as_may_be_must_leave_room_though_they_are_rare() -> None:
    rare = replace(CALM, itl_s=0.01, full_s=ITL_S * 0.8)
    assert decide(AIMS, BOUNDS, at(500), rare)[1].reason == "hold"
    aims = replace(AIMS, ttft_s=1.0)
    assert decide(aims, BOUNDS, at(500), replace(rare, ttft_s=0.9))[1].reason == "hold"
    assert decide(aims, BOUNDS, at(500), replace(rare, ttft_s=1.1))[1].reason == "raise_tokens"


def test_a_raise_waits_for_enough_steps() -> None:
    easy = replace(CALM, itl_s=0.01, full_s=0.01, num_steps=RAISE_STEPS - 1)
    assert decide(AIMS, BOUNDS, at(100), easy)[1].reason == "hold"


def test_late_first_tokens_are_told_once_where_nothing_helps() -> None:
    aims, late = Objectives(ttft_s=1.0), replace(CALM, ttft_s=2.0)
    state, decision = decide(aims, BOUNDS, State(BOUNDS.open), late)
    assert (state.throttle, decision.reason) == (BOUNDS.open, "ttft_out_of_reach")
    state, decision = decide(aims, BOUNDS, state, late)
    assert decision.reason == "hold"
    state, _ = decide(aims, BOUNDS, state, replace(late, ttft_s=0.5))
    assert state == State(BOUNDS.open)


def test_a_rest_takes_back_half_of_the_cut() -> None:
    assert rested(BOUNDS, at(48, 4), REST_S * 0.9) is None
    assert rested(BOUNDS, State(BOUNDS.open), REST_S * 9) is None
    once = rested(BOUNDS, at(48, 4), REST_S)
    assert once is not None and once[0] == at(1048, 34) and once[1].reason == "rested"
    long = rested(BOUNDS, at(48, 4), REST_S * 20)
    assert long is not None and long[0].throttle == BOUNDS.open


seconds = st.none() | st.floats(1e-4, 100)
readings = st.builds(
    Reading,
    num_steps=st.integers(20, 500),
    num_over=st.integers(0, 20),
    itl_s=seconds,
    ttft_s=seconds,
    num_running=st.integers(0, 64),
    over_tokens=st.integers(0, 2048),
    over_decodes=st.integers(0, 64),
    full_s=seconds,
    seqs_bound=st.booleans(),
)


@given(
    st.builds(Objectives, itl_s=seconds, ttft_s=seconds),
    st.lists(readings | st.floats(0, 1000), min_size=1, max_size=30),
)
def test_whatever_is_read_the_throttle_stays_within_its_bounds_and_moves_one_way(
    aims: Objectives, happened: list[Reading | float]
) -> None:
    state = State(BOUNDS.open)
    for each in happened:
        before = state.throttle
        if isinstance(each, Reading):
            state, decision = decide(aims, BOUNDS, state, each)
        elif (change := rested(BOUNDS, state, each)) is not None:
            state, decision = change
        else:
            continue
        tokens, seqs = state.throttle.num_tokens - before.num_tokens, state.throttle.num_seqs - before.num_seqs
        assert 1 <= state.throttle.num_tokens <= 2048 and 1 <= state.throttle.num_seqs <= 64
        way = decision.reason.split("_")[0]
        if way == "rested":
            assert tokens >= 0 and seqs >= 0
        else:
            assert (tokens == 0) or (seqs == 0)
            assert (tokens + seqs < 0) == (way == "cut") and (tokens + seqs > 0) == (way == "raise")
        if aims.itl_s is None:
            assert state.throttle == BOUNDS.open, "without an objective for it nothing is cut"
