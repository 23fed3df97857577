"""Block keys: a chained hash, so that one key names all the tokens from the start of a sequence to the end of a block.

    key[-1] = H(namespace, fingerprint)           the root: nothing is shared across it
    key[i]  = H(key[i-1], tokens of block i)

H is a digest of bytes that are written down here, so keys are the same in every process and on every machine. They only
find candidates: the prefix index compares tokens before it believes a key, so the choice of hash is about speed and
about who else computes the same keys.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from octavo.core.types import TokenId

if TYPE_CHECKING:
    from octavo.core.prefix import CachedBlock

Digest = Callable[[bytes], bytes]
BlockMessage = Callable[[bytes, tuple[TokenId, ...]], bytes]
"""A parent's key and the tokens of one block -> what is digested."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How what a key names becomes bytes."""

    root: Callable[[bytes, bytes], bytes]
    """Of a namespace and a model's fingerprint."""
    blocks_of: Callable[[int], BlockMessage]
    """Of blocks of so many tokens."""


def _packed_root(namespace: bytes, fingerprint: bytes) -> bytes:
    return struct.pack("<Q", len(namespace)) + namespace + fingerprint


def _packed_blocks(block_size: int) -> BlockMessage:
    pack = struct.Struct(f"<{block_size}I").pack
    return lambda parent, tokens: parent + pack(*tokens)


PACKED = Encoding(_packed_root, _packed_blocks)
"""The root: the length of the namespace in 64 bits, the namespace, the fingerprint. A block: its parent's key, and its
tokens in 32 bits each. Numbers have their low byte first. The fastest to make."""


@lru_cache(1 << 16)
def _head(kind: int, n: int) -> bytes:
    """How an item of CBOR begins (RFC 8949, 3): its major type and a number, in the fewest bytes."""
    if n < 24:
        return bytes([kind << 5 | n])
    size = next(size for size in (1, 2, 4, 8) if n < 1 << 8 * size)
    return bytes([kind << 5 | 23 + size.bit_length()]) + n.to_bytes(size, "big")


def _bytes_item(data: bytes) -> bytes:
    return _head(2, len(data)) + data


def _cbor_root(namespace: bytes, fingerprint: bytes) -> bytes:
    return b"\x83\x40\x80\x82" + _bytes_item(namespace) + _bytes_item(fingerprint)


def _cbor_blocks(block_size: int) -> BlockMessage:
    array = _head(4, block_size)

    def message(parent: bytes, tokens: tuple[TokenId, ...]) -> bytes:
        return b"".join([b"\x83", _bytes_item(parent), array, *[_head(0, token) for token in tokens], b"\xf6"])

    return message


CBOR = Encoding(_cbor_root, _cbor_blocks)
"""Canonical CBOR (RFC 8949, 4.2) of three items: the parent's key, the tokens, and what else the key depends on. A
block: [key, [token, ...], null]. The root: [h'', [], [namespace, fingerprint]]. Any language has a library for it."""


@dataclass(frozen=True, slots=True)
class BlockHash:
    """H: a digest, and what it is a digest of."""

    digest: Digest
    encoding: Encoding = PACKED


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


HASHES: Mapping[str, BlockHash] = {
    "sha256": BlockHash(_sha256),
    "sha256_cbor": BlockHash(_sha256, CBOR),
    "blake2b": BlockHash(_blake2b),
}
"""Those of `--prefix-caching-hash-algo` that need the standard library only."""


def root_key(block_hash: BlockHash, namespace: bytes, fingerprint: bytes) -> bytes:
    """The parent of a sequence's first block: another namespace or model has another root, so it shares nothing."""
    return block_hash.digest(block_hash.encoding.root(namespace, fingerprint))


class KeyChain:
    """The keys of one sequence's full blocks, hashed once each and kept.

    `pieces[i]` are the tokens that `keys[i]` adds to its parent:

        tokens   | piece 0 | piece 1 | ... | piece k-1 | tail, not hashed |
        keys        key 0     key 1           key k-1
    """

    __slots__ = ("_block_hash", "_block_size", "_message", "_root", "found", "keys", "pieces")

    def __init__(self, block_hash: BlockHash, root: bytes, block_size: int) -> None:
        self._block_hash = block_hash
        self._root = root
        self._block_size = block_size
        self._message = block_hash.encoding.blocks_of(block_size)
        self.keys: list[bytes] = []
        self.pieces: list[tuple[TokenId, ...]] = []
        self.found: Sequence[CachedBlock] = ()
        """What its first keys led to, when they were last looked up: it need not be compared again."""

    def extend(self, tokens: Sequence[TokenId]) -> None:
        """Hashes the full blocks of `tokens` that are not hashed yet; `tokens` continues what was given before."""
        size, keys, pieces = self._block_size, self.keys, self.pieces
        digest, message = self._block_hash.digest, self._message
        parent = keys[-1] if keys else self._root
        for end in range((len(keys) + 1) * size, len(tokens) + 1, size):
            piece = tuple(tokens[end - size : end])
            parent = digest(message(parent, piece))
            keys.append(parent)
            pieces.append(piece)

    def under(self, i: int) -> bytes:
        """The key that block `i`, hashed or not yet, is chained to."""
        return self.keys[i - 1] if i else self._root

    def fork(self) -> "KeyChain":
        """A chain with the same past that grows on its own."""
        twin = KeyChain(self._block_hash, self._root, self._block_size)
        twin.keys = self.keys.copy()
        twin.pieces = self.pieces.copy()
        return twin


def new_chain(block_hash: BlockHash, block_size: int, namespace: bytes = b"", fingerprint: bytes = b"") -> KeyChain:
    """The keys of a sequence that shares blocks within this namespace of this model: none yet."""
    return KeyChain(block_hash, root_key(block_hash, namespace, fingerprint), block_size)
