"""PrefixIndex: which blocks hold which prefixes. Reading it never changes anything.

A hit is believed only after its tokens were compared, block by block back to the first one, so two sequences whose
keys collide can never get each other's KV, whatever the hash.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from octavo.core.groups import KvGroups
from octavo.core.hashing import KeyChain
from octavo.core.siblings import Siblings, num_common
from octavo.core.types import NO_BLOCK, BlockId, TokenId

Piece = tuple[TokenId, ...]
"""The tokens of one full block."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """A full block's content: its own tokens, and through `parent` all the tokens before them."""

    key: bytes
    tokens: tuple[TokenId, ...]
    parent: "CachedBlock | None"
    blocks: list[BlockId]
    """For each KV group, the block that can be hit for it, or NO_BLOCK. The index alone changes it."""
    under: bytes = b""
    """The key that `key` is chained to: the parent's, or the root of the namespace."""
    position: int = 0
    """Blocks before it."""


class IndexChange(NamedTuple):
    """`entry` became findable (`stored`), or no longer is."""

    entry: CachedBlock
    stored: bool
    block: BlockId = NO_BLOCK
    """Of what no longer is, the block that was the last to hold it."""


def same_prefix(a: CachedBlock | None, b: CachedBlock | None) -> bool:
    """Do both stand for the same tokens, from the first one on? Known at once where they share their past."""
    while a is not b:
        if a is None or b is None or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True


def longest_run(
    find: Callable[[bytes], CachedBlock | None],
    keys: Iterable[bytes],
    pieces: Iterable[Piece],
    last: CachedBlock | None,
) -> list[CachedBlock]:
    """The contents that continue `last`, one key after the other, as long as each is found and has just these tokens.

    What is found is believed only after its tokens were compared, back to the first one.
    """
    run: list[CachedBlock] = []
    for key, piece in zip(keys, pieces, strict=False):
        found = find(key)
        if found is None or found.tokens != piece:
            break
        if found.parent is not last and not same_prefix(found.parent, last):
            break
        run.append(found)
        last = found
    return run


class PrefixIndex:
    """Two inverse maps: key -> content with its blocks, block -> content. At most one block for each key and group."""

    __slots__ = ("_by_block", "_by_key", "_changes", "_full", "_groups", "_windowed", "siblings")

    def __init__(self, groups: KvGroups) -> None:
        self.siblings = Siblings()
        self._groups = groups
        self._full = [group for group, window in enumerate(groups.windows) if window is None]
        self._windowed = [(group, window) for group, window in enumerate(groups.windows) if window is not None]
        self._by_key: dict[bytes, CachedBlock] = {}
        self._by_block: dict[BlockId, CachedBlock] = {}
        self._changes: list[IndexChange] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def holds(self, block: BlockId) -> bool:
        """May `block` be hit? Then nobody may write it."""
        return block in self._by_block

    def entries(self) -> tuple[CachedBlock, ...]:
        return tuple(self._by_key.values())

    def entry_of(self, block: BlockId) -> CachedBlock | None:
        return self._by_block.get(block)

    def find(self, key: bytes) -> CachedBlock | None:
        return self._by_key.get(key)

    def match(self, chain: KeyChain, at_most: int | None = None) -> tuple[CachedBlock, ...]:
        """The longest hit for a chain, of at most so many blocks. Pure.

        A hit holds exactly the chain's tokens, from the first block on. Each group with full attention has all of its
        blocks, each with a window those that cover its last `window` tokens; the others may be gone.
        """
        keys = chain.keys if at_most is None else chain.keys[:at_most]
        if not self._full:
            return self._match_windows(keys, chain.pieces)
        run = self._full_run(keys, chain.pieces, chain.found[:at_most])
        return tuple(run[: self._covered(run, len(run))] if self._windowed else run)

    def nearest(
        self, under: bytes, parent: CachedBlock | None, tokens: tuple[TokenId, ...]
    ) -> tuple[CachedBlock, int] | None:
        """The cached block after `parent` that begins with the most of `tokens`, and with how many of them. Pure."""
        likest: tuple[CachedBlock, int] | None = None
        for entry in self.siblings.neighbours(under, tokens):
            count = num_common(entry.tokens, tokens)
            if (likest is None or count > likest[1]) and same_prefix(entry.parent, parent):
                likest = (entry, count)
        return likest

    def publish(
        self,
        key: bytes,
        tokens: tuple[TokenId, ...],
        parent: CachedBlock | None,
        blocks: Sequence[BlockId],
        under: bytes = b"",
    ) -> CachedBlock:
        """Makes computed, full blocks of one content findable, one for each group; returns the entry for the content.

        Where a group has a block for it already, that one stays and ours is private to its holders. Where another
        content has the key, the returned entry cannot be found: the first one keeps its place.
        """
        found = self._by_key.get(key)
        if found is None:
            position = 0 if parent is None else parent.position + 1
            found = CachedBlock(key, tokens, parent, [NO_BLOCK] * len(blocks), under, position)
            self._by_key[key] = found
            self.siblings.add(found)
            self._changes.append(IndexChange(found, stored=True))
        elif found.tokens != tokens or not same_prefix(found.parent, parent):
            return CachedBlock(key, tokens, parent, [NO_BLOCK] * len(blocks), under)
        for group, block in enumerate(blocks):
            if found.blocks[group] == NO_BLOCK:
                found.blocks[group] = block
                self._by_block[block] = found
        return found

    def forget(self, block: BlockId) -> None:
        """`block` is about to be written: its content can no longer be found. Nothing to do where it never could."""
        entry = self._by_block.pop(block, None)
        if entry is None:
            return
        entry.blocks[entry.blocks.index(block)] = NO_BLOCK
        if all([other == NO_BLOCK for other in entry.blocks]):
            del self._by_key[entry.key]
            self.siblings.remove(entry)
            self._changes.append(IndexChange(entry, stored=False, block=block))

    def drain(self) -> tuple[IndexChange, ...]:
        """The changes since the last call, in order."""
        changes = tuple(self._changes)
        self._changes.clear()
        return changes

    # ---- matching ----

    def _full_run(
        self, keys: Sequence[bytes], pieces: Sequence[Piece], known: Sequence[CachedBlock]
    ) -> list[CachedBlock]:
        """The longest run from the first block on of which every group with full attention has all blocks.

        It begins with what is still there of `known`, an earlier run: contents never change.
        """
        group = self._full[0]
        held = [entry.blocks[group] for entry in known]
        rest = held.index(NO_BLOCK) if NO_BLOCK in held else len(held)
        run = [*known[:rest]]
        last = run[-1] if run else None
        run += longest_run(self._by_key.get, islice(keys, rest, None), islice(pieces, rest, None), last)
        if self._groups.num_groups == 1:
            return run
        gone = (i for i, found in enumerate(run) if NO_BLOCK in [found.blocks[group] for group in self._full])
        return run[: next(gone, len(run))]

    def _match_windows(self, keys: Sequence[bytes], pieces: Sequence[Piece]) -> tuple[CachedBlock, ...]:
        """Where no group has full attention the beginning may be gone: what is there is followed back from its end."""
        end = next((end for end in range(len(keys), 0, -1) if keys[end - 1] in self._by_key), 0)
        entries = [self._by_key.get(key) for key in keys[:end]]
        while end := self._covered(entries, end):
            first = min([self._first_needed(window, end) for _, window in self._windowed])
            past = _past(entries[end - 1], pieces[:end])
            needed = [entry for entry in entries[first:end] if entry is not None]
            alien = end - 1 if past is None else _last_alien(needed, first)
            if past is not None and alien is None:
                return (*past[:first], *needed)
            end = alien or 0
        return ()

    def _covered(self, entries: Sequence[CachedBlock | None], end: int) -> int:
        """The longest beginning of `entries[:end]` whose last blocks are there, as far back as each window goes."""
        while True:
            while end and ((last := entries[end - 1]) is None or NO_BLOCK in last.blocks):
                end -= 1  # every group needs the last block
            gap = self._last_gap(entries, end)
            if gap is None:
                return end
            end = gap  # every longer beginning needs that block too

    def _last_gap(self, entries: Sequence[CachedBlock | None], end: int) -> int | None:
        for group, window in self._windowed:
            for logical in range(end - 1, self._first_needed(window, end) - 1, -1):
                entry = entries[logical]
                if entry is None or entry.blocks[group] == NO_BLOCK:
                    return logical
        return None

    def _first_needed(self, window: int, end: int) -> int:
        """Of a hit of `end` blocks the first one that the window reads, if its last token is computed again."""
        return self._groups.first_read(window, end * self._groups.block_size - 1)


def _past(entry: CachedBlock | None, pieces: Sequence[Piece]) -> list[CachedBlock] | None:
    """The contents from the first one to `entry`; None where they are not these pieces."""
    past: list[CachedBlock] = []
    for piece in reversed(pieces):
        if entry is None or entry.tokens != piece:
            return None
        past.append(entry)
        entry = entry.parent
    return past[::-1] if entry is None else None


def _last_alien(entries: Sequence[CachedBlock], first: int) -> int | None:
    """Entries of blocks `first`, ...: the last one that is not of the same past as the one after it."""
    for i in range(len(entries) - 2, -1, -1):
        if not same_prefix(entries[i], entries[i + 1].parent):
            return first + i
    return None
