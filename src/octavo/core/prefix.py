"""PrefixIndex: which blocks hold which prefixes. Reading it never changes anything.

A hit is believed only after its tokens were compared, block by block back to the first one, so two sequences whose
keys collide can never get each other's KV, whatever the hash.
"""

from dataclasses import dataclass

from octavo.core.hashing import KeyChain
from octavo.core.siblings import Siblings, num_common
from octavo.core.types import BlockId, TokenId


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """A full block's content: its own tokens, and through `parent` all the tokens before them."""

    key: bytes
    tokens: tuple[TokenId, ...]
    parent: "CachedBlock | None"
    block: BlockId
    """Where the KV of `tokens` lies."""
    under: bytes = b""
    """The key that `key` is chained to: the parent's, or the root of the namespace."""


@dataclass(frozen=True, slots=True)
class IndexChange:
    """`entry` became findable (`stored`), or no longer is."""

    entry: CachedBlock
    stored: bool


def same_prefix(a: CachedBlock | None, b: CachedBlock | None) -> bool:
    """Do both stand for the same tokens, from the first one on? Known at once where they share their past."""
    while a is not b:
        if a is None or b is None or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True


class PrefixIndex:
    """Two inverse maps: key -> content, block -> content. At most one block for each key."""

    __slots__ = ("_by_block", "_by_key", "_changes", "siblings")

    def __init__(self) -> None:
        self.siblings = Siblings()
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

    def match(self, chain: KeyChain) -> tuple[CachedBlock, ...]:
        """The longest run of cached blocks, from the first one on, that hold exactly the chain's tokens. Pure."""
        hit: list[CachedBlock] = []
        last: CachedBlock | None = None
        find = self._by_key.get
        for key, piece in zip(chain.keys, chain.pieces, strict=True):
            found = find(key)
            if found is None or found.tokens != piece:
                break
            if found.parent is not last and not same_prefix(found.parent, last):
                break
            hit.append(found)
            last = found
        return tuple(hit)

    def nearest(
        self, under: bytes, parent: CachedBlock | None, tokens: tuple[TokenId, ...]
    ) -> tuple[CachedBlock, int] | None:
        """The cached block after `parent` that begins with the most of `tokens`, and with how many of them. Pure."""
        known = [entry for entry in self.siblings.neighbours(under, tokens) if same_prefix(entry.parent, parent)]
        likest = max(known, key=lambda entry: num_common(entry.tokens, tokens), default=None)
        return None if likest is None else (likest, num_common(likest.tokens, tokens))

    def publish(
        self,
        key: bytes,
        tokens: tuple[TokenId, ...],
        parent: CachedBlock | None,
        block: BlockId,
        under: bytes = b"",
    ) -> CachedBlock:
        """Makes a computed, full block findable, unless its key is taken; returns the entry for its content.

        Where the same content is cached already, that entry is returned and `block` stays private to its holders.
        Where another content has the key, the returned entry cannot be found: the first one keeps its place.
        """
        entry = CachedBlock(key, tokens, parent, block, under)
        found = self._by_key.get(key)
        if found is not None:
            same = found.tokens == tokens and same_prefix(found.parent, parent)
            return found if same else entry
        self._by_key[key] = self._by_block[block] = entry
        self.siblings.add(entry)
        self._changes.append(IndexChange(entry, stored=True))
        return entry

    def forget(self, block: BlockId) -> None:
        """`block` is about to be written: its content can no longer be found. Nothing to do where it never could."""
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_key[entry.key]
            self.siblings.remove(entry)
            self._changes.append(IndexChange(entry, stored=False))

    def drain(self) -> tuple[IndexChange, ...]:
        """The changes since the last call, in order."""
        changes = tuple(self._changes)
        self._changes.clear()
        return changes
