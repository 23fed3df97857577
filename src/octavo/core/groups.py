"""KvGroups: the block tables of a sequence, one for each group of layers, and what a sliding window lets go of.

Layers of one attention window share a block table: they are a group. All groups take their blocks from one pool, and a
block holds `block_size` tokens for the layers of one group. With a window of W, a token attends to itself and to the
W - 1 tokens before it, so what lies before them need not be kept:

    position          0 ................ first read ................ p
    full attention    [ b0 ][ b1 ][ b2 ][ b3 ][ b4 ][ b5 ]
    a window          given back ......  [ b6 ][ b7 ][ b8 ]
"""

from dataclasses import dataclass

from octavo.core.types import Limits


@dataclass(frozen=True, slots=True)
class KvGroups:
    """How many block tables a sequence has, and how far back each of them is read."""

    block_size: int
    windows: tuple[int | None, ...] = (None,)
    """For each group, how many tokens a token attends to, itself included; None: to all before it."""
    longest_chunk: int = 1
    """No step computes more tokens than this of one sequence."""

    @classmethod
    def of(cls, limits: Limits) -> "KvGroups":
        return cls(limits.block_size, limits.windows, limits.longest_chunk)

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    def first_read(self, window: int | None, position: int) -> int:
        """The first block that a token at `position`, or a later one, reads. Those before it are behind the window."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def most_held(self, window: int | None, num_tokens: int, chunk: int | None = None) -> int:
        """The most blocks that one sequence of `num_tokens` tokens holds in a group at once.

        Blocks are given back where one fills up, so there is a block's rest on either side of window and chunk.
        """
        most = self.blocks_for(num_tokens)
        if window is None:
            return most
        computed_at_once = self.longest_chunk if chunk is None else chunk
        return min(most, self.blocks_for(window - 1) + self.blocks_for(computed_at_once - 1) + 1)

    def most_until(self, window: int | None, num_tokens: int, num_known: int, num_left: int) -> int:
        """The most blocks that a sequence holds in a group at once until it has `num_tokens` tokens.

        Of the `num_known` first ones the last `num_left` are computed in chunks, those after them one by one.
        """
        chunk = max(1, min(num_left, self.longest_chunk))
        return max(self.most_held(window, num_known, chunk), self.most_held(window, num_tokens, 1))
