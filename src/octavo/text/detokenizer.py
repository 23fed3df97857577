"""Tokens to text, as they come. Only the beginning of a character that is not complete yet is held back."""

from codecs import utf_8_decode
from collections.abc import Sequence

from octavo.text.pieces import Pieces


class Detokenizer:
    """One for each answer. What `push` returns, joined, is what decoding all tokens at once gives: `pending` may come.

    Bytes that are not UTF-8 become U+FFFD exactly as `bytes.decode(errors="replace")` puts them.
    """

    __slots__ = ("_drop_space", "_pieces", "_tail")

    def __init__(self, pieces: Pieces, *, drop_space: bool = False) -> None:
        """`drop_space`: the text begins here and its vocabulary writes a space before the first word; leave it out.

        An answer continues its prompt, so its first space is kept.
        """
        self._pieces = pieces
        self._drop_space = drop_space
        self._tail = b""

    @property
    def pending(self) -> bool:
        """Does the text so far end within a character?"""
        return self._tail != b""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        pieces = self._pieces
        data = pieces[token_ids[0]] if len(token_ids) == 1 else b"".join([pieces[i] for i in token_ids])
        if self._tail:
            data = self._tail + data
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text


def detokenize(pieces: Pieces, token_ids: Sequence[int], *, drop_space: bool = False) -> str:
    """All at once: the law that the incremental way is held to. A character that is not complete is U+FFFD here."""
    text = b"".join([pieces[i] for i in token_ids]).decode(errors="replace")
    return text.removeprefix(" ") if drop_space else text
