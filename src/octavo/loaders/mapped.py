"""Files as memory: a read-only mapping, and small whole files with a size limit. OSErrors become LoadErrors here."""

import mmap
import os
from hashlib import blake2b
from pathlib import Path

from octavo.loaders.errors import bad_file

SAMPLE_BYTES = 1024


def map_file(path: Path) -> memoryview:
    """The whole file, mapped read-only; the mapping lives as long as any view of it.

    Pages are read when touched. A file that is cut short while it is mapped ends the process: replace files by
    renaming, never by writing into them.
    """
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise bad_file(path, _reason(path, error)) from error


def read_small(path: Path, limit: int) -> bytes:
    """The whole file, which may have at most `limit` bytes."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(min(size, limit) + 1)  # a read takes memory for all that it asks for
    except OSError as error:
        raise bad_file(path, _reason(path, error)) from error
    if len(data) > limit:
        raise bad_file(path, f"the file is larger than {limit} bytes")
    return data


def read_if_there(path: Path, limit: int) -> bytes | None:
    """`read_small`, or None where there is no such file."""
    return read_small(path, limit) if path.is_file() else None


def fingerprint(headers: list[bytes], samples: list[memoryview]) -> bytes:
    """16 bytes from whole headers and from the start, middle and end of each sample: a check of identity, not of trust.

    A model of hundreds of gigabytes takes milliseconds; a change of a few weights in the middle of a tensor is missed.
    """
    digest = blake2b(digest_size=16)
    for header in headers:
        digest.update(len(header).to_bytes(8, "little"))
        digest.update(header)
    for sample in samples:
        size = len(sample)
        digest.update(size.to_bytes(8, "little"))
        for start in sorted({0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)}):
            digest.update(sample[start : start + SAMPLE_BYTES])
    return digest.digest()


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the file is empty" if path.stat().st_size == 0 else str(error)
