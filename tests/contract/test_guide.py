"""The contract of core.ports.Guide, on all who claim it. Each is made for the same words of digits."""

from collections.abc import Callable

import numpy as np
import pytest

from octavo.core.ports import Guide
from octavo.core.structured import StructuredOutputsParams
from octavo.models.checkpoint import Vocabulary
from octavo.text.guide import Compiler
from octavo.text.tokenizer import build_tokenizer
from tests.core.words import one_of, word_guide

VOCAB_SIZE = 13
"""Not a multiple of 8, and more than there are tokens: models pad."""
EOS = 10
Make = Callable[..., Guide]


def _by_llguidance() -> Make:
    digits = Vocabulary(kind="gpt2", pre="gpt-2", tokens=(*"0123456789", "<eos>"), token_types=(1,) * 10 + (3,))
    compiler = Compiler(build_tokenizer(digits), VOCAB_SIZE)
    return lambda *words: compiler.compile(StructuredOutputsParams(choice=words).output())


MAKERS: dict[str, Make] = {
    "words": lambda *words: word_guide(one_of(*words), VOCAB_SIZE),
    "llguidance": _by_llguidance(),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


def allowed(guide: Guide, ends: tuple[int, ...] = ()) -> set[int]:
    mask = guide.mask(ends)
    assert len(mask) == (VOCAB_SIZE + 7) // 8
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    assert not bits[VOCAB_SIZE:].any()
    return set(np.flatnonzero(bits).tolist())


def walked(guide: Guide, word: str) -> Guide:
    for digit in word:
        assert int(digit) in allowed(guide)
        guide.accept(int(digit))
        assert guide.fault is None
    return guide


def test_it_is_one(make: Make):
    assert isinstance(make("1", "2"), Guide)


def test_the_mask_has_what_may_come_next(make: Make):
    guide = make("123", "145", "9")
    assert allowed(guide) == {1, 9}
    assert allowed(walked(guide, "1")) == {2, 4}
    assert allowed(walked(guide, "4")) == {5}


def test_a_word_that_nothing_follows_is_complete(make: Make):
    guide = walked(make("123", "14"), "12")
    assert not guide.complete
    assert walked(guide, "3").complete


def test_ends_are_allowed_where_the_text_may_end_and_only_there(make: Make):
    guide = make("1", "123")
    assert allowed(guide, (EOS, 12)) == {1}
    walked(guide, "1")
    assert not guide.complete
    assert allowed(guide) == {2}
    assert allowed(guide, (EOS, 12)) == {2, EOS, 12}
    assert allowed(guide) == {2}, "a mask is not changed by what another call asked for"
    assert allowed(walked(guide, "2"), (EOS,)) == {3}


@pytest.mark.parametrize("token", [0, 3, EOS, VOCAB_SIZE - 1])
def test_a_token_that_may_not_come_is_a_fault(make: Make, token: int):
    guide = walked(make("12"), "1")
    guide.accept(token)
    assert guide.fault and not guide.complete


def test_a_fork_goes_its_own_way(make: Make):
    guide = walked(make("123", "145"), "1")
    twin = guide.fork()
    walked(guide, "2")
    assert (allowed(guide), allowed(twin)) == ({3}, {2, 4})
    walked(twin, "45")
    assert twin.complete and not guide.complete
    broken = guide.fork()
    broken.accept(9)
    assert broken.fault and guide.fault is None and allowed(guide) == {3}


def test_the_same_tokens_lead_to_the_same_state(make: Make):
    words = ("1", "12", "1234", "15", "9876")
    for word in words:
        first, second = walked(make(*words), word), walked(make(*words).fork(), word)
        assert (first.complete, first.fault) == (second.complete, second.fault)
        if not first.complete:
            assert allowed(first, (EOS,)) == allowed(second, (EOS,))
