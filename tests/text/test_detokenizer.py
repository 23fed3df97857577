"""Tokens become text as they come, and the joined text is what decoding all at once gives."""

from codecs import getincrementaldecoder
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from octavo.text.detokenizer import Detokenizer, detokenize
from octavo.text.pieces import Pieces
from tests.text.test_tokenizer import built, sentencepiece

# Alphabets of bytes in which characters of all lengths, broken in all ways, are likely.
_BYTES = st.sampled_from(b"A \x80\xbf\xc3\xa9\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x8a\xf4\xff")
_PIECES = st.lists(st.lists(_BYTES, max_size=5).map(bytes), min_size=1, max_size=12)
_CUTS = st.lists(st.integers(0, 99), max_size=8)


def pieces_of(table: list[bytes]) -> Pieces:
    return Pieces(table.__getitem__, len(table))


def chunks_of(items: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(items), *(cut % (len(items) + 1) for cut in cuts)})
    return [items[a:b] for a, b in pairwise(edges)]


def whole(detokenizer: Detokenizer, text: str, decoded: str) -> bool:
    """Is the text all that decoding at once gives, but for a character that is not complete?"""
    return decoded.startswith(text) and decoded[len(text) :] in (
        ("\ufffd", "\ufffd\ufffd") if detokenizer.pending else ("",)
    )


@given(table=_PIECES, ids=st.lists(st.integers(0, 11), max_size=20), cuts=_CUTS, drop=st.booleans())
def test_pieces_joined_are_the_whole(table: list[bytes], ids: list[int], cuts: list[int], drop: bool) -> None:
    ids = [i % len(table) for i in ids]
    pieces = pieces_of(table)
    incremental = Detokenizer(pieces, drop_space=drop)
    text = "".join(incremental.push(chunk) for chunk in chunks_of(ids, cuts))
    decoded = b"".join(table[i] for i in ids).decode(errors="replace")
    assert detokenize(pieces, ids, drop_space=drop) == (decoded.removeprefix(" ") if drop else decoded)
    assert whole(incremental, text, detokenize(pieces, ids, drop_space=drop))


@given(data=st.lists(_BYTES, max_size=12).map(bytes))
def test_no_more_is_held_back_than_the_beginning_of_a_character(data: bytes) -> None:
    detokenizer = Detokenizer(pieces_of([bytes([byte]) for byte in range(256)]))
    text = "".join(detokenizer.push([byte]) for byte in data)
    held = getincrementaldecoder("utf-8")("replace")
    assert text == held.decode(data)
    assert detokenizer.pending == (held.getstate()[0] != b"")
    if text.endswith("\U0001f60a"):
        assert not detokenizer.pending


@given(ids=st.lists(st.integers(0, 410), max_size=30), cuts=_CUTS, skip=st.booleans())
def test_byte_level_streams_equal_decode(ids: list[int], cuts: list[int], skip: bool) -> None:
    tokenizer = built("smollm")
    detokenizer = Detokenizer(tokenizer.shown_pieces if skip else tokenizer.pieces)
    text = "".join(map(detokenizer.push, chunks_of(ids, cuts)))
    assert whole(detokenizer, text, tokenizer.decode(ids, skip_special_tokens=skip))


@given(ids=st.lists(st.integers(0, 400), max_size=30), cuts=_CUTS, skip=st.booleans())
def test_sentencepiece_streams_equal_decode(ids: list[int], cuts: list[int], skip: bool) -> None:
    tokenizer = sentencepiece()
    detokenizer = Detokenizer(tokenizer.shown_pieces if skip else tokenizer.pieces, drop_space=tokenizer.drops_space)
    text = "".join(map(detokenizer.push, chunks_of(ids, cuts)))
    assert whole(detokenizer, text, tokenizer.decode(ids, skip_special_tokens=skip))


def test_an_answer_keeps_its_first_space() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("The quick", add_special_tokens=False)
    assert Detokenizer(tokenizer.shown_pieces).push(ids) == " The quick"
    assert tokenizer.decode(ids) == "The quick"


def test_one_space_is_dropped_and_only_at_the_beginning() -> None:
    pieces = pieces_of([b"", b" ", b" a"])
    start = Detokenizer(pieces, drop_space=True)
    assert [start.push([token_id]) for token_id in (0, 1, 2, 2)] == ["", "", " a", " a"]
    assert detokenize(pieces, [0, 1, 2, 2], drop_space=True) == " a a"
