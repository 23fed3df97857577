"""The life cycle of a choice: the table is complete, and what is not in it is an error."""

from itertools import product

import pytest

from octavo.core.request import TRANSITIONS, ChoiceState, IllegalTransition, Move, after

ILLEGAL = [pair for pair in product(ChoiceState, Move) if pair not in TRANSITIONS]


@pytest.mark.parametrize(("state", "move"), ILLEGAL)
def test_a_move_that_is_not_in_the_table_is_an_error(state: ChoiceState, move: Move) -> None:
    with pytest.raises(IllegalTransition, match=f"a {state} choice cannot {move}"):
        after(state, move)


def test_nothing_leaves_finished() -> None:
    assert not [move for state, move in TRANSITIONS if state is ChoiceState.FINISHED]


@pytest.mark.parametrize("state", [state for state in ChoiceState if state is not ChoiceState.FINISHED])
def test_every_live_state_can_finish_and_can_be_reached(state: ChoiceState) -> None:
    assert after(state, Move.FINISH) is ChoiceState.FINISHED
    assert state in {ChoiceState.HELD, ChoiceState.WAITING, ChoiceState.FOLLOWING, *TRANSITIONS.values()}


def test_only_running_choices_can_lose_a_lease() -> None:
    assert [state for state, move in TRANSITIONS if move is Move.PREEMPT] == [ChoiceState.RUNNING]
