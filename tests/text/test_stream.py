"""One code path from tokens to output: the deltas, joined, are the same however the tokens came."""

from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.sampling import SamplingParams
from octavo.text.stream import TextDelta, TextStream
from tests.text.test_detokenizer import chunks_of
from tests.text.test_stops import first_complete
from tests.text.test_tokenizer import built

TOKENIZER = built("gpt-2")
_WORDS = TOKENIZER.encode("abcab ab\n ba \U0001f60a\u00e9\u20ac caab bc")
_IDS = st.lists(st.sampled_from([*_WORDS, 1, 2]), max_size=25)
_STOPS = st.lists(
    st.sampled_from(["a", "ab", "abc", "b a", "\n", " ", "\U0001f60a", "\ufffd", "zz", "bca", "ab\n"]), max_size=3
)
_CUTS = st.lists(st.integers(0, 99), max_size=8)
_LOGPROBS = st.sampled_from([None, 0])


@dataclass
class Output:
    """All that a stream gave."""

    text: str
    num_tokens: int
    num_spelled: int
    stop: str | None


def drain(params: SamplingParams, chunks: Sequence[Sequence[int]]) -> tuple[Output, list[TextDelta]]:
    stream = TextStream(TOKENIZER, params)
    deltas = [*(stream.push(chunk) for chunk in chunks), stream.finish()]
    assert stream.stop == next((delta.stop for delta in deltas if delta.stop), None)
    output = Output(
        "".join(delta.text for delta in deltas),
        sum(delta.num_tokens for delta in deltas),
        sum(delta.num_spelled for delta in deltas),
        stream.stop,
    )
    return output, deltas


def complete(ids: list[int], skip: bool) -> str:
    """What the tokens spell, up to a last character that is not complete."""
    shown = [i for i in ids if not (skip and TOKENIZER.is_special(i))]
    return utf_8_decode(b"".join(map(TOKENIZER.token_bytes, shown)), "replace", False)[0]


@given(ids=_IDS, stops=_STOPS, cuts=_CUTS, include=st.booleans(), logprobs=_LOGPROBS, skip=st.booleans())
def test_output_does_not_depend_on_how_tokens_came(
    ids: list[int], stops: list[str], cuts: list[int], include: bool, logprobs: int | None, skip: bool
) -> None:
    params = SamplingParams(
        stop=tuple(stops), include_stop_str_in_output=include, logprobs=logprobs, skip_special_tokens=skip
    )
    output, _ = drain(params, chunks_of(ids, cuts))
    assert output == drain(params, [ids])[0] == drain(params, [[i] for i in ids])[0]
    whole = complete(ids, skip)
    found = first_complete(whole, stops)
    if found is None:
        assert output == Output(whole, len(ids), len(ids), None)
    else:
        end, stop = found
        assert (output.text, output.stop) == (whole[: end if include else end - len(stop)], stop)
        assert output.num_spelled <= output.num_tokens <= len(ids)


@given(ids=_IDS, stops=_STOPS, cuts=_CUTS)
def test_with_logprobs_tokens_spell_each_delta(ids: list[int], stops: list[str], cuts: list[int]) -> None:
    params = SamplingParams(stop=tuple(stops), logprobs=1, skip_special_tokens=False)
    output, deltas = drain(params, chunks_of(ids, cuts))
    place = 0
    for delta in deltas:
        spelled = b"".join(map(TOKENIZER.token_bytes, ids[place : place + delta.num_spelled]))
        place += delta.num_spelled
        text = spelled.decode(errors="replace")
        # where a stop string cuts within a token, the last token reaches beyond the text, and so does it where the
        # answer ends within a character; else they are equal
        if delta.stop or place == len(ids):
            assert text.startswith(delta.text.removesuffix("\ufffd"))
        else:
            assert text == delta.text
    assert place == output.num_spelled


@given(ids=_IDS, stops=_STOPS)
def test_without_logprobs_only_a_possible_stop_is_held_back(ids: list[int], stops: list[str]) -> None:
    stream = TextStream(TOKENIZER, SamplingParams(stop=tuple(stops)))
    starts = {stop[:cut] for stop in stops for cut in range(1, len(stop))}
    shown = ""
    for count, token_id in enumerate(ids, 1):
        shown += stream.push([token_id]).text
        if stream.stop is not None:
            return
        rest = TOKENIZER.decode(ids[:count]).removeprefix(shown)
        assert rest.rstrip("\ufffd") in {"", *starts}


def test_a_tail_that_began_like_a_stop_is_flushed() -> None:
    ids = TOKENIZER.encode("a lazy dog")
    output, deltas = drain(SamplingParams(stop=("dogzzzz",)), [[i] for i in ids])
    assert output == Output("a lazy dog", len(ids), len(ids), None)
    assert deltas[-1].text == "dog"


def test_a_stop_inside_a_token_and_over_tokens() -> None:
    ids = TOKENIZER.encode("The quick brown fox")
    assert drain(SamplingParams(stop="uick br"), [ids])[0].text == "The q"
    assert drain(SamplingParams(stop="uick br", include_stop_str_in_output=True), [ids])[0].text == "The quick br"


def test_spelled_are_the_tokens_that_begin_before_the_stop() -> None:
    ids = TOKENIZER.encode("The quick brown")
    texts = [TOKENIZER.token_text(i) for i in ids]
    for count in range(len(ids)):
        rest = "".join(texts[count:])
        output = drain(SamplingParams(stop=(rest,), logprobs=0), [ids])[0]
        assert (output.text, output.num_spelled, output.num_tokens) == ("".join(texts[:count]), count, len(ids))
        if len(texts[count]) > 1:  # the stop begins within this token, which so has a share in the text
            within = drain(SamplingParams(stop=(rest[1:],), logprobs=0), [ids])[0]
            assert (within.text, within.num_spelled) == ("".join(texts[:count]) + rest[0], count + 1)


def test_tokens_after_the_stop_are_not_output() -> None:
    ids = TOKENIZER.encode("abcab")
    stream = TextStream(TOKENIZER, SamplingParams(stop=(TOKENIZER.token_text(ids[0]),)))
    assert stream.push(ids) == TextDelta("", 1, 1, TOKENIZER.token_text(ids[0]))
    assert stream.push(ids) == TextDelta("", 0, 0) == stream.finish()


@pytest.mark.parametrize("stops", [(), ("zz",)])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_stop_token_counts_but_is_not_shown(stops: tuple[str, ...], logprobs: int | None) -> None:
    ids = TOKENIZER.encode("dogs")
    hidden = SamplingParams(stop=stops, logprobs=logprobs, skip_special_tokens=False)
    stream = TextStream(TOKENIZER, hidden)
    delta, end = stream.push([*ids, 2], stop_token=2), stream.finish()
    assert (delta.text + end.text, delta.num_tokens) == ("dogs", len(ids) + 1)
    assert delta.num_spelled + end.num_spelled == len(ids)


def test_a_stop_token_is_shown_on_request() -> None:
    params = SamplingParams(include_stop_str_in_output=True, skip_special_tokens=False, logprobs=0)
    stream = TextStream(TOKENIZER, params)
    delta = stream.push([*TOKENIZER.encode("dogs"), 2], stop_token=2)
    assert delta.text == "dogs<|im_end|>"
    assert delta.num_spelled == delta.num_tokens == len(TOKENIZER.encode("dogs")) + 1


def test_a_stop_string_before_the_stop_token_wins() -> None:
    ids = TOKENIZER.encode("dogs")
    stream = TextStream(TOKENIZER, SamplingParams(stop=("og",)))
    delta = stream.push([*ids, 2], stop_token=2)
    assert (delta.text, delta.stop) == ("d", "og") and delta.num_tokens <= len(ids)


def test_stop_strings_wait_for_min_tokens() -> None:
    ids = TOKENIZER.encode("ab ab ab")
    first, second = (drain(SamplingParams(stop="ab", min_tokens=n), [[i] for i in ids])[0] for n in (0, 2))
    assert first.text == "" and second.text.startswith("ab ")
    assert second.text == "ab ab "[: len(second.text)] and second.stop == "ab"


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_a_character_that_is_never_complete_is_left_out(stops: tuple[str, ...], logprobs: int | None) -> None:
    """Its tokens count all the same."""
    ids = TOKENIZER.encode("a\U0001f60a")
    assert len(ids) > 2
    for count in range(1, len(ids)):
        output, _ = drain(SamplingParams(stop=stops, logprobs=logprobs), [[i] for i in ids[:count]])
        assert (output.text, output.num_tokens, output.num_spelled) == ("a", count, count)
