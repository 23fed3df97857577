"""Beam search as values: against Transformers, one that looks at everything, and all answers that there are."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.beams import BeamRules, BeamSearch, Candidates, advance, num_candidates, reseated, sampler_params
from octavo.core.sampling import ParameterError, SamplingParams
from tests.golden.make_beams import logprobs_after

Answer = tuple[tuple[int, ...], float]
"""Token ids and their score."""


class Model:
    """Logprobs by what was generated so far; of few different values, so that there are ties."""

    def __init__(self, vocab: int, seed: int, coarse: bool) -> None:
        self.vocab, self._seed, self._coarse = vocab, seed, coarse

    def after(self, tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        """Every token, best first, lower id first among equals."""
        draw = random.Random(f"{self._seed} {tokens}")
        values = [-draw.randint(1, 3) / 2 if self._coarse else -draw.uniform(0.1, 5) for _ in range(self.vocab)]
        return sorted(enumerate(values), key=lambda pair: -pair[1])


@st.composite
def rules(draw: st.DrawFn) -> BeamRules:
    stop_ids = draw(st.frozensets(st.integers(0, 6), max_size=3))
    return BeamRules(
        width=draw(st.integers(1, 4)),
        max_tokens=draw(st.integers(1, 6)),
        min_tokens=draw(st.integers(0, 3)),
        stop_ids=stop_ids,
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([True, False, "never"])),
        num_alternatives=draw(st.integers(0, 2)),
    )


models = st.builds(Model, st.just(7), st.integers(0, 10**6), st.booleans())


def found(model: Model, rules: BeamRules) -> list[Answer]:
    search = BeamSearch()
    most = max(num_candidates(rules.width, len(rules.stop_ids)), rules.num_alternatives)
    while not search.over:
        candidates: list[Candidates] = []
        for beam in search.live:
            tokens = tuple(scored.token for scored in beam.tokens())
            assert len(tokens) == beam.length
            candidates.append(model.after(tokens)[:most])
        search = advance(search, candidates, rules)
    answers: list[Answer] = []
    for hypothesis in search.ended:
        scored = hypothesis.beam.tokens()
        assert hypothesis.beam.logprob == pytest.approx(sum(token.logprob or 0 for token in scored))
        assert all(len(token.alternatives) == rules.num_alternatives for token in scored)
        last = scored[-1].token
        assert hypothesis.stop_token == (last if last in rules.stop_ids else None)
        answers.append((tuple(token.token for token in scored), hypothesis.score))
    return answers


def due(model: Model, rules: BeamRules) -> list[Answer]:
    """Transformers' loop, looking at all continuations of all beams, with whole sequences."""
    live: list[Answer] = [((), 0.0)]
    ended: list[Answer] = []
    for length in range(1, rules.max_tokens + 1):
        every = [
            ((*tokens, token), total + logprob)
            for tokens, total in live
            for token, logprob in model.after(tokens)
            if token not in rules.stop_ids or length > rules.min_tokens
        ]
        every.sort(key=lambda answer: -answer[1])
        ends = [answer for answer in every if answer[0][-1] in rules.stop_ids or length == rules.max_tokens]
        live = [answer for answer in every if answer not in ends][: rules.width]
        for tokens, total in every[: rules.width]:
            if (tokens, total) in ends:
                ended.append((tokens, total / length**rules.length_penalty))
        ended = sorted(ended, key=lambda answer: -answer[1])[: rules.width]
        if len(ended) == rules.width:
            at = rules.max_tokens if rules.early_stopping == "never" and rules.length_penalty > 0 else length
            if rules.early_stopping is True or not live or live[0][1] / at**rules.length_penalty <= ended[-1][1]:
                break
    return ended


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "beams.json").read_text("utf-8"))


class Table(Model):
    """The model that Transformers searched."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def after(self, tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        return logprobs_after(self._seed, tokens)


def test_it_finds_what_transformers_finds_whatever_is_asked() -> None:
    for case in GOLDEN:
        asked = {name: value for name, value in case.items() if name not in ("seed", "beams", "stop_ids")}
        answers = found(Table(case["seed"]), BeamRules(**asked, stop_ids=frozenset(case["stop_ids"])))
        assert [list(tokens) for tokens, _ in answers] == [beam["token_ids"] for beam in case["beams"]]
        scores = [beam["score"] for beam in case["beams"]]
        assert [score for _, score in answers] == pytest.approx(scores, rel=1e-6, abs=2e-5), "those are of float32"


@given(models, rules())
def test_it_finds_what_a_search_through_everything_finds(model: Model, rules: BeamRules) -> None:
    assert found(model, rules) == due(model, rules)


@given(models, rules())
def test_a_search_wide_enough_finds_the_best_answers_of_all(model: Model, rules: BeamRules) -> None:
    """Where no beam is ever dropped."""
    model, rules = Model(3, 1, False), replace(rules, width=100, max_tokens=min(rules.max_tokens, 4))
    every: list[Answer] = []

    def go_on(tokens: tuple[int, ...], total: float) -> None:
        for token, logprob in model.after(tokens):
            stops = token in rules.stop_ids
            if stops and len(tokens) < rules.min_tokens:
                continue
            longer = (*tokens, token)
            if stops or len(longer) == rules.max_tokens:
                every.append((longer, (total + logprob) / len(longer) ** rules.length_penalty))
            else:
                go_on(longer, total + logprob)

    go_on((), 0.0)
    assert found(model, rules) == sorted(every, key=lambda answer: -answer[1])


@given(models, st.integers(1, 6), st.frozensets(st.integers(0, 6), max_size=3), st.integers(0, 3))
def test_one_beam_is_greedy(model: Model, max_tokens: int, stop_ids: frozenset[int], min_tokens: int) -> None:
    tokens: tuple[int, ...] = ()
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in stop_ids):
        allowed = [t for t, _ in model.after(tokens) if t not in stop_ids or len(tokens) >= min_tokens]
        tokens = (*tokens, allowed[0])
    one = BeamRules(width=1, max_tokens=max_tokens, min_tokens=min_tokens, stop_ids=stop_ids)
    assert [answer for answer, _ in found(model, one)] == [tokens]


def test_the_pieces_of_a_round() -> None:
    """Beam b may end, and does so where its end is among the best two; a goes on twice; ranks and alternatives."""
    rules = BeamRules(width=2, max_tokens=9, stop_ids=frozenset({0}), num_alternatives=1)
    search = advance(BeamSearch(), [[(1, -0.25), (2, -0.5), (0, -1.0)]], rules)
    assert [(beam.logprob, beam.source) for beam in search.live] == [(-0.25, 0), (-0.5, 0)]
    search = advance(search, [[(3, -1.0), (4, -1.0), (0, -4.0)], [(0, -0.25), (5, -2.0), (6, -3.0)]], rules)
    assert [(beam.logprob, beam.source) for beam in search.live] == [(-1.25, 0), (-1.25, 0)]
    assert [scored.rank for beam in search.live for scored in beam.tokens()] == [1, 1, 1, 1], "equals have one rank"
    assert search.live[1].tokens()[1].alternatives == ((3, -1.0),)
    (hypothesis,) = search.ended
    assert (hypothesis.score, hypothesis.stop_token) == (-0.375, 0) and not search.over


def test_a_beam_stays_on_its_seat_and_a_second_one_gets_a_free_one() -> None:
    assert reseated([0, 0, 0], "abc") == ["a", "b", "c"]
    assert reseated([2, 2, 0], "abc") == ["c", "b", "a"]
    assert reseated([1, 0, 2], "abc") == ["b", "a", "c"]
    assert reseated([1], "abc") == ["b", "a", "c"], "those that are left over come last"


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_every_seat_is_given_once(sources: list[int]) -> None:
    given_to = reseated(sources, range(6))
    assert sorted(given_to) == list(range(6))
    assert all(source in given_to for source in sources)


# -- what may be asked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 1000}, "best_of"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"early_stopping": "always", "use_beam_search": True}, "early_stopping"),
        ({"length_penalty": 11, "use_beam_search": True}, "length_penalty"),
        ({"length_penalty": float("nan"), "use_beam_search": True}, "length_penalty"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "top_p": 0.9}, "top_p"),
        ({"use_beam_search": True, "top_k": 3}, "top_k"),
        ({"use_beam_search": True, "min_p": 0.1}, "min_p"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
        ({"use_beam_search": True, "frequency_penalty": 1}, "frequency_penalty"),
        ({"use_beam_search": True, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"use_beam_search": True, "logit_bias": {1: 1}}, "logit_bias"),
        ({"use_beam_search": True, "allowed_token_ids": [1, 2]}, "allowed_token_ids"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict, name: str) -> None:
    with pytest.raises(ParameterError) as refused:
        SamplingParams(**fields)
    assert refused.value.field == name


def test_what_is_asked_of_the_sampler() -> None:
    beams = SamplingParams(n=2, best_of=4, use_beam_search=True, logprobs=1)
    assert (beams.width, beams.num_choices) == (4, 2)
    asked = sampler_params(beams, 3)
    assert (asked.temperature, asked.logprobs) == (0, 7)
    assert sampler_params(replace(beams, logprobs=9), 3).logprobs == 9
    samples = SamplingParams(n=2, best_of=4)
    assert (samples.width, samples.num_choices, sampler_params(samples, 3).logprobs) == (4, 4, 0)
    plain = SamplingParams(n=2, best_of=2)
    assert sampler_params(plain, 3) is plain
