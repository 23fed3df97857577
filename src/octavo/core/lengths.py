"""How long answers will be, learned from those that ended: for the queue and for reservations. An estimate."""

from collections.abc import Mapping

PRIOR = 256
"""Tokens that an answer is taken to have while none of its class has ended, if it may have so many."""
MEMORY = 32
"""About so many of the last answers of a class count."""


class AnswerLengths:
    """The mean length of answers, for each class of `max_tokens`: one class for each power of two.

    The mean, and no quantile: what is reserved for many answers together is right where the mean is, and what single
    ones miss it by is what the watermark is for. Each new answer counts 1 / MEMORY, or more while there are few.
    """

    __slots__ = ("_means", "_seen")

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._seen: dict[int, int] = {}

    @property
    def known(self) -> dict[int, tuple[float, int]]:
        """What it has learned: class -> the mean, and how many answers count in it."""
        return {group: (mean, self._seen[group]) for group, mean in self._means.items()}

    def recall(self, known: Mapping[int, tuple[float, int]]) -> None:
        """Knows this, and nothing else."""
        self._means = {group: mean for group, (mean, _) in known.items()}
        self._seen = {group: seen for group, (_, seen) in known.items()}

    def expect(self, most: int) -> int:
        """Tokens that an answer of at most `most` will have: 1 .. most; none of an embedding, whose `most` is 0."""
        mean = self._means.get(most.bit_length())
        return min(most, max(1, PRIOR if mean is None else round(mean)))

    def learn(self, most: int, length: int) -> None:
        """An answer that was allowed `most` tokens ended after `length`."""
        group = most.bit_length()
        seen = self._seen[group] = min(self._seen.get(group, 0) + 1, MEMORY)
        mean = self._means.get(group, 0.0)
        self._means[group] = mean + (length - mean) / seen
