"""The reference sampler against published vectors and against examples worked out by hand."""

import numpy as np
import pytest

from octavo.backends.reference.philox import philox4x32, uniform
from octavo.backends.reference.sampling import SampleError, adjust, draw, kept_tokens, scaled_weights, score
from octavo.core.plan import Sample
from octavo.core.sampling import SamplingParams

ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    assert philox4x32(counter, key) == tuple(int(word, 16) for word in words.split())


def test_uniform_is_a_multiple_of_2_to_the_minus_24_and_uses_all_of_its_key():
    draws = {uniform(*key) for key in [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(draws) == 5
    assert all(0 <= u < 1 and (u * 2**24).is_integer() for u in draws)


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sample(seed: int = 0, *, banned=(), prompt=(), generated=(), **params) -> Sample:
    return Sample(SamplingParams(**params), seed, 0, len(generated), banned=banned, prompt=prompt, generated=generated)


def test_bias_masks_and_penalties_in_their_order():
    """Worked by hand: bias first, then masks, then repetition, frequency and presence."""
    asked = sample(
        logit_bias={0: 1.5, 3: 100},
        allowed_token_ids=[0, 1, 2, 3],
        banned=(3,),
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        prompt=(0, 2),
        generated=(1, 1, 0),
    )
    adjusted = adjust(logits(1, -1, 4, 7, 9), asked)
    #   token 0: (1 + 1.5) / 2 - 0.5 - 0.25   token 1: -1 * 2 - 2 * 0.5 - 0.25   token 2: 4 / 2, prompt only
    assert adjusted.tolist() == [0.5, -3.25, 2.0, -np.inf, -np.inf]


def test_a_penalty_that_overflows_stays_finite():
    adjusted = adjust(logits(1e38, -1e38, 0), sample(repetition_penalty=1e-300, generated=(0,)))
    assert adjusted[0] == np.finfo(np.float32).max
    adjusted = adjust(logits(1e38, -1e38, 0), sample(repetition_penalty=100, generated=(1,)))
    assert adjusted[1] == -np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 3}, [0, 1, 2]),  # 0 and 3 are equal: the lower id
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"top_p": 0.4}, [1]),  # 4/10 is enough
        ({"top_p": 0.41}, [1, 2]),
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.6}, [1, 2]),
        ({"min_p": 0.75}, [1, 2]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 2, "top_p": 0.5}, [1]),  # 4/7 of what top_k kept
        ({"top_p": 0.75, "min_p": 0.7}, [1, 2]),
    ],
)
def test_truncation_of_four_tokens_of_weight_1_5_4_3_1_5(params, kept):
    row = np.log(np.array([1.5, 4, 3, 1.5], np.float64)).astype(np.float32)
    weights = np.array([0.375, 1, 0.75, 0.375])  # exact, so that the boundaries above are exact
    assert np.flatnonzero(kept_tokens(row, weights, SamplingParams(**params))).tolist() == kept


def test_temperature_divides_the_distance_to_the_best_logit():
    assert scaled_weights(logits(0, 2, -np.inf), 2.0).tolist() == pytest.approx([np.exp(-1), 1, 0])
    assert scaled_weights(logits(3, 3, 2.999), 1e-300).tolist() == [1, 1, 0]


def test_greedy_takes_the_lowest_id_among_equals():
    assert draw(logits(1, 5, 5, 0), sample(temperature=0)).token == 1
    assert draw(logits(0.0, -0.0), sample(temperature=0)).token == 0
    assert draw(logits(-0.0, 0.0), sample(temperature=0)).token == 0


def test_logprobs_are_of_the_raw_distribution():
    raw = logits(0, 0, 0, 0, -np.float32(np.log(4)))
    drawn = draw(raw, sample(temperature=0.5, logprobs=3, banned=(0, 1, 2, 3)))
    assert drawn.token == 4
    assert drawn.rank == 5
    assert drawn.logprob == pytest.approx(np.log(0.25 / 4.25))
    assert [token for token, _ in drawn.alternatives] == [0, 1, 2]
    assert drawn.alternatives[0][1] == pytest.approx(np.log(1 / 4.25))


def test_a_score_of_an_extreme_token_is_finite():
    assert score(logits(1e4, -1e4), 1, 0).logprob == -2e4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    with pytest.raises(SampleError, match="not finite") as caught:
        draw(logits(0, bad, 1), sample())
    assert caught.value.code == "not_finite"


def test_nothing_left_to_draw_is_an_error():
    with pytest.raises(SampleError, match="banned") as caught:
        draw(logits(0, 1), sample(allowed_token_ids=[1], banned=(1,)))
    assert caught.value.code == "nothing_allowed"


def test_logits_are_not_changed():
    raw = logits(0, 1, 2)
    draw(raw, sample(logit_bias={0: 5}, logprobs=2, banned=(1,), presence_penalty=1, generated=(2,)))
    assert raw.tolist() == [0, 1, 2]


def test_typical_tokens_are_those_that_surprise_as_expected():
    """Four tokens of 1/2, 1/4, 1/8, 1/8: the entropy is 1.75 bits, so the second, of 2 bits, is the nearest."""
    row = np.log(np.array([4, 2, 1, 1], np.float64)).astype(np.float32)
    weights = np.exp(row.astype(np.float64) - float(row.max()))

    def kept(**params: float) -> list[int]:
        return np.flatnonzero(kept_tokens(row, weights, SamplingParams(**params))).tolist()

    assert kept(typical_p=1e-9) == kept(typical_p=0.24) == [1]
    assert kept(typical_p=0.26) == kept(typical_p=0.7) == [0, 1]  # 1 bit is 0.75 away, 3 bits are 1.25 away
    assert kept(typical_p=0.8) == [0, 1, 2] and kept(typical_p=0.9) == [0, 1, 2, 3]
    assert kept(typical_p=0.5, min_p=0.6) == [0] and kept(typical_p=0.5, top_k=1) == [0]


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_typical_tokens_are_as_the_paper_has_them(temperature: float):
    """By surprise and entropy themselves, on a row like a model's."""
    row = (np.random.default_rng(3).normal(size=500) * 3).astype(np.float32)
    params = SamplingParams(temperature=temperature, typical_p=0.6)
    weights = scaled_weights(row, temperature)
    p = weights / weights.sum()
    surprise = -np.log(np.maximum(p, 1e-300))
    order = np.argsort(np.abs(surprise - np.sum(p * surprise)), kind="stable")
    due = order[: 1 + int(np.searchsorted(np.cumsum(p[order]), 0.6))]
    assert np.flatnonzero(kept_tokens(row, weights, params)).tolist() == sorted(due.tolist())
