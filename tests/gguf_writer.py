"""A small GGUF writer for tests: says exactly what it is told, so that it can also write files that are wrong."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.loaders.gguf import FORMATS
from octavo.models.tensors import Format, TensorInfo

FORMAT_NUMBERS: Mapping[Format, int] = {format_: number for number, format_ in FORMATS.items()}
KINDS = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
CODES = {kind: code for code, kind in enumerate(KINDS)}
STRUCTS = dict(zip(KINDS, "BbHhIif?--Qqd", strict=True))


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type by name; a list is written as an array of that type."""

    kind: str
    value: Any


@dataclass
class GgufWriter:
    """Fill `metadata` (plain Python values are given the usual types) and `tensors`, then `to_bytes()`."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[TensorInfo, bytes]] = field(default_factory=dict)
    version: int = 3
    alignment: int = 32

    def to_bytes(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))
        head += b"".join(_string(key) + _value(value) for key, value in self.metadata.items())
        data = b""
        for name, (info, raw) in self.tensors.items():
            head += tensor_entry(name, info.shape, FORMAT_NUMBERS[info.format], len(data))
            data += raw + b"\0" * (-len(raw) % self.alignment)
        return head + b"\0" * (-len(head) % self.alignment) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def tensor_entry(name: str, shape: tuple[int, ...], number: int, offset: int) -> bytes:
    dims = tuple(reversed(shape))
    return _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    typed = value if isinstance(value, Typed) else _guess(value)
    code = CODES[typed.kind]
    if isinstance(typed.value, list | tuple):
        items = b"".join(_scalar(typed.kind, item) for item in typed.value)
        return struct.pack("<IIQ", 9, code, len(typed.value)) + items
    return struct.pack("<I", code) + _scalar(typed.kind, typed.value)


def _scalar(kind: str, value: Any) -> bytes:
    return _string(value) if kind == "str" else struct.pack("<" + STRUCTS[kind], value)


def _guess(value: Any) -> Typed:
    """As converters do: u32 for counts, i32 in arrays, f32, str, bool."""
    first = value[0] if isinstance(value, list | tuple) else value
    if isinstance(first, bool):
        return Typed("bool", value)
    if isinstance(first, int):
        return Typed("i32" if first is not value else "u32", value)
    return Typed("f32" if isinstance(first, float) else "str", value)
