"""From a sum of hidden states to a vector: the mean, cut, of length 1, in float32, whoever asks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.pooler import Pooler
from octavo.core.events import Admitted, Embedded, Finished
from octavo.core.parameter import ParameterError
from octavo.core.request import Request
from octavo.core.types import FinishReason, Pooling
from octavo.engine.embedding import EmbeddingGathering, Form, PoolingParams, form_of, vector
from octavo.engine.outputs import GenerationError

SIZE = 5
sums = st.lists(st.floats(-1e30, 1e30), min_size=SIZE, max_size=SIZE)


def embedded(numbers: list[float], count: int = 1) -> Embedded:
    return Embedded("e", 1.0, np.array(numbers, np.float64).tobytes(), count)


def test_it_is_the_mean() -> None:
    assert vector(embedded([3, -6, 0, 1.5, 9], 3), Form(SIZE, unit=False)).tolist() == [1, -2, 0, 0.5, 3]


def test_it_is_cut_and_then_of_length_one() -> None:
    assert vector(embedded([3, 4, 12, 0, 0]), Form(2, unit=True)).tolist() == np.float32([0.6, 0.8]).tolist()


def test_a_vector_of_zeros_has_no_direction() -> None:
    assert vector(embedded([0] * SIZE), Form(SIZE, unit=True)).tolist() == [0.0] * SIZE


@given(sums, st.integers(1, 2**20), st.integers(1, SIZE))
def test_lengths_are_one_and_directions_are_kept(numbers: list[float], count: int, dimensions: int) -> None:
    whole = np.array(numbers[:dimensions]) / count
    found = np.array(vector(embedded(numbers, count), Form(dimensions, unit=True)), np.float64)
    if (size := math.hypot(*whole)) > 1e-150:
        assert math.hypot(*found) == pytest.approx(1, abs=1e-6)
        assert found == pytest.approx(whole / size, abs=1e-7)


@pytest.mark.parametrize(
    ("params", "pooler", "meant"),
    [
        ({}, {}, Form(SIZE, unit=True)),
        ({"dimensions": 2}, {"dimensions": 3}, Form(2, unit=True)),
        ({}, {"dimensions": 3, "use_activation": False}, Form(3, unit=False)),
        ({"use_activation": True}, {"use_activation": False}, Form(SIZE, unit=True)),
        ({"use_activation": False}, {}, Form(SIZE, unit=False)),
    ],
)
def test_what_is_asked_goes_before_what_is_configured(params: dict, pooler: dict, meant: Form) -> None:
    assert form_of(PoolingParams(**params), Pooler(**pooler), SIZE) == meant


@pytest.mark.parametrize("wrong", [{"dimensions": 0}, {"dimensions": 6}, {"dimensions": True}, {"dimensions": 1.0}])
def test_dimensions_are_those_of_the_model(wrong: dict) -> None:
    with pytest.raises(ParameterError, match="dimensions must be an integer from 1 to 5"):
        form_of(PoolingParams(**wrong), Pooler(), SIZE)


def test_what_is_no_truth_value_is_refused() -> None:
    with pytest.raises(ParameterError, match="use_activation must be true, false or null, got 1"):
        form_of(PoolingParams(use_activation=1), Pooler(), SIZE)  # type: ignore[arg-type]


def gathering() -> EmbeddingGathering:
    return EmbeddingGathering(Request(request_id="e", prompt=(1, 2), pooling=Pooling.MEAN), Form(2, unit=False))


def test_events_become_an_output() -> None:
    taken = gathering()
    taken.take([Admitted("e", 0, 1.0, 1), Admitted("e", 0, 1.5, 2, resumed=True)])
    assert not taken.over
    taken.take([embedded([2, 4, 6, 8, 10], 2), Finished("e", 0, 2.0, FinishReason.STOP)])
    assert taken.over and taken.stopped_here() == []
    output = taken.output
    assert (output.outputs.embedding, output.outputs.hidden_size) == ([1.0, 2.0], 2)
    assert (output.prompt_token_ids, output.num_cached_tokens, output.finished) == ([1, 2], 1, True)


def test_one_that_failed_says_why() -> None:
    with pytest.raises(GenerationError, match="request e: not finite"):
        gathering().take([Finished("e", 0, 2.0, FinishReason.ERROR, None, "not finite")])
