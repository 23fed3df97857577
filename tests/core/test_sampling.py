"""SamplingParams: the bounds are exact, and what is outside them is named with what is allowed."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.sampling import ParameterError, SamplingParams, check_token_ids

BOUNDS = [
    ("n", 1, 128),
    ("temperature", 0, 100),
    ("top_k", 0, None),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("seed", -(2**63), 2**64 - 1),
    ("max_tokens", 1, None),
    ("logprobs", 0, 128),
    ("prompt_logprobs", 0, 128),
]


@pytest.mark.parametrize(("name", "lowest", "highest"), BOUNDS)
def test_bounds_are_allowed_and_what_is_just_outside_is_not(name, lowest, highest):
    for value in (lowest, 10**400 if highest is None else highest):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (lowest - (2 if name == "top_k" else 1), None if highest is None else highest + 1):
        if value is not None:
            with pytest.raises(ParameterError, match=rf"{name} must be .* {lowest}.*, got {value}"):
                SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None])
def test_a_number_is_a_finite_number(name, value):
    with pytest.raises(ParameterError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["top_p", "typical_p", "repetition_penalty"])
def test_zero_is_not_positive(name):
    with pytest.raises(ParameterError, match="above 0"):
        SamplingParams(**{name: 0})


def test_values_are_stored_in_one_form():
    params = SamplingParams(stop="x", logit_bias={5: 1, 3: 2}, top_k=-1, allowed_token_ids=[4, 2, 4])
    assert (params.stop, params.logit_bias, params.top_k) == (("x",), ((3, 2.0), (5, 1.0)), 0)
    assert params.allowed_token_ids == (2, 4)
    assert hash(params) == hash(SamplingParams(stop=["x"], logit_bias=[(3, 2), (5, 1)], allowed_token_ids=(2, 4)))


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 5, "max_tokens": 4},
        {"stop": [""]},
        {"stop": ["x"] * 1025},
        {"stop": "x" * 1_001},
        {"stop": ["x", "y" * 10**6]},
        {"stop": ["x" * 512] * 8 + ["y"]},
        {"logit_bias": {1: 101}},
        {"allowed_token_ids": []},
        {"bad_words": [""]},
        {"bad_words": ["x"] * 1025},
        {"bad_words": ["x" * 512] * 8 + ["y"]},
        {"bad_words_token_ids": [[1], []]},
        {"bad_words": ["x"], "use_beam_search": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_cannot_be_meant_is_refused(fields):
    with pytest.raises(ParameterError, match=next(iter(fields))):
        SamplingParams(**fields)


@pytest.mark.parametrize("stop", ["x" * 1_000, ["x" * 512] * 8], ids=["one", "together"])
def test_the_longest_stop_strings_are_accepted(stop):
    SamplingParams(stop=stop)


def test_a_stop_string_that_is_too_long_is_measured_and_not_repeated():
    with pytest.raises(ParameterError, match=r"at most 1,000 characters each, got 'one of 2,000,000'$"):
        SamplingParams(stop="x" * 2_000_000)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
@pytest.mark.parametrize("token", [-1, 100])
def test_token_ids_are_in_the_vocabulary(name, token):
    ids = {token: 1.0, 0: 1.0} if name == "logit_bias" else [0, token]
    with pytest.raises(ParameterError, match=f"{name} .* 99, got {token}"):
        check_token_ids(SamplingParams(**{name: ids}), vocab_size=100)
    check_token_ids(SamplingParams(**{name: {99: 1.0} if name == "logit_bias" else [99]}), vocab_size=100)


def test_ids_of_bad_words_are_in_the_vocabulary():
    with pytest.raises(ParameterError, match=r"bad_words_token_ids .* 99, got 100"):
        check_token_ids(SamplingParams(bad_words_token_ids=[[5], [6, 100]]), vocab_size=100)
    assert SamplingParams(bad_words_token_ids=[[5, 6]]).bad_words_token_ids == ((5, 6),)


LISTS = ["stop", "stop_token_ids", "allowed_token_ids", "logit_bias"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in LISTS for value in (5, True, 1.5, b"ab", object())),
        *((name, [value]) for name in LISTS for value in (None, True, 1.5, b"a", [], {}, 1j)),
        *((name, "ab") for name in LISTS[1:]),
        *((name, ["x"]) for name in LISTS[1:]),
        ("stop", {"a": 1}),
        ("stop", [10**5000]),
        ("allowed_token_ids", {1: 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {1.5: 1}),
        ("logit_bias", {True: 1}),
        ("logit_bias", [(1, 2, 3)]),
        *(("logit_bias", {5: value}) for value in ("1", None, True, [], math.nan, math.inf, 10**400, -(10**5000))),
        ("temperature", -(10**5000)),
        ("seed", 10**5000),
        *((name, value) for name in ("ignore_eos", "skip_special_tokens") for value in (1, "yes", None)),
    ],
    ids=lambda value: f"{type(value).__name__}" if not isinstance(value, str) else value,
)
def test_a_wrong_type_is_named_wherever_it_stands(name, value):
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field.split("[")[0] == name and name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_integers_of_every_kind_are_token_ids():
    given = SamplingParams(
        stop_token_ids=np.array([4, 2]), allowed_token_ids={np.int32(7)}, logit_bias={"5": np.int8(3)}
    )
    assert given == SamplingParams(stop_token_ids=[4, 2], allowed_token_ids=[7], logit_bias={5: 3})
    assert {type(token) for token in (*given.stop_token_ids, *(given.allowed_token_ids or ()))} == {int}


scalars = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text() | st.binary()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([field.name for field in dataclasses.fields(SamplingParams)]), anything)
def test_any_value_of_any_field_is_taken_or_refused_by_name(name, value):
    try:
        hash(SamplingParams(**{name: value}))
    except ParameterError as error:
        assert error.field.split("[")[0] in (name, "min_tokens")  # which is held against max_tokens
