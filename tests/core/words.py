"""WordGuide: a Guide that keeps an answer to one of several words, written down as digits: the oracle of guides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.core.structured import Structure, StructuredOutput


@dataclass
class WordGuide:
    """Token i is the digit i. It knows all the words that begin with what was accepted."""

    words: frozenset[tuple[int, ...]]
    vocab_size: int
    so_far: tuple[int, ...] = ()
    fault: str | None = None

    @property
    def complete(self) -> bool:
        return self._may_end and not self._next()

    def mask(self, ends: Sequence[int]) -> bytes:
        assert not self.complete and self.fault is None
        allowed = self._next() | (set(ends) if self._may_end else set())
        return mask_of(allowed, self.vocab_size)

    def accept(self, token: int) -> None:
        if token not in self._next():
            self.fault = f"{token} may not come after {self.so_far}"
        self.so_far += (token,)

    def fork(self) -> "WordGuide":
        return WordGuide(self.words, self.vocab_size, self.so_far, self.fault)

    @property
    def _may_end(self) -> bool:
        return self.so_far in self.words

    def _next(self) -> set[int]:
        length = len(self.so_far)
        return {word[length] for word in self.words if word[:length] == self.so_far and len(word) > length}


def mask_of(allowed: Iterable[int], vocab_size: int) -> bytes:
    """A bit for each token, the lowest of each byte first."""
    return sum(1 << token for token in set(allowed)).to_bytes((vocab_size + 7) // 8, "little")


def one_of(*words: str) -> StructuredOutput:
    """The form that has these words."""
    return StructuredOutput(Structure.GRAMMAR, "|".join(words))


def word_guide(output: StructuredOutput, vocab_size: int) -> WordGuide:
    """Raises ValueError for a word that is not digits."""
    return WordGuide(frozenset(tuple(map(int, word)) for word in output.text.split("|")), vocab_size)
