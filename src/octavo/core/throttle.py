"""Throttle: how far below its limits a scheduler stays, so that steps are short for those who wait for tokens."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Throttle:
    """Tokens and choices of one step. Whoever sets it decides how; here is what keeps it from stopping anybody.

    Raises ValueError for less than one of either.
    """

    num_tokens: int
    num_seqs: int

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_seqs < 1:
            raise ValueError(f"a step has a token and a choice at least: {self}")

    def tokens_left(self, num_left: int, num_decodes: int, block_size: int) -> int:
        """What of the `num_left` tokens of a step is for prompts, beside so many decodes: a block's worth at least.

        All of them where there are no decodes: then nobody waits for a next token.
        """
        return min(num_left, max(self.num_tokens - num_decodes, block_size)) if num_decodes else num_left

    def most_seqs(self, num_running: int, widths: Iterable[int]) -> int:
        """How many choices may run: those who do anyhow, and where none do, as many as the widest of those who wait."""
        return max(self.num_seqs, num_running or max(widths, default=1))
