"""Tokenizer: text to ids and ids to bytes, with the ids of the model's own Hugging Face tokenizer."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from octavo.models.checkpoint import Vocabulary
from octavo.text.bounds import Bound, TooLong, bound_of
from octavo.text.controls import Control, Controls
from octavo.text.detokenizer import detokenize
from octavo.text.pieces import Pieces, byte_alphabet, byte_level_bytes
from octavo.text.tables import Parts, TokenizerError, build_parts, guarded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

__all__ = ["Tokenizer", "TokenizerError", "TooLong", "build_tokenizer"]

_ELSEWHERE = "\x02"
"""A beginning that no token has in common with what follows it."""
LONG_TEXT = 1_000
"""Characters from which a text is encoded without the interpreter's lock; at a quarter of a microsecond each."""


class Tokenizer:
    """Immutable, and safe to read from many threads. Built by `build_tokenizer`."""

    def __init__(self, vocabulary: Vocabulary, parts: Parts, trusts_texts: bool = False) -> None:
        self.trusts_texts = trusts_texts
        """Does a control token that stands in a text count as one, where nobody says otherwise?"""
        self.vocab_size = parts.size
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.pieces = Pieces(self._bytes_of, parts.size)
        """token id -> its bytes: what `token_bytes` says, for loops that cannot afford a call."""
        self.shown_pieces = Pieces(self._shown_bytes_of, parts.size)
        """The same, without control tokens."""
        self._parts = parts
        self._prefix, self._suffix = _affixes(vocabulary, parts)
        self.controls = Controls(
            Control(token.text, token_id, token.lstrip, token.rstrip)
            for token_id, token in parts.added.items()
            if token.control
        )
        self._leaks = _leaks(parts)
        self.special_tokens = _special_tokens(vocabulary, self)
        """`bos_token`, `eos_token`, ... -> text: the variables of chat templates."""

    # --- text to ids

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        parse_special: bool | None = None,
        at_most: int | None = None,
    ) -> list[int]:
        """The ids of `text`.

        `add_special_tokens` puts the BOS (or EOS) that the model's own tokenizer would add, but no BOS before one that
        the text begins with. What looks like a control
        token is text unless `parse_special` (None: as the tokenizer trusts texts); added tokens that are not control
        tokens are always found.
        Raises ValueError for a lone surrogate, which no text can hold; and TooLong, at once, where it is certain that
        there would be more than `at_most` ids. Fewer may be too many, too.
        """
        self.check_length(text, at_most)
        if self.trusts_texts if parse_special is None else parse_special:
            ids = _encode(self._parts.parsing, text)
        else:
            ids = self._without_leaks(_encode(self._parts.plain, text))
        if not add_special_tokens:
            return ids
        begun = ids[: len(self._prefix)] == self._prefix
        return [*ids, *self._suffix] if begun else [*self._prefix, *ids, *self._suffix]

    def encode_guarded(self, text: str, mark: str) -> list[int]:
        """As `encode(parse_special=True)` without additions, where `mark` keeps some control tokens from being one.

        Those are text; the mark itself is not part of what is encoded.
        """
        ids: list[int] = []
        library = self._parts.plain
        for part, control in self.controls.split(text):
            if control is not None:
                ids.append(control)
            elif plain := part.replace(mark, ""):
                ids += self._without_leaks(_encode(library, plain))
            library = self._parts.continuing
        return ids

    def encode_continuing(self, text: str) -> list[int]:
        """Ids that spell exactly `text`, as in the middle of a longer one: nothing is put before its first word."""
        before = self.encode(_ELSEWHERE, add_special_tokens=False)
        ids = self.encode(_ELSEWHERE + text, add_special_tokens=False)
        rest = ids[len(before) :]
        exact = b"".join(self.shown_pieces[token] for token in rest) == text.encode()
        return rest if exact and ids[: len(before)] == before else [self._byte_ids[byte] for byte in text.encode()]

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        """byte -> the token that is just this byte."""
        return {piece[0]: token for token in range(self.vocab_size) if len(piece := self.shown_pieces[token]) == 1}

    def check_length(self, text: str, at_most: int | None) -> None:
        """Raises TooLong where this text certainly has more tokens than that. Looks at its length alone."""
        if at_most is not None and len(text) > max(at_most, LONG_TEXT) and self._bound is not None:
            self._bound.check(text, at_most)

    @cached_property
    def _bound(self) -> Bound | None:
        return bound_of(self._parts, self._bytes_of)

    def _without_leaks(self, ids: list[int]) -> list[int]:
        """Plain text may not give a control token by way of merges either: such a one is spelled out."""
        if not self._leaks or self._leaks.keys().isdisjoint(ids):
            return ids
        return [spelled for token_id in ids for spelled in self._leaks.get(token_id, (token_id,))]

    # --- ids to text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these tokens, as the beginning of a text. Bytes that are not UTF-8 become U+FFFD."""
        pieces = self.shown_pieces if skip_special_tokens else self.pieces
        return detokenize(pieces, token_ids, drop_space=self.drops_space)

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly the bytes that the token stands for; its written form for a control token; none for an unused id."""
        return self.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        r"""The token as people read it; `bytes:\xf0\x9f` for a part of a character."""
        data = self.pieces[token_id]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def is_special(self, token_id: int) -> bool:
        """Is it a control token: one that `skip_special_tokens` hides?"""
        token = self._parts.added.get(token_id)
        return token is not None and token.control

    @property
    def drops_space(self) -> bool:
        """Does a decoded text begin without the space that the vocabulary puts before its first word?"""
        return self._parts.drops_space

    @property
    def adds_bos(self) -> bool:
        """Does `encode` put the BOS before every text?"""
        return self.bos_token_id is not None and self.bos_token_id in self._prefix

    def _bytes_of(self, token_id: int) -> bytes:
        added = self._parts.added.get(token_id)
        token = added.text if added is not None else self._parts.token(token_id)
        if token is None:
            return b""
        if added is not None and self._parts.to_bytes is byte_level_bytes:
            return token.encode()
        return self._parts.to_bytes(token)

    def _shown_bytes_of(self, token_id: int) -> bytes:
        return b"" if self.is_special(token_id) else self._bytes_of(token_id)


def build_tokenizer(vocabulary: Vocabulary, *, trusts_texts: bool = False) -> Tokenizer:
    """A tokenizer whose ids are those of the model's Hugging Face tokenizer.

    One that `trusts_texts` takes control tokens that stand in texts and messages for what they seem to be.

    Raises TokenizerError where the vocabulary is broken, or of a kind that is not known.
    """
    return guarded(lambda: Tokenizer(vocabulary, build_parts(vocabulary), trusts_texts), "vocabulary")


def _encode(library: "Library", text: str) -> list[int]:
    """The ids, and nothing else. Other threads run meanwhile where it is long: of the library's calls, only those for
    batches give the interpreter's lock back."""
    try:
        if len(text) < LONG_TEXT:
            return library.encode(text, add_special_tokens=False).ids
        return library.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except TypeError:
        check_text(text)
        raise


def check_text(text: str) -> None:
    """Raises ValueError where `text` holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"the text has a lone surrogate (U+{code:04X}) at character {error.start}") from None


def _affixes(vocabulary: Vocabulary, parts: Parts) -> tuple[list[int], list[int]]:
    """What `add_special_tokens` puts before and after a text."""
    prefix, suffix = _processed_affixes(parts) if vocabulary.tokenizer_json is not None else ([], [])
    if vocabulary.add_bos and vocabulary.bos_token_id is not None and vocabulary.bos_token_id not in prefix:
        prefix = [vocabulary.bos_token_id, *prefix]
    if vocabulary.add_eos and vocabulary.eos_token_ids and not suffix:
        suffix = [vocabulary.eos_token_ids[0]]
    return prefix, suffix


def _processed_affixes(parts: Parts) -> tuple[list[int], list[int]]:
    """What the post-processor of a `tokenizer.json` adds, found by looking at what it does to one letter."""
    bare = parts.parsing.encode("a", add_special_tokens=False).ids
    full = parts.parsing.encode("a", add_special_tokens=True).ids
    extra = len(full) - len(bare)
    before = next(i for i in range(extra + 1) if full[i : i + len(bare)] == bare)
    return full[:before], full[before + len(bare) :]


def _leaks(parts: Parts) -> dict[int, tuple[int, ...]]:
    """Control tokens that merges alone would make of their text -> the ids that spell them instead."""
    return {
        token_id: _spelling(parts, token.text)
        for token_id, token in parts.added.items()
        if token.control and token_id in _encode(parts.plain, token.text)
    }


def _spelling(parts: Parts, text: str) -> tuple[int, ...]:
    """The text as the vocabulary's smallest tokens: characters or bytes. What it has no token for is left out."""
    by_byte = {byte: character for character, byte in byte_alphabet().items()}
    names: list[str] = []
    for character in text:
        if parts.to_bytes is byte_level_bytes:
            names += [by_byte[byte] for byte in character.encode()]
        elif parts.plain.token_to_id(character) is not None:
            names.append(character)
        else:
            names += [f"<0x{byte:02X}>" for byte in character.encode()]
    ids = [parts.plain.token_to_id(name) for name in names]
    return tuple(token_id for token_id in ids if token_id is not None)


def _special_tokens(vocabulary: Vocabulary, tokenizer: Tokenizer) -> dict[str, str]:
    named = {
        "bos_token": vocabulary.bos_token_id,
        "eos_token": vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else None,
        "unk_token": vocabulary.unk_token_id,
        "pad_token": vocabulary.pad_token_id,
    }
    by_id = {name: tokenizer.token_bytes(i).decode(errors="replace") for name, i in named.items() if i is not None}
    return by_id | dict(vocabulary.special_tokens)
