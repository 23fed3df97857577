"""Bad words: texts that an answer must not have, as the token sequences that are kept from being generated whole."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from octavo.core.sampling import SamplingParams


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


def resolved(params: SamplingParams, tokenizer: Encoder) -> SamplingParams:
    """The parameters with the sequences of their bad words, which the engine knows nothing else of."""
    if not params.bad_words:
        return params
    return replace(params, bad_words_token_ids=tuple(sequences(params.bad_words, tokenizer)))


def sequences(words: Iterable[str], tokenizer: Encoder) -> Iterable[tuple[int, ...]]:
    """Each word as it is spelled at the beginning of a text and behind a space, as vLLM has them.

    Other spellings of the same text, by other tokens, are not among them. Raises ValueError for lone surrogates.
    """
    forms = (form for word in words for form in (word.lstrip() or word, f" {word.lstrip()}"))
    spelled = (tuple(tokenizer.encode(form, add_special_tokens=False)) for form in forms)
    return dict.fromkeys(ids for ids in spelled if ids)
