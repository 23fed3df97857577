"""Dumps: the record of a scheduler as a file, versioned and bounded: what it was told, and what it planned.

A file has no text, no token id, no name of a tenant and no key: `confide.py` leaves them out.
"""

import gzip
import os
import secrets
from pathlib import Path

import msgspec

from octavo.core.pins import PinWish
from octavo.core.request import Request
from octavo.core.snapshot import Snapshot
from octavo.core.throttle import Throttle
from octavo.core.types import Limits

VERSION = 1
MOST_FILES = 8
"""Dumps that are kept in a folder: the newest."""
MOST_BYTES = 64 << 20
"""A file that is larger once it is unpacked is none of ours."""


class DumpError(ValueError):
    """A file that is no dump, or of another version."""


class Entry(msgspec.Struct, tag_field="kind", omit_defaults=True):
    at: float
    """When, on the engine's clock."""


class Submitted(Entry, tag="submit"):
    request: Request
    number: int


class Withdrawn(Entry, tag="cancel"):
    request_id: str
    choice: int | None = None


class Guided(Entry, tag="guide"):
    request_id: str


class GivenUp(Entry, tag="give_up"):
    request_id: str


class Pinned(Entry, tag="pin"):
    wish: PinWish


class Unpinned(Entry, tag="unpin"):
    pin_id: str
    tenant: str | None


class PinsListed(Entry, tag="pins"):
    """Pins whose time was up may have ended."""


class CacheReset(Entry, tag="reset"):
    pass


class Noted(Entry, tag="tier"):
    num_reports: int


class Planned(Entry, tag="plan"):
    step: int
    rows: list[tuple[int, ...]] | None
    """Of each work: request, choice, start, tokens, blocks, checksum of their ids, samples. None: it broke."""
    num_copies: int = 0


class Broken(msgspec.Struct):
    """A work that failed by itself."""

    place: int
    message: str
    code: str | None


class Committed(Entry, tag="commit"):
    sampled: list[list[int]]
    """Of each work."""
    ranked: dict[int, list[tuple[int, float]]] = {}
    """Of beams, by their place: the candidates, each with its logprob."""
    errors: list[Broken] = []
    done: bool = True
    """False: the commit broke."""


class Failed(Entry, tag="fail"):
    pass


class Stuck(Entry, tag="stalled"):
    pass


class Throttled(Entry, tag="throttle"):
    throttle: Throttle


class Quiet(Entry, tag="quiet"):
    num_cached: int
    num_pinned: int
    throttle: Throttle | None = None
    lengths: dict[int, tuple[float, int]] = {}


AnyEntry = (
    Submitted
    | Withdrawn
    | Guided
    | GivenUp
    | Pinned
    | Unpinned
    | PinsListed
    | CacheReset
    | Noted
    | Planned
    | Committed
    | Failed
    | Stuck
    | Throttled
    | Quiet
)


class Form(msgspec.Struct):
    """Where a structured output ended: after which tokens, and with what fault, if any."""

    request_id: str
    tokens: list[int]
    fault: str | None = None


class Confided(msgspec.Struct):
    """A record that may be given away."""

    tokens: str
    """How they are disguised: `by_beginning` or `by_rank`."""
    num_lost: int
    """Entries before the first one that are not remembered. 0: it goes back to the start of the engine."""
    limits: Limits
    entries: list[AnyEntry]
    forms: list[Form]


class Dump(msgspec.Struct):
    version: int
    reason: str
    """`step failed`, `law broken`, `stalled`, `engine died`, or `asked for`."""
    message: str
    octavo: str
    fingerprint: str
    written: float
    """Seconds since 1970."""
    record: Confided
    snapshot: Snapshot | None
    """How the scheduler was when the dump was made; None where it is too broken to be looked at."""


# -- files -----------------------------------------------------------------------------------------------------------


def write(dump: Dump, folder: Path) -> Path:
    """Writes a file that only its owner may read, whole or not at all, and removes the oldest ones. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = f"{dump.written:.3f}".replace(".", "-")
    path = folder / f"octavo-{stamp}-{secrets.token_hex(2)}.dump.gz"
    raw = gzip.compress(msgspec.json.encode(dump), compresslevel=3)
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(raw)
    part.replace(path)
    for old in sorted(folder.glob("octavo-*.dump.gz"))[:-MOST_FILES]:
        old.unlink(missing_ok=True)
    return path


def read(path: Path) -> Dump:
    """Raises DumpError for what is no dump of this version, OSError for what cannot be read."""
    try:
        with gzip.open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DumpError(f"{path} is no dump: {error}") from error
    if len(raw) > MOST_BYTES:
        raise DumpError(f"{path} is longer than {MOST_BYTES:,} bytes once it is unpacked")
    try:
        version = msgspec.json.decode(raw, type=_Version).version
        if version != VERSION:
            raise DumpError(f"{path} has version {version}, and this Octavo reads version {VERSION}")
        return msgspec.json.decode(raw, type=Dump)
    except (msgspec.MsgspecError, ValueError) as error:
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{path} is no dump: {error}") from error


class _Version(msgspec.Struct):
    version: int
