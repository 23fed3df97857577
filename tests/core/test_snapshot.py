"""A snapshot is what a replica looks like between two steps, whatever it is doing, and taking it changes nothing."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.audit import audit
from octavo.core.request import ChoiceState
from octavo.core.snapshot import LEGEND, LiveRequest, snapshot
from tests.core.replica import Replica, limits, request


def busy() -> Replica:
    replica = Replica(limits(num_blocks=20, max_num_batched_tokens=8, max_num_seqs=5))
    replica.submit(request("done", [1] * 9, max_tokens=1))
    replica.run()
    replica.pin("p", [1] * 8)
    replica.submit(request("forked", [2] * 6, n=2, temperature=1.0))
    replica.submit(request("beams", [5], n=2, use_beam_search=True))
    replica.submit(request("long", [3] * 20, tenant="red"), request("last", [4]))
    replica.step()
    return replica


def rows(replica: Replica, most: int = 99) -> dict[str, LiveRequest]:
    return {one.request_id: one for one in snapshot(replica.scheduler, most, 99, replica.now).requests}


def test_each_live_request_is_where_its_foremost_choice_is() -> None:
    found = rows(busy())
    assert {name: one.state for name, one in found.items()} == {
        "forked": ChoiceState.RUNNING,
        "beams": ChoiceState.RUNNING,
        "long": ChoiceState.RUNNING,
        "last": ChoiceState.WAITING,
    }
    assert (found["forked"].num_choices, found["forked"].num_generated, found["forked"].prompt_len) == (2, 2, 6)
    assert found["forked"].num_blocks == 2, "what both hold counts once"
    assert found["long"].tenant == "red" and 0 < found["long"].num_computed < 20
    assert found["last"].lacks and found["last"].waited and not found["long"].lacks


def test_blocks_are_shown_one_by_one_and_add_up() -> None:
    replica = busy()
    taken = snapshot(replica.scheduler, 9, 99, replica.now)
    counts = Counter(taken.cells)
    load = replica.scheduler.load()
    assert taken.blocks_per_cell == 1 and len(taken.cells) == 20
    assert counts["."] == load.blocks_blank and counts["c"] == load.blocks_cached and counts["P"] == load.blocks_pinned
    assert counts["L"] + counts["S"] == load.blocks_leased and counts["S"] > 0
    assert set(counts) <= LEGEND.keys()


@given(most=st.integers(1, 30))
def test_a_map_is_never_larger_than_asked_for(most: int) -> None:
    replica = busy()
    taken = snapshot(replica.scheduler, 9, most, replica.now)
    assert len(taken.cells) <= most and (len(taken.cells) - 1) * taken.blocks_per_cell < 20
    assert len(taken.cells) * taken.blocks_per_cell >= 20


@pytest.mark.parametrize("most", [0, 1, 3])
def test_of_many_requests_those_that_run_are_shown_first(most: int) -> None:
    replica = busy()
    taken = snapshot(replica.scheduler, most, 9, replica.now)
    assert len(taken.requests) == most and taken.num_requests == 4
    assert all(one.state is ChoiceState.RUNNING for one in taken.requests)


def test_taking_one_changes_nothing() -> None:
    replica, other = busy(), busy()
    for _ in range(50):
        if not replica.scheduler.has_work:
            break
        snapshot(replica.scheduler, 99, 7, replica.now)
        assert audit(replica.scheduler) == ()
        assert replica.step() == other.step()
    assert replica.events == other.events
