"""What counts as life: a loop that turns, and a step that computes, but not for ever."""

import pytest

from octavo.engine.process import Pulse

STEP_S = 100.0


@pytest.fixture
def pulse() -> Pulse:
    """One that has seen its loop turn, at 0."""
    pulse = Pulse(STEP_S)
    assert pulse.alive(1, 0.0, 5.0)
    return pulse


def test_a_loop_that_turns_lives_whatever_it_computes(pulse):
    assert all(pulse.alive(turns, turns * STEP_S * 2, 5.0) for turns in range(2, 10))


def test_a_step_that_computes_lives_until_no_step_takes_so_long(pulse):
    assert [pulse.alive(1, time_s, 5.0 + time_s / 2) for time_s in (1.0, STEP_S, STEP_S + 1)] == [True, True, False]


def test_the_next_step_has_as_long(pulse):
    assert pulse.alive(2, STEP_S, 6.0)
    assert pulse.alive(2, STEP_S * 2, 7.0)


@pytest.mark.parametrize("awake_s", [0.0, 1e-5, 1e-4])
def test_a_step_that_waits_is_dead_from_the_first_tick(pulse, awake_s):
    """A thread that looks now and then whether it may go on takes a little time for that."""
    assert not any(pulse.alive(1, float(tick), 5.0 + awake_s * tick) for tick in range(1, 50))


def test_little_computing_adds_up(pulse):
    """On a machine that is busy with something else."""
    assert sum(pulse.alive(1, float(tick), 5.0 + tick * 0.004) for tick in range(1, 31)) == 10
