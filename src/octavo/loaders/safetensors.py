"""safetensors files and their sharded index, as views of memory maps.

    header length u64, little-endian | JSON header | data
    header: name -> {"dtype", "shape", "data_offsets": [begin, end) in the data}; "__metadata__" -> strings

Source: the format description in the safetensors project. Its own package copies every tensor that it hands out and
has no bfloat16 for numpy, hence this parser; `docs/decisions/loaders-safetensors.md` has the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from octavo.loaders.errors import bad_file
from octavo.loaders.mapped import map_file, read_small
from octavo.models.tensors import Format, TensorInfo

MAX_HEADER_BYTES = 100_000_000
"""The limit that the format itself sets."""
MAX_INDEX_BYTES = 100_000_000
MAX_DIMS = 8
FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a header, as written; its numbers are checked where they are used."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Index(msgspec.Struct, frozen=True):
    """The part of an index file that says which tensor is in which shard."""

    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    path: Path
    entries: Mapping[str, Entry]
    header: bytes
    data: memoryview

    def info(self, name: str) -> TensorInfo:
        """Format and shape; LoadError for a format that backends cannot read."""
        entry = self.entries[name]
        if entry.dtype not in FORMATS:
            raise bad_file(
                self.path,
                f"tensor {name!r} has dtype {entry.dtype}, which is not supported (only {', '.join(FORMATS)})",
            )
        return TensorInfo(entry.shape, FORMATS[entry.dtype])

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor: a view. LoadError where they do not fit its shape."""
        begin, end = self.entries[name].data_offsets
        expected = self.info(name).num_bytes
        if end - begin != expected:
            raise bad_file(self.path, f"tensor {name!r} has {end - begin} bytes, but its shape needs {expected}")
        return self.data[begin:end]


def read_safetensors(path: Path) -> SafetensorsFile:
    """Maps one file and checks its header: sizes, offsets, and that no two tensors share bytes."""
    view = map_file(path)
    if len(view) < 8:
        raise bad_file(path, f"{len(view)} bytes are too few for a safetensors file")
    length = int.from_bytes(view[:8], "little")
    if length > min(len(view) - 8, MAX_HEADER_BYTES):
        raise bad_file(path, f"its header claims {length} bytes, but the file has {len(view)}")
    header, data = bytes(view[8 : 8 + length]), view[8 + length :]
    fields = decode_json(path, header, dict[str, msgspec.Raw])
    entries = {name: decode_json(path, raw, Entry) for name, raw in fields.items() if name != "__metadata__"}
    for name, entry in entries.items():
        _check_entry(path, name, entry, len(data))
    _refuse_overlaps(path, entries)
    return SafetensorsFile(path, entries, header, data)


def find_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    """All weight files of a folder: those of its index, else `model.safetensors`, else the only one there."""
    index = folder / INDEX_NAME
    if index.is_file():
        return _indexed(index)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if SINGLE_NAME in names or len(names) == 1:
        return (read_safetensors(folder / (SINGLE_NAME if SINGLE_NAME in names else names[0])),)
    if names:
        raise bad_file(folder, f"{len(names)} safetensors files, but no {INDEX_NAME} that says what is where")
    hint = "; PyTorch's .bin files are not supported, convert them to safetensors" if any(folder.glob("*.bin")) else ""
    raise bad_file(folder, f"there are no safetensors files{hint}")


def decode_json(path: Path, data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """JSON of a known form; LoadError says where it differs."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_file(path, f"its JSON is not as expected: {error}") from None


def _indexed(index: Path) -> tuple[SafetensorsFile, ...]:
    weight_map = decode_json(index, read_small(index, MAX_INDEX_BYTES), Index).weight_map
    for name in set(weight_map.values()):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise bad_file(index, f"{name!r} is not the name of a safetensors file in the same folder")
    shards = {name: read_safetensors(index.parent / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in shards[name].entries:
            raise bad_file(index, f"tensor {tensor!r} should be in {name}, but is not")
    _refuse_duplicates(index, shards)
    return tuple(shards.values())


def _refuse_duplicates(index: Path, shards: Mapping[str, SafetensorsFile]) -> None:
    owner: dict[str, str] = {}
    for name, shard in shards.items():
        for tensor in shard.entries:
            if tensor in owner:
                raise bad_file(index, f"tensor {tensor!r} is in both {owner[tensor]} and {name}")
            owner[tensor] = name


def _check_entry(path: Path, name: str, entry: Entry, data_len: int) -> None:
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= data_len:
        raise bad_file(path, f"tensor {name!r} lies at [{begin}, {end}), but the data has {data_len} bytes")
    if len(entry.shape) > MAX_DIMS or any(not 0 <= dim < 2**48 for dim in entry.shape):
        raise bad_file(path, f"tensor {name!r} has an impossible shape {list(entry.shape)[:MAX_DIMS]}")


def _refuse_overlaps(path: Path, entries: Mapping[str, Entry]) -> None:
    stop, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < stop and end > begin:
            raise bad_file(path, f"tensors {before!r} and {name!r} overlap at byte {begin} of the data")
        stop, before = max(stop, end), name


def json_object(path: Path, limit: int) -> dict[str, Any]:
    """A small JSON file that holds one object."""
    return decode_json(path, read_small(path, limit), dict[str, Any])
