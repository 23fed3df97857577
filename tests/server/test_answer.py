"""Parts that need no server: an answer from events, however they come; chunks that no client cuts wrongly."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import Admitted, Event, Finished, Generated, Preempted, Queued, Refused
from octavo.core.plan import ScoredToken
from octavo.core.sampling import SamplingParams
from octavo.core.types import FinishReason
from octavo.models.checkpoint import Checkpoint
from octavo.server.openai.answer import Answer
from octavo.server.openai.errors import ApiError
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.sse import ChunkWriter
from octavo.text.tokenizer import Tokenizer
from tests.server.site import text_of


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    return text_of(checkpoint)[0]


def life(tokens: list[int], cuts: list[int], end: Finished) -> list[list[Event]]:
    """The events of a choice, cut into steps; the end comes with the token that brought it."""
    events: list[Event] = [Queued("r", 0, 4), Admitted("r", 0, 0, 2)]
    generated: list[Event] = [Generated("r", 0, 1, (ScoredToken(token, -1.0),)) for token in tokens]
    events += [*generated[:-1], Preempted("r", 0, 1, 5, "no room"), Admitted("r", 0, 1, 3, True), generated[-1], end]
    bounds = sorted({0, len(events), *(cut % (len(events) - 1) for cut in cuts)})
    return [events[start:stop] for start, stop in pairwise(bounds)]


def of_lengths(answer: Answer, lengths: list[int]) -> None:
    """Each choice so many tokens, those of the later ones more likely."""
    for choice, length in enumerate(lengths):
        tokens = tuple(ScoredToken(5, choice - 9.0) for _ in range(length))
        answer.take([Generated("r", choice, 0, tokens), Finished("r", choice, 0, FinishReason.LENGTH)])


def test_what_is_not_returned_was_spent_but_is_no_output(tokenizer: Tokenizer) -> None:
    samples = Answer(tokenizer, SamplingParams(n=2, best_of=4))
    of_lengths(samples, [1, 2, 1, 3])
    assert (samples.completion_tokens, samples.tokens_spent) == (7, 7)
    assert samples.keep_best() == [2, 0], "the highest sums: -7, -9, -16, -18"
    assert (samples.completion_tokens, samples.tokens_spent) == (2, 7)
    beams = Answer(tokenizer, SamplingParams(n=2, best_of=6, use_beam_search=True))
    of_lengths(beams, [4, 3])
    assert beams.keep_best() == [0, 1]
    assert (beams.completion_tokens, beams.tokens_spent) == (7, 21)


@given(
    st.lists(st.integers(3, 273), min_size=1, max_size=12),
    st.lists(st.integers(0, 100)),
    st.sampled_from([(), ("e",), ("th", "an")]),
    st.sampled_from([None, 0]),
    st.booleans(),
)
def test_an_answer_does_not_depend_on_how_its_events_come(
    tokenizer: Tokenizer, tokens: list[int], cuts: list[int], stop: tuple[str, ...], logprobs: Any, stopped: bool
) -> None:
    params = SamplingParams(max_tokens=99, stop=stop, logprobs=logprobs)
    reason = FinishReason.STOP if stopped else FinishReason.LENGTH
    end = Finished("r", 0, 2, reason, tokens[-1] if stopped else None)
    results = []
    for each in (cuts, []):
        answer = Answer(tokenizer, params, return_ids=True)
        deltas = [delta for step in life(tokens, each, end) for delta in answer.take(step)]
        assert answer.done and [bool(delta.finish) for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        ids = [token for delta in deltas for token in delta.token_ids]
        spelled = [scored.token for delta in deltas for scored in delta.spelled]
        text = "".join(delta.text for delta in deltas)
        results.append((text, ids, spelled, deltas[-1].finish, deltas[-1].stop, answer.completion_tokens))
        assert answer.cached_tokens == 2 and answer.completion_tokens == len(ids)
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("code", "status", "param"),
    [
        ("pool_too_small", 400, None),
        ("too_many_choices", 400, "n"),
        ("duplicate_id", 409, None),
    ],
)
def test_what_a_refusal_means(tokenizer: Tokenizer, code: str, status: int, param: str | None) -> None:
    with pytest.raises(ApiError) as refusal:
        Answer(tokenizer, SamplingParams()).take([Refused("r", 0, code, "why")])
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (status, param, code)


@pytest.mark.parametrize("after_s", [1, 90])
def test_a_refusal_for_now_says_when_to_come_back(tokenizer: Tokenizer, after_s: int) -> None:
    with pytest.raises(ApiError) as refusal:
        Answer(tokenizer, SamplingParams()).take([Refused("r", 0, "queue_full", "why", after_s)])
    assert (refusal.value.status, refusal.value.code) == (503, "queue_full")
    assert refusal.value.headers == ((b"retry-after", b"%d" % after_s),)


def test_an_abort_that_the_client_did_not_ask_for_is_no_answer(tokenizer: Tokenizer) -> None:
    with pytest.raises(ApiError) as error:
        Answer(tokenizer, SamplingParams()).take([Finished("r", 0, 0, FinishReason.ABORT)])
    assert error.value.status == 503


@given(st.text() | st.text('a\n\r\x0b\x0c\x1c\x85\u2028\u2029\ud7ff"\\'))
def test_a_chunk_is_one_line_and_holds_its_text(text: str) -> None:
    writer = ChunkWriter({"id": "x"}, text_field=(b'"text":', b""), null_usage=False)
    for chunk in (writer.text(3, text), writer.choice({"index": 3, "text": text}, {})):
        data, *empty = chunk.decode().split("\n\n")
        assert empty == [""] and data.splitlines() == [data]
        assert json.loads(data.removeprefix("data: "))["choices"][0] | {"logprobs": 0, "finish_reason": 0} == {
            "index": 3,
            "text": text,
            "logprobs": 0,
            "finish_reason": 0,
        }


def test_logprobs_keep_tokens_of_equal_text_apart() -> None:
    class Twins:
        """A vocabulary in which all tokens have the same text."""

        def token_bytes(self, token_id: int) -> bytes:
            return b"x"

        def token_text(self, token_id: int) -> str:
            return "x"

        def is_special(self, token_id: int) -> bool:
            return False

    scored = ScoredToken(7, float("-inf"), 3, ((5, -0.5), (6, -1.0)))
    legacy = LogprobWriter(Twins()).legacy([scored], 0)
    assert legacy["top_logprobs"] == [{"x": -0.5, "token_id:6": -1.0, "token_id:7": -9999.0}]
    assert legacy["token_logprobs"] == [-9999.0]


def test_offsets_count_characters_not_bytes(tokenizer: Tokenizer) -> None:
    text = "a\u00e9\U0001f600b"
    ids = tokenizer.encode(text)
    offsets = LogprobWriter(tokenizer).offsets(ids, 10)
    assert len(ids) == 8 and offsets == [10, 11, 11, 12, 12, 12, 12, 13]
