"""How much text one token can stand for, so that a text that is far too long is refused before it is encoded."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.text.pieces import byte_alphabet, byte_level_bytes
from octavo.text.tables import Parts, state_of

_COMPOSED = 6
"""NFC makes one character of at most four, of at most 4 bytes each: 12 bytes become 2, or 16 become 3."""
_SPACE_MARKS = 3
"""SentencePiece writes a space, 1 byte, for the mark that stands for it, 3 bytes."""
_INNER_BYTES = range(0x80, 0xC0)
"""Each character beyond ASCII has one in its UTF-8 form."""
_NEUTRAL_SPLITS = frozenset({"ByteLevel", "Digits", "Metaspace", "Sequence", "Split"})


class TooLong(ValueError):
    """A text that cannot have as few tokens as it may; it was not encoded."""

    def __init__(self, least: int, at_most: int) -> None:
        super().__init__(f"the prompt has at least {least:,} tokens, more than the context of {at_most:,}")
        self.least = least
        self.at_most = at_most


@dataclass(frozen=True, slots=True)
class Bound:
    """A text has at least as many tokens as the characters that count, divided by `most`, rounded up."""

    most: int
    silent: frozenset[str]
    """Characters that do not count: the vocabulary cannot spell them, and the library leaves them out."""

    def check(self, text: str, at_most: int) -> None:
        """Raises TooLong where the text has more tokens than that, as far as its length can tell."""
        if len(text) > self.most * at_most:
            heard = len(text) - sum(map(text.count, self.silent))
            if heard > self.most * at_most:
                raise TooLong(-(-heard // self.most), at_most)


def bound_of(parts: Parts, token_bytes: Callable[[int], bytes]) -> Bound | None:
    """None where there may be text of any length that few tokens stand for.

    Known for vocabularies with a token for each byte that a character cannot do without, where nothing takes text away
    before it becomes tokens.
    """
    library = parts.parsing
    splits = list(_steps(state_of(library.pre_tokenizer), "pretokenizers"))
    factors = [_normalized(step) for step in _steps(state_of(library.normalizer), "normalizers")]
    strips = any(token.lstrip or token.rstrip for token in parts.added.values())
    silent = _silent(parts, splits)
    if strips or silent is None or None in factors or not all(map(_keeps_all, splits)):
        return None
    marks = 1 if parts.to_bytes is byte_level_bytes else _SPACE_MARKS
    factor = max((factor for factor in factors if factor), default=1) * marks
    return Bound(factor * max(len(token_bytes(token_id)) for token_id in range(parts.size)), silent)


def _steps(state: Mapping[str, Any], inner: str) -> Iterator[Mapping[str, Any]]:
    if state.get("type") == "Sequence":
        for step in state[inner]:
            yield from _steps(step, inner)
    elif state:
        yield state


def _normalized(step: Mapping[str, Any]) -> int | None:
    match step:
        case {"type": "NFC"}:
            return _COMPOSED
        case {"type": "Prepend"} | {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
            return 1
    return None


def _keeps_all(split: Mapping[str, Any]) -> bool:
    return split.get("type") in _NEUTRAL_SPLITS and split.get("behavior") != "Removed"


def _silent(parts: Parts, splits: list[Mapping[str, Any]]) -> frozenset[str] | None:
    """The characters of which no byte has a token; None where that cannot be told, or there are too many."""
    model = parts.parsing.model
    if type(model).__name__ != "BPE":
        return None
    if parts.to_bytes is not byte_level_bytes:
        spelled = model.byte_fallback and not _missing(parts, {f"<0x{byte:02X}>": byte for byte in range(256)})
        return frozenset() if spelled else None
    missing = _missing(parts, byte_alphabet())
    if any(byte in missing for byte in _INNER_BYTES) or not any(step["type"] == "ByteLevel" for step in splits):
        return None
    return frozenset(chr(byte) for byte in missing if byte < 0x80)


def _missing(parts: Parts, names: Mapping[str, int]) -> frozenset[int]:
    return frozenset(byte for name, byte in names.items() if parts.parsing.token_to_id(name) is None)
