"""Which bytes a token stands for: the byte-level alphabet undone, `<0xXX>` tokens read, `▁` made a space again."""

import re
from collections.abc import Callable
from functools import cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: character -> byte.

    Bytes that print as Latin-1 stand for themselves; the others, in order, are the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary. Text that is not written in its alphabet stands for itself."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a token of a SentencePiece vocabulary, where a leading space is a space."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()


class Pieces(dict[int, bytes]):
    """token id -> what it adds to the output, worked out once for each token. Look-ups by index only.

    An id that no token has (models pad their vocabularies) adds nothing. Raises ValueError for a negative id.
    """

    __slots__ = ("_make", "_size")

    def __init__(self, make: Callable[[int], bytes], size: int) -> None:
        super().__init__()
        self._make, self._size = make, size

    def __missing__(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        if token_id >= self._size:
            return b""
        piece = self[token_id] = self._make(token_id)
        return piece
