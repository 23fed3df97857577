"""Which layers share a block table: by example, and laws for every mixture of windows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.models.layer_groups import LayerPlace, layer_groups
from octavo.models.spec import ModelSpec
from tests.tiny import make_tiny

TINY = make_tiny().spec


def with_windows(windows: tuple[int | None, ...]) -> ModelSpec:
    return replace(TINY, num_layers=len(windows), windows=windows)


def test_without_windows_there_is_one_group_of_all_layers() -> None:
    groups = layer_groups(replace(TINY, num_layers=5))
    assert (groups.windows, groups.slots, groups.num_spare) == ((None,), 5, 0)
    assert groups.places == tuple(LayerPlace(0, layer) for layer in range(5))


@pytest.mark.parametrize(
    ("num_full", "num_sliding", "windows", "slots", "num_spare"),
    [
        (3, 15, (None, *[8] * 5), 3, 0),
        (1, 1, (None, 8), 1, 0),
        (15, 16, (None, 8), 16, 1),
        (4, 22, (None, *[8] * 6), 4, 2),
        (0, 7, (8,), 7, 0),
    ],
)
def test_groups_have_as_many_layers_each_and_few_to_spare(
    num_full: int, num_sliding: int, windows: tuple[int | None, ...], slots: int, num_spare: int
) -> None:
    groups = layer_groups(with_windows((8,) * num_sliding + (None,) * num_full))
    assert (groups.windows, groups.slots, groups.num_spare) == (windows, slots, num_spare)


@given(st.lists(st.sampled_from([None, 4, 8]), min_size=1, max_size=30).map(tuple))
def test_every_layer_has_a_place_of_its_own_in_a_group_of_its_window(windows: tuple[int | None, ...]) -> None:
    spec = with_windows(windows)
    groups = layer_groups(spec)
    assert len(set(groups.places)) == len(windows)
    for layer, place in enumerate(groups.places):
        assert groups.windows[place.group] == spec.window(layer)
        assert 0 <= place.slot < groups.slots
    assert {place.group for place in groups.places} == set(range(len(groups.windows)))
    assert 0 <= groups.num_spare < groups.slots * len(set(windows))
