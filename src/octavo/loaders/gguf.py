"""GGUF v2 and v3: the container format, parsed from a memory map with every number checked before it is believed.

    "GGUF" | version u32 | num_tensors u64 | num_entries u64
    entries: key string | type u32 | value        string: length u64, UTF-8 bytes; array: type u32, count u64, values
    tensors: name string | num_dims u32 | dims u64 each, fastest first | format u32 | offset u64
    padding to `general.alignment` (32) | data, each tensor at its offset from here

All integers are little-endian. Source: the GGUF specification in the ggml project. A count is checked against the bytes
that are left, and against fixed limits, before anything is made for it: no file can take more memory or time.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from octavo.loaders.errors import LoadError, located
from octavo.loaders.mapped import map_file
from octavo.models.tensors import BLOCKS, Format, TensorInfo

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 * 2**20
MAX_ITEMS = 4 * 2**20
"""Metadata entries, array elements and tensors together: several times what the largest vocabularies take."""
MAX_KEY_BYTES = 65535
MAX_DIMS = 4
MAX_NESTING = 4
MIN_ENTRY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

FORMATS: dict[int, Format] = {
    0: Format.F32,
    1: Format.F16,
    2: Format.Q4_0,
    3: Format.Q4_1,
    6: Format.Q5_0,
    7: Format.Q5_1,
    8: Format.Q8_0,
    12: Format.Q4_K,
    13: Format.Q5_K,
    14: Format.Q6_K,
    30: Format.BF16,
}
OTHER_FORMATS = (
    "4:Q4_2 5:Q4_3 9:Q8_1 10:Q2_K 11:Q3_K 15:Q8_K 16:IQ2_XXS 17:IQ2_XS 18:IQ3_XXS 19:IQ1_S 20:IQ4_NL 21:IQ3_S 22:IQ2_S "
    "23:IQ4_XS 24:I8 25:I16 26:I32 27:I64 28:F64 29:IQ1_M 34:TQ1_0 35:TQ2_0 39:MXFP4 40:NVFP4"
)
OTHER_FORMAT_NAMES = {int(number): name for number, name in (item.split(":") for item in OTHER_FORMATS.split())}

SCALARS: dict[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Metadata type -> its code for `struct`; 8 is a string and 9 an array."""
BOOL, STRING, ARRAY = 7, 8, 9

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    info: TensorInfo
    offset: int
    """From the start of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """One parsed file. `metadata` holds int, float, bool, str, and tuples of one of these (or of tuples)."""

    path: Path
    version: int
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]
    header_bytes: int
    """Where the list of tensors ends."""
    view: memoryview

    def raw(self, name: str) -> memoryview:
        tensor = self.tensors[name]
        return self.view[tensor.offset : tensor.offset + tensor.info.num_bytes]


def read_gguf(path: Path) -> GgufFile:
    """Maps and parses the file at `path`; LoadError says what is wrong with it."""
    view = map_file(path)
    with located(path):
        return _parse(path, view)


class _Cursor:
    """Reads forward through a file's header. Every read is checked against the end first."""

    __slots__ = ("end", "items", "map", "position")

    def __init__(self, view: memoryview) -> None:
        self.map: Any = view.obj
        """The mmap itself: slicing it makes bytes in one step, which is what decoding wants."""
        self.position = 0
        self.end = min(len(view), MAX_HEADER_BYTES)
        self.items = 0

    def need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.end - self.position:
            limit = "the file ends" if self.end < MAX_HEADER_BYTES else "the largest header allowed ends"
            raise LoadError(f"{what} needs {num_bytes} bytes at byte {self.position}, but {limit} at byte {self.end}")

    def need_items(self, count: int, item_bytes: int, what: str) -> None:
        """Room for `count` items of at least `item_bytes` each, in the file and in the limit of all items."""
        self.need(count * item_bytes, what)
        self.items += count
        if self.items > MAX_ITEMS:
            raise LoadError(f"{what} has {count} items; more than {MAX_ITEMS} in one file are refused")

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + code, self.map, self.position)
        self.position += size
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.scalar("Q", what)
        if limit is not None and length > limit:
            raise LoadError(f"{what} has {length} bytes (at most {limit} allowed)")
        self.need(length, what)
        data = self.map[self.position : self.position + length]
        self.position += length
        return _decode(data, what)

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """`count` strings in a row: the loop that opening a model spends its time in."""
        self.need_items(count, 8, what)
        data, position, end = self.map, self.position, self.end
        unpack = struct.Struct("<Q").unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    raise LoadError(f"{what}: string {len(found)} ends at byte {position}, behind the end at {end}")
                found.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            raise LoadError(f"{what}: string {len(found)} is not UTF-8 ({error.reason})") from None
        except struct.error:
            raise LoadError(f"{what}: the file ends before string {len(found)} of {count}") from None
        self.position = position
        return tuple(found)

    def numbers(self, kind: int, count: int, what: str) -> tuple[Any, ...]:
        code = SCALARS[kind]
        size = struct.calcsize("<" + code)
        self.need_items(count, size, what)
        data = self.map[self.position : self.position + count * size]
        self.position += count * size
        if kind == BOOL:
            return tuple(byte != 0 for byte in data)
        return struct.unpack(f"<{count}{code}", data)


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{what} is not UTF-8 ({error.reason})") from None


def _parse(path: Path, view: memoryview) -> GgufFile:
    cursor = _Cursor(view)
    version = _version(cursor)
    num_tensors, num_entries = cursor.scalar("Q", "the tensor count"), cursor.scalar("Q", "the metadata count")
    cursor.need_items(num_entries, MIN_ENTRY_BYTES, f"the metadata of {num_entries} entries")
    metadata = _read_named(num_entries, lambda: _entry(cursor), "metadata key")
    cursor.need_items(num_tensors, MIN_TENSOR_BYTES, f"the list of {num_tensors} tensors")
    found = _read_named(num_tensors, lambda: _tensor(cursor), "tensor")
    alignment = _alignment(metadata)
    start = -(-cursor.position // alignment) * alignment
    tensors = _placed(found, start, len(view), alignment)
    return GgufFile(
        path=path, version=version, metadata=metadata, tensors=tensors, header_bytes=cursor.position, view=view
    )


def _version(cursor: _Cursor) -> int:
    magic = cursor.map[:4]
    if magic != MAGIC:
        raise LoadError(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    cursor.need(24, "a GGUF header")
    cursor.position = 4
    version = cursor.scalar("I", "the version")
    if version & 0xFFFF == 0 and version != 0:
        raise LoadError("big-endian GGUF files are not supported")
    if version not in VERSIONS:
        raise LoadError(f"GGUF version {version} is not supported (only {VERSIONS[0]} and {VERSIONS[1]})")
    return version


def _read_named(count: int, read: Callable[[], tuple[str, T]], what: str) -> dict[str, T]:
    items: dict[str, T] = {}
    for _ in range(count):
        name, value = read()
        if name in items:
            raise LoadError(f"{what} {name!r} is there twice")
        items[name] = value
    return items


def _entry(cursor: _Cursor) -> tuple[str, object]:
    key = cursor.string("a metadata key", MAX_KEY_BYTES)
    kind = cursor.scalar("I", f"the type of {key!r}")
    return key, _value(cursor, kind, key, 0)


def _value(cursor: _Cursor, kind: int, key: str, depth: int) -> object:
    if kind == STRING:
        return cursor.string(f"the value of {key!r}")
    if kind == ARRAY:
        return _array(cursor, key, depth + 1)
    code = SCALARS.get(kind)
    if code is None:
        raise LoadError(f"metadata {key!r} has unknown type {kind}")
    return cursor.scalar(code, f"the value of {key!r}")


def _array(cursor: _Cursor, key: str, depth: int) -> tuple[object, ...]:
    if depth > MAX_NESTING:
        raise LoadError(f"metadata {key!r} nests arrays more than {MAX_NESTING} deep")
    what = f"the array {key!r}"
    kind, count = cursor.scalar("I", what), cursor.scalar("Q", what)
    if kind == STRING:
        return cursor.strings(count, what)
    if kind in SCALARS:
        return cursor.numbers(kind, count, what)
    if kind != ARRAY:
        raise LoadError(f"metadata {key!r} is an array of unknown type {kind}")
    cursor.need_items(count, 12, what)
    return tuple(_array(cursor, key, depth + 1) for _ in range(count))


def _tensor(cursor: _Cursor) -> tuple[str, GgufTensor]:
    """One entry of the tensor list; the offset is still from the start of the data section."""
    name = cursor.string("a tensor name", MAX_KEY_BYTES)
    num_dims = cursor.scalar("I", f"tensor {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise LoadError(f"tensor {name!r} has {num_dims} dimensions (1 to {MAX_DIMS} allowed)")
    dims = cursor.numbers(10, num_dims, f"tensor {name!r}")
    number, offset = cursor.scalar("I", f"tensor {name!r}"), cursor.scalar("Q", f"tensor {name!r}")
    format_ = _format(name, number)
    block = BLOCKS[format_][0]
    if min(dims) < 1 or dims[0] % block:
        raise LoadError(f"tensor {name!r} of format {format_} has dims {dims}: rows must be whole blocks of {block}")
    return name, GgufTensor(TensorInfo(tuple(reversed(dims)), format_), offset)


def _format(name: str, number: int) -> Format:
    if number in FORMATS:
        return FORMATS[number]
    known = OTHER_FORMAT_NAMES.get(number, f"type {number}")
    raise LoadError(f"tensor {name!r} has format {known}, which is not supported (only {', '.join(Format)})")


def _alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**20 or value & (value - 1):
        raise LoadError(f"general.alignment is {value!r}; it must be a power of two up to {2**20}")
    return value


def _placed(found: dict[str, GgufTensor], start: int, end: int, alignment: int) -> dict[str, GgufTensor]:
    """The tensors with offsets from the start of the file: aligned, inside the file, and each on bytes of its own."""
    placed: dict[str, GgufTensor] = {}
    for name, tensor in found.items():
        if tensor.offset % alignment:
            raise LoadError(f"tensor {name!r} starts at {tensor.offset}, not at a multiple of {alignment}")
        offset = start + tensor.offset
        stop = offset + tensor.info.num_bytes
        if stop > end:
            raise LoadError(f"tensor {name!r} ends at byte {stop}, but the file has {end}: is the download complete?")
        placed[name] = GgufTensor(tensor.info, offset)
    _refuse_overlaps(placed)
    return placed


def _refuse_overlaps(tensors: dict[str, GgufTensor]) -> None:
    """Tensors that share bytes would let a small file ask for any amount of memory."""
    stop, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < stop:
            raise LoadError(f"tensors {before!r} and {name!r} overlap at byte {tensor.offset}")
        stop, before = tensor.offset + tensor.info.num_bytes, name
