"""Bad words become the token sequences that spell them at the beginning of a text and behind a space."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.sampling import SamplingParams
from octavo.text.bad_words import resolved, sequences
from tests.text.test_tokenizer import built, sentencepiece

TOKENIZER = built("smollm")


def test_a_word_is_spelled_in_two_ways() -> None:
    both = [tuple(TOKENIZER.encode(form, add_special_tokens=False)) for form in ("dog", " dog")]
    assert list(sequences(["dog"], TOKENIZER)) == list(sequences([" dog", "dog"], TOKENIZER)) == both
    params = resolved(SamplingParams(bad_words=["dog"], temperature=0), TOKENIZER)
    assert (params.bad_words_token_ids, params.bad_words, params.temperature) == (tuple(both), ("dog",), 0)
    assert resolved(SamplingParams(), TOKENIZER) == SamplingParams()


def test_white_space_alone_is_a_word_too() -> None:
    assert tuple(TOKENIZER.encode("\n\n", add_special_tokens=False)) in sequences(["\n\n"], TOKENIZER)


@given(st.lists(st.text(min_size=1, max_size=8), max_size=5))
def test_any_words_have_sequences_of_ids(words: list[str]) -> None:
    for tokenizer in (TOKENIZER, sentencepiece()):
        found = list(sequences(words, tokenizer))
        assert len(set(found)) == len(found) <= 2 * len(words)
        assert all(ids and min(ids) >= 0 and max(ids) < tokenizer.vocab_size for ids in found)
