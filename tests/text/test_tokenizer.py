"""Ids equal those of the models' published tokenizers; bytes are exact; control tokens stay where they belong."""

import json
import sys
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import pre_tokenizers

from octavo.loaders import open_checkpoint
from octavo.models.checkpoint import Vocabulary
from octavo.text.pieces import byte_alphabet
from octavo.text.splits import SPLITS
from octavo.text.tables import merges_by_score
from octavo.text.tokenizer import LONG_TEXT, Tokenizer, TokenizerError, TooLong, build_tokenizer
from tests.text.strings import ODD, texts
from tests.text.vocabularies import (
    CONTROLS,
    GOLDEN,
    PUBLISHED,
    USER_DEFINED,
    WITH_BOS,
    small_byte_level,
    small_sentencepiece,
    tokenizer_json,
)

KINDS = sorted(PUBLISHED)


@cache
def built(pre: str) -> Tokenizer:
    return build_tokenizer(small_byte_level(pre).tables)


@cache
def sentencepiece() -> Tokenizer:
    return build_tokenizer(small_sentencepiece().tables)


@pytest.fixture(scope="module")
def vocabulary(default_model: Path) -> Vocabulary:
    return open_checkpoint(default_model).vocabulary


@pytest.fixture(scope="module")
def smollm(vocabulary: Vocabulary) -> Tokenizer:
    return build_tokenizer(vocabulary)


# --- the default model


def test_raw_golden_prompts_have_the_golden_ids(smollm: Tokenizer) -> None:
    raw = [prompt for prompt in GOLDEN["prompts"] if prompt["kind"] == "raw"]
    assert len(raw) == 10
    for prompt in raw:
        assert smollm.encode(prompt["text"]) == prompt["ids"]


def test_golden_answers_decode_to_the_golden_text(smollm: Tokenizer) -> None:
    for answer in GOLDEN["answers"]:
        assert smollm.decode(answer["ids"], skip_special_tokens=False) == answer["text"]


def test_the_published_example_has_the_published_ids(smollm: Tokenizer) -> None:
    text = "Hello world! Caf\u00e9 d\u00e9j\u00e0 vu \u2014 123 \U0001f60a"
    ids = [19556, 905, 17, 48031, 2756, 32564, 90, 16739, 386, 101, 1841, 216, 33, 34, 35, 40303, 228]
    assert smollm.encode(text) == ids


def test_a_long_text_cut_as_gpt2_does_gives_back_its_ids(vocabulary: Vocabulary) -> None:
    """The golden corpus was encoded with GPT-2's pattern alone (no single digits), over the same tables."""
    tokenizer = build_tokenizer(replace(vocabulary, pre="gpt-2"))
    ids = GOLDEN["corpus_ids"]
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_the_default_vocabulary_encodes_as_its_tokenizer_json_would(vocabulary: Vocabulary, smollm: Tokenizer) -> None:
    controls = {token: True for token, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True) if kind == 3}
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocabulary.tokens)}}
    published = tokenizer_json(
        model | {"merges": list(vocabulary.merges)},
        added=controls,
        pre_tokenizer=PUBLISHED["smollm"]["pre_tokenizer"],
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )
    other = build_tokenizer(Vocabulary(tokenizer_json=published))
    for text in ODD:
        for parse_special in (False, True):
            assert smollm.encode(text, parse_special=parse_special) == other.encode(text, parse_special=parse_special)


# --- kinds, against the `tokenizers` library reading the published description


@pytest.mark.parametrize("pre", KINDS)
@given(text=texts)
def test_tables_give_the_ids_of_the_published_tokenizer(pre: str, text: str) -> None:
    assert built(pre).encode(text, parse_special=True) == small_byte_level(pre).library.encode(text).ids


@pytest.mark.parametrize("pre", KINDS)
@given(text=texts)
def test_byte_level_text_comes_back(pre: str, text: str) -> None:
    tokenizer = built(pre)
    wanted = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == wanted


@pytest.mark.parametrize("pre", KINDS)
@given(text=texts)
def test_text_alone_never_gives_a_control_token(pre: str, text: str) -> None:
    tokenizer = built(pre)
    assert not any(map(tokenizer.is_special, tokenizer.encode(text)))


@given(text=texts)
def test_sentencepiece_tables_give_the_ids_of_the_published_tokenizer(text: str) -> None:
    published = small_sentencepiece().library.encode(text).ids
    one_bos = published[1:] if published[:2] == [1, 1] else published
    assert sentencepiece().encode(text, parse_special=True) == one_bos
    assert not any(map(sentencepiece().is_special, sentencepiece().encode(text, add_special_tokens=False)))


@given(text=texts)
def test_sentencepiece_text_comes_back_without_its_prefix(text: str) -> None:
    ids = sentencepiece().encode(text)
    assert sentencepiece().decode(ids) == text.replace("\u2581", " ")
    assert sentencepiece().decode(ids) == small_sentencepiece().library.decode(ids)


@given(text=texts)
def test_both_forms_of_a_vocabulary_are_one_tokenizer(text: str) -> None:
    from_json = build_tokenizer(Vocabulary(tokenizer_json=small_sentencepiece().published, bos_token_id=1))
    for parse_special in (False, True):
        assert from_json.encode(text, parse_special=parse_special) == sentencepiece().encode(
            text, parse_special=parse_special
        )
    ids = sentencepiece().encode(text)
    assert [from_json.token_bytes(i) for i in ids] == [sentencepiece().token_bytes(i) for i in ids]
    assert from_json.decode(ids) == sentencepiece().decode(ids)


@pytest.mark.parametrize(("scores", "wanted"), [((2.0, 1.0), ["ab", "c"]), ((1.0, 2.0), ["a", "bc"])])
def test_the_better_token_is_made_first(scores: tuple[float, float], wanted: list[str]) -> None:
    tokens = ("<unk>", "a", "b", "c", "ab", "bc")
    vocabulary = Vocabulary(
        kind="llama",
        tokens=tokens,
        token_types=(2, 1, 1, 1, 1, 1),
        scores=(0.0, 0.0, 0.0, 0.0, *scores),
        unk_token_id=0,
        add_space_prefix=False,
    )
    assert [tokens[token_id] for token_id in build_tokenizer(vocabulary).encode("abc")] == wanted


def metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@given(text=texts.filter(lambda text: "\ufdd0" not in text))
def test_space_prefixes_of_all_schemes_are_the_librarys(scheme: str, text: str) -> None:
    """Also in the slower way of encoding, which takes a text part by part."""
    whole = json.loads(small_sentencepiece().published) | {"normalizer": None, "pre_tokenizer": metaspace(scheme)}
    source = json.dumps(whole)
    tokenizer = build_tokenizer(Vocabulary(tokenizer_json=source.encode(), bos_token_id=1))
    ids = Library.from_str(source).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, parse_special=True, add_special_tokens=False) == ids
    assert tokenizer.encode_guarded(text, "\ufdd0") == ids


def test_no_space_prefix_where_the_file_says_so() -> None:
    tokenizer = build_tokenizer(replace(small_sentencepiece().tables, add_space_prefix=False, add_bos=False))
    assert tokenizer.token_bytes(tokenizer.encode("The")[0])[:1] == b"T"
    assert tokenizer.decode(tokenizer.encode(" The")) == " The"


# --- control tokens and added tokens


def test_control_tokens_are_found_only_on_request() -> None:
    tokenizer = built("smollm")
    for token_id, text in enumerate(CONTROLS):
        assert tokenizer.encode(text, parse_special=True) == [token_id]
        assert token_id not in tokenizer.encode(text)
        assert tokenizer.decode([token_id]) == ""
        assert tokenizer.decode([token_id], skip_special_tokens=False) == text


def test_user_defined_tokens_are_always_found_and_shown() -> None:
    tokenizer = built("smollm")
    token_id = tokenizer.vocab_size - 1
    assert tokenizer.encode(f"a{USER_DEFINED}b")[1] == token_id
    assert tokenizer.decode([token_id]) == USER_DEFINED
    assert not tokenizer.is_special(token_id)


def test_merges_cannot_make_a_control_token_of_text() -> None:
    """A vocabulary whose merges lead to its own control token, as some published ones do."""
    small = small_sentencepiece().tables
    more = ("<", "/", ">", "</", "s>")
    tables = replace(
        small,
        tokens=small.tokens + more,
        token_types=small.token_types + (1,) * len(more),
        scores=small.scores + (5.0,) * len(more),
    )
    ids = {token: index for index, token in enumerate(tables.tokens)}
    assert ("</", "s>") in merges_by_score(ids, tables.scores)
    tokenizer = build_tokenizer(tables)
    got = tokenizer.encode("x</s>y", add_special_tokens=False)
    assert got[-5:-1] == [ids[character] for character in "</s>"]
    assert tokenizer.decode(got) == "x</s>y"
    assert 2 in tokenizer.encode("x</s>y", parse_special=True)
    assert tokenizer.encode_guarded("x<\ufdd0/s>y", "\ufdd0") == got


def test_bos_and_eos_are_added_as_the_vocabulary_says() -> None:
    tables = replace(small_byte_level("smollm").tables, add_bos=True, add_eos=True)
    tokenizer = build_tokenizer(tables)
    assert tokenizer.encode("hello") == [1, *tokenizer.encode("hello", add_special_tokens=False), 2]
    assert tokenizer.adds_bos and not built("smollm").adds_bos


def test_a_text_that_begins_with_the_bos_gets_no_second_one() -> None:
    """lm_eval and templates write it themselves; a tokenizer that adds one would make two, and shift every token."""
    tokenizer = build_tokenizer(replace(small_byte_level("smollm").tables, add_bos=True))
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("<|im_start|>hello", parse_special=True) == tokenizer.encode("hello") == [1, *hello]
    assert tokenizer.encode("<|im_start|><|im_start|>hello", parse_special=True) == [1, 1, *hello]
    assert tokenizer.encode("<|im_start|>hello").count(1) == 1, "the text of one, after the one that is added"
    assert tokenizer.encode("", parse_special=True) == tokenizer.encode("<|im_start|>", parse_special=True) == [1]


def test_what_a_post_processor_adds_is_found() -> None:
    tokenizer = build_tokenizer(Vocabulary(tokenizer_json=small_sentencepiece().published, bos_token_id=1))
    assert WITH_BOS["special_tokens"]["<s>"]["ids"] == [1]
    assert tokenizer.encode("The")[0] == 1 and tokenizer.adds_bos
    assert tokenizer.encode("") == [1]


# --- bytes


def test_the_byte_alphabet_is_a_bijection_known_to_the_library() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


@given(text=texts)
def test_token_bytes_joined_are_the_text(text: str) -> None:
    tokenizer = built("gpt-2")
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_byte_tokens_stand_for_their_byte() -> None:
    assert [sentencepiece().token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_token_text_is_readable() -> None:
    tokenizer = built("gpt-2")
    fox = tokenizer.encode(" \U0001f98a")
    assert all("\u0120" not in tokenizer.token_text(i) for i in fox)
    assert sentencepiece().token_text(3 + 0xF0) == r"bytes:\xf0"
    assert sentencepiece().token_text(3 + 0x41) == "A"


def test_ids_without_a_token() -> None:
    tables = small_byte_level("smollm").tables
    tokenizer = build_tokenizer(replace(tables, token_types=(*tables.token_types[:-1], 5)))
    for token_id in (tokenizer.vocab_size - 1, tokenizer.vocab_size, 10**9):  # unused; padded models have such ids
        assert tokenizer.token_bytes(token_id) == b"" and tokenizer.decode([token_id]) == ""
    with pytest.raises(ValueError, match="-1 is negative"):
        tokenizer.decode([-1])


# --- what goes wrong


@given(before=st.text(max_size=5), code=st.integers(0xD800, 0xDFFF))
def test_lone_surrogates_are_named(before: str, code: int) -> None:
    with pytest.raises(ValueError, match=rf"lone surrogate \(U\+{code:04X}\) at character {len(before)}"):
        built("smollm").encode(before + chr(code))


def test_unknown_kinds_are_refused_with_those_that_are_known() -> None:
    tables = small_byte_level("smollm").tables
    with pytest.raises(TokenizerError, match=r"pre-tokenizer 'nonsense'.*known: .*llama-bpe.*qwen2.*smollm"):
        build_tokenizer(replace(tables, pre="nonsense"))
    with pytest.raises(TokenizerError, match="kind 'bert' is not supported; known: gpt2, llama"):
        build_tokenizer(replace(tables, kind="bert"))


def broken_vocabularies() -> dict[str, Vocabulary]:
    tables, pieces = small_byte_level("smollm").tables, small_sentencepiece().tables
    wordpiece = tokenizer_json(
        {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        added={},
        decoder={"type": "WordPiece", "prefix": "#", "cleanup": True},
    )
    return {
        "no tokens": replace(tables, tokens=()),
        "merge of unknown tokens": replace(tables, merges=("no such",)),
        "merge of one": replace(tables, merges=("one",)),
        "too few types": replace(tables, token_types=(1,)),
        "too few scores": replace(pieces, scores=(1.0,)),
        "unknown token out of range": replace(pieces, unk_token_id=10**6),
        "not json": Vocabulary(tokenizer_json=b"{"),
        "not utf-8": Vocabulary(tokenizer_json=b"\xff"),
        "other json": Vocabulary(tokenizer_json=json.dumps({"version": "1.0"}).encode()),
        "decoder of another kind": Vocabulary(tokenizer_json=wordpiece),
    }


@pytest.mark.parametrize("name", broken_vocabularies())
def test_broken_vocabularies_are_one_kind_of_error(name: str) -> None:
    with pytest.raises(TokenizerError):
        build_tokenizer(broken_vocabularies()[name])


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a JSON value, but of a long list or object only to the first few."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in islice(items, 12):
        yield from places_in(item, (*path, key))


def changed(source: bytes, changes: list[tuple[tuple[Any, ...], Any]]) -> bytes:
    """The JSON with other values at these places, as far as they are still there."""
    whole = json.loads(source)
    for path, value in changes:
        holder = whole
        with suppress(KeyError, IndexError, TypeError):
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
    return json.dumps(whole).encode()


_PLACES = st.sampled_from(list(places_in(json.loads(small_sentencepiece().published))))
_VALUES = st.sampled_from([None, 0, -1, 10**12, "", "a", [], {}, True, 1.5, "\u2581", {"type": "ByteLevel"}])


@given(changes=st.lists(st.tuples(_PLACES, _VALUES), min_size=1, max_size=3))
def test_a_damaged_tokenizer_json_works_or_is_one_kind_of_error(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    source = changed(small_sentencepiece().published, changes)
    try:
        tokenizer = build_tokenizer(Vocabulary(tokenizer_json=source, bos_token_id=1))
    except TokenizerError as error:
        assert str(error)
    else:
        tokenizer.decode(tokenizer.encode("The </s> fox", parse_special=True))


_TOKENS = st.lists(st.text("ab\u0120<>", max_size=3), min_size=1, max_size=8).map(tuple)


@given(
    kind=st.sampled_from(["gpt2", "llama"]),
    tokens=_TOKENS,
    types=st.lists(st.integers(0, 7), max_size=8).map(tuple),
    scores=st.lists(st.floats(-5, 5), max_size=8).map(tuple),
    merges=st.lists(st.text("ab ", max_size=4), max_size=3).map(tuple),
    unknown=st.none() | st.integers(-2, 9),
)
def test_damaged_tables_work_or_are_one_kind_of_error(
    kind: str, tokens: Any, types: Any, scores: Any, merges: Any, unknown: int | None
) -> None:
    vocabulary = Vocabulary(
        kind=kind, pre="smollm", tokens=tokens, token_types=types, scores=scores, merges=merges, unk_token_id=unknown
    )
    try:
        tokenizer = build_tokenizer(vocabulary)
    except TokenizerError as error:
        assert str(error)
    else:
        assert all(0 <= token_id < len(tokens) for token_id in tokenizer.encode("ab <a> \u0120b", parse_special=True))


def test_every_kind_in_the_table_builds() -> None:
    tables = small_byte_level("smollm").tables
    for pre in SPLITS:
        tokenizer = build_tokenizer(replace(tables, pre=pre))
        assert tokenizer.decode(tokenizer.encode("Don't 123 caf\u00e9\n\n x")) == "Don't 123 caf\u00e9\n\n x"


@pytest.mark.parametrize("parse_special", [False, True])
def test_a_long_text_is_encoded_while_other_threads_run(parse_special: bool) -> None:
    """Nobody is interrupted here, so another thread runs only if the lock is given back."""
    tokenizer, text = built("smollm"), "hello world " * 50_000
    gate, ran = threading.Lock(), list[bool]()
    gate.acquire()
    other = threading.Thread(target=lambda: ran.append(gate.acquire()))
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        gate.release()
        tokenizer.encode(text, parse_special=parse_special)
        ran_meanwhile = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert ran_meanwhile


@pytest.mark.parametrize("pre", KINDS)
@given(text=texts)
def test_a_long_text_has_the_ids_of_the_published_tokenizer(pre: str, text: str) -> None:
    long = text + " the ring" * (LONG_TEXT // 9 + 1)
    assert built(pre).encode(long, parse_special=True) == small_byte_level(pre).library.encode(long).ids


def all_built() -> dict[str, Tokenizer]:
    return {pre: built(pre) for pre in KINDS} | {"llama": sentencepiece()}


@pytest.mark.parametrize("kind", [*KINDS, "llama"])
@given(text=texts, times=st.integers(1, 400))
def test_no_text_that_would_fit_is_refused_for_its_length(kind: str, text: str, times: int) -> None:
    tokenizer = all_built()[kind]
    ids = tokenizer.encode(text * times)
    assert tokenizer.encode(text * times, at_most=len(ids)) == ids


@pytest.mark.parametrize("kind", [*KINDS, "llama"])
@pytest.mark.parametrize(
    "character", ["\u212a", "\u1100\u1161\u11a8", "\u2581", "\U0001f600", "\u03b9\u0308\u0301", " "]
)
def test_characters_that_shrink_are_reckoned_with(kind: str, character: str) -> None:
    tokenizer, text = all_built()[kind], character * 3_000
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text, at_most=len(ids)) == ids


def test_characters_that_the_vocabulary_cannot_spell_do_not_count(smollm: Tokenizer) -> None:
    assert smollm.encode("\x04" * 10**6 + "a", at_most=1) == smollm.encode("a")
    with pytest.raises(TooLong):
        smollm.encode("\x04a" * 10**6, at_most=1)


@pytest.mark.parametrize("kind", [*KINDS, "llama"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_looked_at(kind: str) -> None:
    """It could not be encoded: it has a lone surrogate."""
    text = "\ud800" * 10**6
    with pytest.raises(TooLong, match=r"at least [\d,]+ tokens, more than the context of 100$"):
        all_built()[kind].encode(text, at_most=100)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"byte_fallback": False}},
    ],
    ids=["strip", "replace", "whitespace", "no bytes"],
)
def test_where_text_may_vanish_no_length_is_too_long(change: dict[str, Any]) -> None:
    description = json.loads(small_sentencepiece().published)
    for part, fields in change.items():
        description[part] = {**description[part], **fields} if part == "model" else fields
    tokenizer = build_tokenizer(Vocabulary(tokenizer_json=json.dumps(description).encode()))
    tokenizer.check_length(" " * 10**6, 1)


def test_many_threads_may_read_one_tokenizer() -> None:
    tokenizer = build_tokenizer(small_byte_level("llama-bpe").tables)
    inputs = [text * 5 for text in ODD] * 8
    wanted = [tokenizer.encode(text, parse_special=bool(i % 2)) for i, text in enumerate(inputs)]
    with ThreadPoolExecutor(4) as pool:
        got = pool.map(lambda item: tokenizer.encode(item[1], parse_special=bool(item[0] % 2)), enumerate(inputs))
        assert list(got) == wanted
