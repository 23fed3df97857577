"""Block keys: a chained hash, so that one key names all the tokens from the start of a sequence to the end of a block.

    key[-1] = H(len(namespace) | namespace | fingerprint)          the root: nothing is shared across it
    key[i]  = H(key[i-1] | tokens of block i, 32 bits each, low byte first)

Keys are the same in every process and on every machine. They only find candidates: the prefix index compares tokens
before it believes a key, so the choice of hash is about speed and about who else computes the same keys.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence

from octavo.core.types import TokenId

Digest = Callable[[bytes], bytes]


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


HASHES: dict[str, Digest] = {"sha256": _sha256, "blake2b": _blake2b}
"""`--prefix-caching-hash-algo`: name -> digest."""


def root_key(digest: Digest, namespace: bytes, fingerprint: bytes) -> bytes:
    """The parent of a sequence's first block: another namespace or model has another root, so it shares nothing."""
    return digest(struct.pack("<Q", len(namespace)) + namespace + fingerprint)


class KeyChain:
    """The keys of one sequence's full blocks, hashed once each and kept.

    `pieces[i]` are the tokens that `keys[i]` adds to its parent:

        tokens   | piece 0 | piece 1 | ... | piece k-1 | tail, not hashed |
        keys        key 0     key 1           key k-1
    """

    __slots__ = ("_block_size", "_digest", "_pack", "_root", "keys", "pieces")

    def __init__(self, digest: Digest, root: bytes, block_size: int) -> None:
        self._digest = digest
        self._root = root
        self._block_size = block_size
        self._pack = struct.Struct(f"<{block_size}I").pack
        self.keys: list[bytes] = []
        self.pieces: list[tuple[TokenId, ...]] = []

    def extend(self, tokens: Sequence[TokenId]) -> None:
        """Hashes the full blocks of `tokens` that are not hashed yet; `tokens` continues what was given before."""
        size, keys, pieces = self._block_size, self.keys, self.pieces
        parent = keys[-1] if keys else self._root
        for end in range((len(keys) + 1) * size, len(tokens) + 1, size):
            piece = tuple(tokens[end - size : end])
            parent = self._digest(parent + self._pack(*piece))
            keys.append(parent)
            pieces.append(piece)

    def under(self, i: int) -> bytes:
        """The key that block `i`, hashed or not yet, is chained to."""
        return self.keys[i - 1] if i else self._root

    def fork(self) -> "KeyChain":
        """A chain with the same past that grows on its own."""
        twin = KeyChain(self._digest, self._root, self._block_size)
        twin.keys = self.keys.copy()
        twin.pieces = self.pieces.copy()
        return twin
