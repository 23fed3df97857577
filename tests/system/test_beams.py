"""Beam search and best_of offline, with the default model, in the shape of vLLM's calls."""

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.core.events import Event, Generated, Preempted
from octavo.core.plan import ScoredToken
from octavo.core.request import Request
from octavo.core.sampling import ParameterError
from tests.engine.script import play
from tests.system.test_bits import ISAS, others, prompt, replica

SEA = "The sea is"


def test_beam_search_in_vllm_s_shape(llm: LLM):
    params = BeamSearchParams(beam_width=3, max_tokens=8)
    outputs = llm.beam_search([{"prompt": SEA}, "Once upon a time"], params)
    assert [len(output.sequences) for output in outputs] == [3, 3]
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.encode(SEA)
    best = outputs[0].sequences
    for sequence in best:
        assert sequence.tokens[: len(prompt)] == prompt
        assert sequence.text == tokenizer.decode(sequence.tokens)
        assert sequence.cum_logprob == pytest.approx(
            sum(one[t].logprob for one, t in zip(sequence.logprobs, sequence.tokens[len(prompt) :], strict=True))
        )
    scores = [sequence.cum_logprob / len(sequence.logprobs) for sequence in best]
    assert scores == sorted(scores, reverse=True)
    again = llm.generate(SEA, SamplingParams(use_beam_search=True, n=3, max_tokens=8), use_tqdm=False)[0]
    assert [prompt + choice.token_ids for choice in again.outputs] == [sequence.tokens for sequence in best]
    assert [choice.cumulative_logprob for choice in again.outputs] == [sequence.cum_logprob for sequence in best]


def test_the_token_that_ends_a_beam_is_shown_where_asked(llm: LLM):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = llm.chat(chat, SamplingParams(max_tokens=1), use_tqdm=False)[0].prompt_token_ids
    asked = {"beam_width": 2, "max_tokens": 20, "early_stopping": True}
    (hidden,) = llm.beam_search(prompt, BeamSearchParams(**asked))
    (shown,) = llm.beam_search(prompt, BeamSearchParams(**asked, include_stop_str_in_output=True))
    for without, with_end in zip(hidden.sequences, shown.sequences, strict=True):
        assert without.finish_reason == "stop"
        assert with_end.tokens == [*without.tokens, without.stop_reason]
        assert without.text == with_end.text and "Paris" in (without.text or "")
        assert len(without.logprobs) == len(without.tokens) - len(prompt) + 1


def test_bad_beam_search_params_are_refused_by_name(llm: LLM):
    for params, name in (
        (BeamSearchParams(0, 4), "n"),
        (BeamSearchParams(2, 0), "max_tokens"),
        (BeamSearchParams(2, 4, temperature=0.5), "temperature"),
        (BeamSearchParams(2, 4, length_penalty=99), "length_penalty"),
    ):
        with pytest.raises(ParameterError) as refused:
            llm.beam_search(SEA, params)
        assert refused.value.field == name


def test_best_of_returns_the_most_likely_samples(llm: LLM):
    def ask(**fields):
        return llm.generate(SEA, SamplingParams(max_tokens=8, seed=1, **fields), use_tqdm=False)[0]

    every, best = ask(n=5, logprobs=0), ask(n=2, best_of=5)
    ranked = sorted(every.outputs, key=lambda choice: -choice.cumulative_logprob)
    assert [choice.token_ids for choice in best.outputs] == [choice.token_ids for choice in ranked[:2]]
    assert [(choice.index, choice.logprobs) for choice in best.outputs] == [(0, None), (1, None)]
    assert best.outputs[0].cumulative_logprob == ranked[0].cumulative_logprob
    stopped = ask(n=2, best_of=5, stop=" ")
    assert all(" " not in choice.text for choice in stopped.outputs) and stopped.finished


# -- bits ------------------------------------------------------------------------------------------------------------


def beams_of(events: list[Event]) -> list[tuple[ScoredToken, ...]]:
    return [event.tokens for event in events if isinstance(event, Generated) and event.request_id == "beams"]


SEARCH = Request(
    request_id="beams",
    prompt=prompt(1, 75),
    params=SamplingParams(use_beam_search=True, n=2, best_of=4, max_tokens=12, logprobs=2),
)


@pytest.fixture(scope="module")
def alone(default_model: Path) -> list[tuple[ScoredToken, ...]]:
    with replica(default_model, ISAS[0], num_threads=1) as built:
        return beams_of(play(built, [SEARCH]).events)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16},
        {"num_blocks": 17},
        {"num_blocks": 17, "enable_prefix_caching": False, "max_num_batched_tokens": 40},
    ],
    ids=str,
)
def test_beams_are_the_same_floats_whatever_runs_beside_them(
    default_model: Path, alone: list[tuple[ScoredToken, ...]], options: dict[str, Any]
):
    """In a batch, in chunks, and preempted by one that is in a hurry."""
    urgent = Request(request_id="urgent", prompt=prompt(2, 200), params=SamplingParams(max_tokens=3), priority=-1)
    with replica(default_model, ISAS[0], scheduling_policy="priority", max_num_seqs=8, **options) as built:
        events = play(built, others(2), [SEARCH], [], [], [], [urgent]).events
    assert len(alone) == 2 and beams_of(events) == alone
    preempted = {event.request_id for event in events if isinstance(event, Preempted)}
    assert ("beams" in preempted) == ("num_blocks" in options)
