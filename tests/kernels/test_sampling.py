"""Native sampling against the reference, under each instruction set that this machine accepts.

Tokens must be equal unless the reference's own margin to another token is below MARGIN; logprobs within the bound that
native/src/generic/sample.inl states. Packing (backends.cpu.sampling) is part of what is tested.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.backends.cpu import _native
from octavo.backends.cpu.isa import candidates
from octavo.backends.cpu.sampling import SamplePacker, unpack
from octavo.backends.reference.philox import uniform
from octavo.backends.reference.sampling import SampleError, draw, margins, score
from octavo.core.plan import Sample, ScoredToken, StepPlan, Work, WorkResult
from octavo.core.sampling import SamplingParams
from tests.core.words import mask_of

ISAS = [candidate.name for candidate in candidates() if candidate.accepted]
MARGIN = 5e-6
"""A running sum's relative error: 2^-23 * (1 + |l - peak| / temperature) averaged over weights that fall as fast as
that distance grows (below 30 for the logits here), and 6 * 2^-24 for the tree of additions."""


def run(isa: str, rows: np.ndarray, works: list[Work]) -> tuple[WorkResult, ...]:
    """Native results of works whose tokens are the rows of logits, one after the other."""
    plan = StepPlan(0, tuple(works))
    packed = SamplePacker().pack(plan)
    needed = np.ascontiguousarray(rows.astype(np.float32)[packed.rows])
    _native.sample_rows(isa, needed, *packed.arrays())
    return unpack(plan, packed)


def drawing(*samples: Sample, name: str = "r") -> Work:
    return Work(name, 0, 0, (0,), (0,), samples)


def scoring(targets: list[int], num_alternatives: int) -> Work:
    return Work("r", 0, 0, (0,) * len(targets), (0,), (), tuple(targets), num_alternatives)


def drawn(isa: str, row: np.ndarray, sample: Sample) -> WorkResult:
    return run(isa, row[None], [drawing(sample)])[0]


def same_scores(native: ScoredToken, expected: ScoredToken) -> None:
    """Equal ids and ranks; logprobs within the stated error."""
    assert (native.token, native.rank) == (expected.token, expected.rank)
    assert [token for token, _ in native.alternatives] == [token for token, _ in expected.alternatives]
    pairs = zip((native, *native.alternatives), (expected, *expected.alternatives), strict=True)
    for ours, theirs in ((_logprob(a), _logprob(b)) for a, b in pairs):
        if theirs is None or ours is None:
            assert ours is theirs
        elif abs(theirs) < 1e38:
            assert abs(ours - theirs) <= 1e-6 + 2**-24 * abs(theirs)


def _logprob(entry: ScoredToken | tuple[int, float]) -> float | None:
    return entry.logprob if isinstance(entry, ScoredToken) else entry[1]


# -- logits and parameters to try ------------------------------------------------------------------------------------

SHAPES = {
    "one token": lambda rng: rng.normal(size=1),
    "seven": lambda rng: rng.normal(size=7) * 3,
    "a chunk": lambda rng: rng.normal(size=64) * 4,
    "a chunk and one": lambda rng: rng.normal(size=65) * 4,
    "peaked": lambda rng: np.r_[rng.normal(size=999), 12.0],
    "flat": lambda rng: rng.normal(size=2003) * 0.01,
    "like a model": lambda rng: rng.normal(size=5003) * 2.5 + (rng.random(5003) < 0.002) * 9,
    "all equal": lambda rng: np.full(777, 3.25),
    "ties": lambda rng: rng.integers(-3, 4, 1500) * 0.5,
    "huge": lambda rng: rng.normal(size=300) * 1e30,
    "largest floats": lambda rng: rng.choice([3.4028234e38, -3.4028234e38, 0.0, -0.0], 130),
    "denormal": lambda rng: rng.normal(size=307) * 1e-40,
    "steep": lambda rng: -np.arange(400.0),
}
PARAMS: dict[str, dict] = {
    "greedy": {"temperature": 0},
    "greedy with logprobs": {"temperature": 0, "logprobs": 0},
    "plain": {"temperature": 1, "logprobs": 5},
    "warm": {"temperature": 3.5},
    "cold": {"temperature": 0.05},
    "frozen": {"temperature": 1e-300},
    "top_k 1": {"top_k": 1},
    "top_k 2": {"top_k": 2},
    "top_k 50": {"top_k": 50, "logprobs": 20},
    "top_k 1200": {"top_k": 1200},
    "top_p tiny": {"top_p": 1e-9},
    "top_p half": {"top_p": 0.5},
    "top_p": {"top_p": 0.95, "temperature": 0.8},
    "top_p nearly all": {"top_p": 0.9999, "temperature": 2.0},
    "min_p": {"min_p": 0.1, "temperature": 1.5},
    "min_p 1": {"min_p": 1.0},
    "all three": {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
    "top_p and min_p": {"top_p": 0.9, "min_p": 0.2},
    "typical_p": {"typical_p": 0.3},
    "all four": {"typical_p": 0.7, "top_k": 300, "top_p": 0.98, "min_p": 0.001, "temperature": 1.3},
}


def samples_of(params: dict, count: int) -> list[Sample]:
    made = SamplingParams(**params)
    return [Sample(made, 2**63 + 7 * i, i % 3, i) for i in range(count)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_native_draws_and_scores_as_the_reference(isa: str, shape: str):
    rng = np.random.default_rng(len(shape))
    row = SHAPES[shape](rng).astype(np.float32)
    close_calls = 0
    for params in PARAMS.values():
        samples = samples_of(params, 6)
        result = run(isa, row[None], [drawing(*samples)])[0]
        assert result.error is None
        for native, sample in zip(result.sampled, samples, strict=True):
            expected = draw(row, sample)
            if sample.params.greedy or margins(row, sample).least > MARGIN:
                same_scores(native, expected)
            else:
                close_calls += 1
    assert close_calls <= 18  # of 120: a test that excused everything would show nothing


ADJUSTED = {
    "bias": {"logit_bias": {0: 5.5, 63: -2.25, 64: 100.0, 299: -100.0}},
    "allowed": {"allowed_token_ids": [1, 63, 64, 128, 250]},
    "one allowed": {"allowed_token_ids": [201]},
    "repetition": {"repetition_penalty": 1.3},
    "repetition below 1": {"repetition_penalty": 1e-300},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.7},
    "everything": {
        "logit_bias": {3: 4.0, 64: 2.0},
        "allowed_token_ids": list(range(0, 300, 3)),
        "repetition_penalty": 0.8,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "top_k": 20,
        "top_p": 0.9,
        "logprobs": 4,
    },
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("kind", ADJUSTED)
def test_bias_masks_and_penalties_are_the_reference_s(isa: str, kind: str, temperature: float):
    row = (np.random.default_rng(5).normal(size=300) * 3).astype(np.float32)
    params = SamplingParams(temperature=temperature, **ADJUSTED[kind])
    prompt, generated = (3, 64, 64, 299, 0), (7, 3, 3, 3, 250, 7)
    samples = [
        Sample(params, 99, 0, i, (63, 0)[: i % 3], prompt[:i], generated[:i], mask)
        for i in range(7)
        for mask in (None, mask_of({*range(40, 300, 3), 3, 7, 201}, 300), mask_of(range(1, 299), 300))
    ]
    for native, sample in zip(run(isa, row[None], [drawing(*samples)])[0].sampled, samples, strict=True):
        if params.greedy or margins(row, sample).least > MARGIN:
            same_scores(native, draw(row, sample))


ALPHABET = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 30.0, -80.0, 3.4028234e38, -3.4028234e38, 1e-45])
SMALL_PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 1e-5, 0.5, 1, 2, 100]),
        "top_k": st.integers(0, 6),
        "top_p": st.sampled_from([1e-9, 0.3, 0.5, 0.999999, 1]),
        "min_p": st.sampled_from([0, 1e-30, 0.4, 1]),
        "typical_p": st.sampled_from([1e-9, 0.2, 0.6, 0.999999, 1]),
        "presence_penalty": st.sampled_from([-2, 0.5, 2]),
        "frequency_penalty": st.sampled_from([-2, 0.5, 2]),
        "repetition_penalty": st.sampled_from([1e-300, 1e-40, 0.5, 1.5, 100]),
        "logprobs": st.integers(0, 5),
        "logit_bias": st.dictionaries(st.integers(0, 3), st.sampled_from([-100.0, 1.0, 100.0]), max_size=2),
        "allowed_token_ids": st.lists(st.integers(0, 3), min_size=1, max_size=3),
    },
)
SMALL_TOKENS = st.lists(st.integers(0, 3), max_size=4).map(tuple)


MASKS = st.none() | st.binary(min_size=10, max_size=10)


@given(st.lists(ALPHABET, min_size=4, max_size=80), SMALL_PARAMS, SMALL_TOKENS, SMALL_TOKENS, SMALL_TOKENS, MASKS)
@example([3.4028234e38, -3.4028234e38, 0.0, 0.0], {"repetition_penalty": 100, "top_p": 0.5}, (), (1,), (0,), None)
@example([0.0, -1.0, 0.0, -1.0], {"temperature": 0, "repetition_penalty": 1e-300}, (), (0,), (), None)
@example([1.0] * 9, {"temperature": 0}, (), (), (), b"\x00\x01" + bytes(8))
def test_small_adversarial_rows(row, params, banned, prompt, generated, mask):
    values = np.array(row, np.float32)
    sample = Sample(SamplingParams(**params), 12345, 1, 2, banned, prompt, generated, mask)
    for isa in ISAS:
        result = drawn(isa, values, sample)
        try:
            expected = draw(values, sample)
        except SampleError as error:
            assert (result.error, result.code) == (str(error), error.code)
            assert result.sampled == ()
            continue
        assert result.error is None
        if sample.params.greedy or margins(values, sample).least > MARGIN:
            same_scores(result.sampled[0], expected)


# -- exact ties, where the margin is 0 and both sides are exact nevertheless ------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_a_draw_on_the_edge_of_two_shares_takes_the_second(isa: str):
    row = np.zeros(2**14, np.float32)
    index = next(index for index in range(10_000) if (uniform(1, 0, index) * len(row)).is_integer())
    sample = Sample(SamplingParams(), 1, 0, index)
    expected = int(uniform(1, 0, index) * len(row))
    assert draw(row, sample).token == expected
    assert drawn(isa, row, sample).sampled[0].token == expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("params", "kept"), [({"top_p": 0.5}, 32), ({"top_k": 40, "top_p": 0.25}, 10)])
def test_a_nucleus_that_is_exactly_full_takes_no_more(isa: str, params: dict, kept: int):
    samples = samples_of(params, 400)
    tokens = {token.token for token in run(isa, np.full((1, 64), 2.5), [drawing(*samples)])[0].sampled}
    assert tokens == set(range(kept))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("row", [[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]])
def test_both_zeros_are_equal(isa: str, row: list[float]):
    values = np.array(row, np.float32)
    result = drawn(isa, values, Sample(SamplingParams(top_k=1, logprobs=2), 3, 0, 0)).sampled[0]
    assert result.token == 0
    assert [token for token, _ in result.alternatives] == [0, 1]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 99])
def test_logits_that_are_not_finite_fail_their_own_work_only(isa: str, bad: float, place: int):
    rows = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    rows[1, place] = bad
    sample = Sample(SamplingParams(temperature=1, logprobs=2), 1, 0, 0)
    first, broken, last = run(isa, rows, [drawing(sample, name=name) for name in "abc"])
    assert broken.error == "the logits are not finite"
    assert broken.sampled == ()
    assert [first, last] == [drawn_as(isa, rows[0], sample, "a"), drawn_as(isa, rows[2], sample, "c")]


def drawn_as(isa: str, row: np.ndarray, sample: Sample, name: str) -> WorkResult:
    return run(isa, row[None], [drawing(sample, name=name)])[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_all_banned_is_an_error_and_all_but_one_is_that_one(isa: str, temperature: float):
    row = np.random.default_rng(1).normal(size=70).astype(np.float32)
    params = SamplingParams(temperature=temperature)
    result = drawn(isa, row, Sample(params, 1, 0, 0, banned=tuple(range(70))))
    assert result.error is not None
    assert "no token may be drawn" in result.error
    for left in (0, 63, 69):
        banned = tuple(token for token in range(70) if token != left)
        assert drawn(isa, row, Sample(params, 1, 0, 0, banned=banned)).sampled == (ScoredToken(left),)
        assert drawn(isa, row, Sample(params, 1, 0, 0, mask=mask_of({left}, 70))).sampled == (ScoredToken(left),)
    masked = drawn(isa, row, Sample(params, 1, 0, 0, mask=bytes(9)))
    assert masked.code == "nothing_allowed"


def test_a_token_outside_the_vocabulary_is_an_error():
    params = SamplingParams(temperature=0, allowed_token_ids=[70])
    result = drawn(ISAS[0], np.zeros(70, np.float32), Sample(params, 1, 0, 0))
    assert result.error == "a token id is outside the vocabulary"


def test_jobs_that_reach_outside_their_arrays_are_refused():
    params = SamplingParams(logit_bias={1: 2.0}, logprobs=3)
    plan = StepPlan(0, (drawing(Sample(params, 1, 0, 0, mask=b"\xff\x01")),))
    packed = SamplePacker().pack(plan)
    jobs, ids, values, masks, scored, alternatives = packed.arrays()
    logits = np.zeros((1, 9), np.float32)
    _native.sample_rows(ISAS[0], logits, *packed.arrays())
    for spoiled in (
        (jobs, ids[:0], values, masks, scored, alternatives),
        (jobs, ids, values[:0], masks, scored, alternatives),
        (jobs, ids, values, masks[:1], scored, alternatives),
        (jobs, ids, values, masks, scored[:0], alternatives),
        (jobs, ids, values, masks, scored, alternatives[:8]),
        (jobs[:-1], ids, values, masks, scored, alternatives),
    ):
        with pytest.raises(ValueError):
            _native.sample_rows(ISAS[0], logits, *spoiled)


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_targets_are_scored_as_the_reference_does(isa: str, shape: str):
    row = SHAPES[shape](np.random.default_rng(3)).astype(np.float32)
    targets = sorted({0, len(row) // 2, len(row) - 1, int(row.argmax())})
    for num_alternatives in (0, 3, 128):
        result = run(isa, np.tile(row, (len(targets), 1)), [scoring(targets, num_alternatives)])[0]
        for native, target in zip(result.scored, targets, strict=True):
            same_scores(native, score(row, target, num_alternatives))


# -- determinism and distribution ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_all_instruction_sets_give_the_same_bits(shape: str):
    row = SHAPES[shape](np.random.default_rng(11)).astype(np.float32)
    samples = [sample for params in PARAMS.values() for sample in samples_of({"logprobs": 2, **params}, 3)]
    first, *others = (run(isa, row[None], [drawing(*samples)]) for isa in ISAS)
    assert all(other == first for other in others)


@pytest.mark.parametrize("isa", ISAS)
def test_a_draw_does_not_depend_on_its_neighbours(isa: str):
    rows = (np.random.default_rng(2).normal(size=(6, 500)) * 3).astype(np.float32)
    samples = [Sample(SamplingParams(**params, logprobs=3), 5, 0, i) for i, params in enumerate(MIXED)]
    together = run(isa, rows, [drawing(sample, name=str(i)) for i, sample in enumerate(samples)])
    for i, sample in enumerate(samples):
        assert together[i] == drawn_as(isa, rows[i], sample, str(i))


MIXED: list[dict] = [
    {"temperature": 0},
    {"top_k": 7},
    {"logit_bias": {3: 50.0}},
    {"top_p": 0.8},
    {"presence_penalty": 2.0},
    {"allowed_token_ids": [4, 5, 6]},
]

PROBABILITIES = np.array([0.02, 0.3, 0.05, 0.2, 0.03, 0.25, 0.1, 0.05])
EXPECTED = {
    "plain": ({}, PROBABILITIES),
    "warm": ({"temperature": 2.0}, np.sqrt(PROBABILITIES)),
    "top_k": ({"top_k": 3}, PROBABILITIES * [0, 1, 0, 1, 0, 1, 0, 0]),
    "top_p": ({"top_p": 0.8}, PROBABILITIES * [0, 1, 0, 1, 0, 1, 1, 0]),
    "min_p": ({"min_p": 0.5}, PROBABILITIES * [0, 1, 0, 1, 0, 1, 0, 0]),
}
CHI_SQUARE = {7: 29.9, 3: 21.1, 2: 18.4}
"""Degrees of freedom -> what a true distribution exceeds once in 10,000. The seeds are fixed, so this never varies."""


def chi_square(tokens: list[int], weights: np.ndarray) -> tuple[float, int]:
    expected = weights / weights.sum() * len(tokens)
    counts = np.bincount(tokens, minlength=len(weights))
    kept = expected > 0
    assert counts[~kept].sum() == 0
    return float((np.square(counts - expected)[kept] / expected[kept]).sum()), int(kept.sum()) - 1


@pytest.mark.parametrize("isa", ["reference", *ISAS])
@pytest.mark.parametrize("kind", EXPECTED)
def test_draws_follow_the_distribution(isa: str, kind: str):
    params, weights = EXPECTED[kind]
    row = np.log(PROBABILITIES).astype(np.float32)
    made = SamplingParams(**params)
    samples = [Sample(made, seed, choice, index) for seed in (1, 2**40) for choice in range(4) for index in range(300)]
    if isa == "reference":
        tokens = [draw(row, sample).token for sample in samples]
    else:
        tokens = [token.token for token in run(isa, row[None], [drawing(*samples)])[0].sampled]
    statistic, freedom = chi_square(tokens, weights)
    assert statistic < CHI_SQUARE[freedom]
