"""Block files: full KV blocks on disk, one file each, checked in every byte before anything of them is believed.

    header    magic, version, lengths, checksum of the payload, fingerprint, key, parent's key, token ids, checksum
    payload   the bytes of the block, as the backend that the fingerprint names understands them

Numbers are little-endian, checksums CRC-32 (zlib's: 2.9 GB/s here, blake2b 0.9). A file is written under another name
and renamed when it is whole, so whoever reads sees all of it or nothing; what a crash leaves half written is not
looked at. Files of another version, model or number format have another fingerprint, and another folder.
"""

import fcntl
import logging
import os
import stat
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.core.plan import BlockStore
from octavo.core.tiers import Found

log = logging.getLogger(__name__)

MAGIC = b"octavoKV"
VERSION = 1
_HEAD = struct.Struct("<8sIHHIQI32s")
"""magic, version, bytes of key and of parent, tokens, bytes of payload, CRC-32 of payload, fingerprint."""
_CRC = struct.Struct("<I")
_MAX_KEY_BYTES = 64
_MAX_TOKENS = 4096
MAX_HEADER_BYTES = _HEAD.size + 2 * _MAX_KEY_BYTES + 4 * _MAX_TOKENS + _CRC.size


class BlockFileError(ValueError):
    """A file that does not hold what its name says: why."""


class OffloadError(ValueError):
    """A folder that cannot be used for KV blocks, with what to do about it."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What a block must be to mean anything to this engine."""

    fingerprint: bytes
    """32 bytes: version, model, number formats, kernels."""
    block_size: int
    block_bytes: int


def pack(block_format: BlockFormat, store: BlockStore, raw: memoryview) -> bytes:
    """The header of a file with this payload."""
    parent = store.parent or b""
    sizes = (len(store.key), len(parent), len(store.tokens), raw.nbytes)
    head = _HEAD.pack(MAGIC, VERSION, *sizes, zlib.crc32(raw), block_format.fingerprint)
    head += store.key + parent + struct.pack(f"<{len(store.tokens)}I", *store.tokens)
    return head + _CRC.pack(zlib.crc32(head))


def parse(block_format: BlockFormat, data: bytes | memoryview) -> tuple[Found, int, int]:
    """What a header says: the block, where its payload begins, and the payload's checksum. Raises BlockFileError.

    No number is believed before the checksum over all of them is right, but for the lengths that say where that is.
    """
    if len(data) < _HEAD.size:
        raise BlockFileError(f"{len(data)} bytes are no header")
    magic, version, key_len, parent_len, num_tokens, num_bytes, crc, fingerprint = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BlockFileError(f"no block file of version {VERSION}")
    if not 0 < key_len <= _MAX_KEY_BYTES or parent_len > _MAX_KEY_BYTES or num_tokens > _MAX_TOKENS:
        raise BlockFileError("lengths that no block has")
    end = _HEAD.size + key_len + parent_len + 4 * num_tokens
    if len(data) < end + _CRC.size or zlib.crc32(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise BlockFileError("the header is truncated or corrupt")
    if fingerprint != block_format.fingerprint:
        raise BlockFileError("it was written by another model, format or version")
    if num_bytes != block_format.block_bytes or num_tokens != block_format.block_size:
        raise BlockFileError(f"a block of {num_tokens} tokens in {num_bytes} bytes")
    key, parent = bytes(data[_HEAD.size :][:key_len]), bytes(data[_HEAD.size + key_len :][:parent_len])
    tokens = struct.unpack_from(f"<{num_tokens}I", data, end - 4 * num_tokens)
    return Found(key, parent or None, tokens), end + _CRC.size, crc


class DiskMedium:
    """A folder of block files that no other engine uses meanwhile. Methods may be called from several threads.

    `write` raises OSError, `read` that or BlockFileError.
    """

    def __init__(self, path: Path, block_format: BlockFormat, *, keep: bool = True) -> None:
        """Without `keep`, what is there already is of no use. Raises OffloadError for a folder that cannot be made, or
        that another engine uses."""
        self._keep = keep
        self._format = block_format
        self._folder = path / block_format.fingerprint.hex()[:16]
        self._lock = _own(self._folder)

    def write(self, store: BlockStore, raw: memoryview) -> None:
        target = self._place(store.key)
        partial = self._folder / "partial"  # one writer, one file: and nobody takes it for a block
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            partial.unlink()
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                for part in (memoryview(pack(self._format, store, raw)), raw):
                    _write_all(file.fileno(), part)
            partial.replace(target)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise

    def read(self, key: bytes) -> memoryview:
        """The block's bytes, verified."""
        path = self._place(key)
        data = memoryview(self._bytes(path, MAX_HEADER_BYTES + self._format.block_bytes))
        found, start, crc = parse(self._format, data[:MAX_HEADER_BYTES])
        payload = data[start:]
        if found.key != key:
            raise BlockFileError("it is another block's")
        if payload.nbytes != self._format.block_bytes or zlib.crc32(payload) != crc:
            raise BlockFileError("it is truncated or corrupt")
        with suppress(OSError):
            os.utime(path)  # the order of use survives a restart too
        return payload

    def drop(self, key: bytes) -> None:
        with suppress(OSError):
            self._place(key).unlink()

    def scan(self) -> tuple[Found, ...]:
        """All blocks that an earlier process left, the least recently used first. What is no block file is removed."""
        aged: list[tuple[float, Found]] = []
        for entry in self._files():
            if not self._keep:
                os.unlink(entry.path)
                continue
            try:
                aged.append(self._peek(entry))
            except (OSError, BlockFileError) as error:
                log.warning("removing %s: %s", entry.path, error)
                with suppress(OSError):
                    os.unlink(entry.path)
        aged.sort(key=lambda pair: pair[0])
        return tuple(found for _, found in aged)

    def close(self) -> None:
        """Lets another engine have the folder. Calling it again does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _place(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / f"{name}.kv"

    def _files(self) -> list["os.DirEntry[str]"]:
        found: list[os.DirEntry[str]] = []
        for folder in sorted(self._folder.iterdir()):
            if len(folder.name) == 2 and folder.is_dir() and not folder.is_symlink():
                with os.scandir(folder) as entries:
                    found += entries
        return found

    def _peek(self, entry: "os.DirEntry[str]") -> tuple[float, Found]:
        status = entry.stat(follow_symlinks=False)
        found, start, _ = parse(self._format, self._bytes(Path(entry.path), MAX_HEADER_BYTES))
        if Path(entry.path) != self._place(found.key):
            raise BlockFileError("it has another block's name")
        if status.st_size != start + self._format.block_bytes:
            raise BlockFileError(f"it has {status.st_size} bytes")
        return status.st_mtime, found

    def _bytes(self, path: Path, limit: int) -> bytes:
        """At most `limit` bytes of a plain file: no link is followed, nothing is waited for."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BlockFileError("it is no plain file")
            parts: list[bytes] = []
            while limit > 0 and (part := file.read(limit)):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)


class MemoryMedium:
    """Blocks in main memory, each with its checksum. Nothing survives the process."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[int, memoryview]] = {}

    def write(self, store: BlockStore, raw: memoryview) -> None:
        self._kept[store.key] = zlib.crc32(raw), raw

    def read(self, key: bytes) -> memoryview:
        kept = self._kept.get(key)
        if kept is None:
            raise BlockFileError("it is not there")
        if zlib.crc32(kept[1]) != kept[0]:
            raise BlockFileError("it is corrupt")
        return kept[1]

    def drop(self, key: bytes) -> None:
        self._kept.pop(key, None)

    def scan(self) -> tuple[Found, ...]:
        return ()

    def close(self) -> None:
        self._kept.clear()


def _write_all(fd: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(fd, data) :]


def _own(folder: Path) -> int:
    """Makes the folder, for this user alone, and locks it. Returns what holds the lock."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OffloadError(f"kv_offload_path: {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise OffloadError(
            f"kv_offload_path: {folder} is used by another engine. Give each engine a folder of its own"
        ) from error
    return fd
