"""KvFormat: the number formats of the KV cache, as the definition of what is kept of a key or value.

A row is one token's key or value of one head, and is rounded by itself alone: the same whatever else is in the step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.reference.weights import Array
from octavo.models.layer_groups import layer_groups
from octavo.models.spec import ModelSpec

Cells = NDArray[Any]
"""Rows as they are kept."""

INT8_LIMIT = np.float32(127)
SMALLEST = np.float32(1e-30)
"""An int8 row of nothing larger is kept as zeros: the inverse of its scale would not be finite."""


@dataclass(frozen=True, slots=True)
class KvFormat:
    """`keep` makes cells [..., ] of rows [..., head_dim] in float32, `read` the rows that are left of them."""

    cell: Callable[[int], np.dtype[Any]]
    """head_dim -> how one row is kept, in `itemsize` bytes."""
    keep: Callable[[Array], Cells]
    read: Callable[[Cells], Array]


def _bfloat16(rows: Array) -> Cells:
    """To nearest, ties to even."""
    bits = rows.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(rows), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _from_bfloat16(cells: Cells) -> Array:
    return (cells.astype(np.uint32) << 16).view(np.float32)


def _int8_cell(head_dim: int) -> np.dtype[Any]:
    return np.dtype([("codes", np.int8, (head_dim,)), ("scale", np.float32)])


def _int8(rows: Array) -> Cells:
    """Integers of -127 .. 127 and a scale, which is not finite where anything in the row is not."""
    largest = np.abs(rows).max(axis=-1)
    inverse = np.where(largest > SMALLEST, INT8_LIMIT / np.maximum(largest, SMALLEST), np.float32(0))
    cells = np.empty(rows.shape[:-1], _int8_cell(rows.shape[-1]))
    cells["codes"] = np.rint(rows * inverse[..., None])
    cells["scale"] = largest / INT8_LIMIT + (rows * 0).sum(axis=-1)
    return cells


def _from_int8(cells: Cells) -> Array:
    return cells["codes"].astype(np.float32) * cells["scale"][..., None]


def _plain(element: type[np.floating[Any] | np.integer[Any]]) -> Callable[[int], np.dtype[Any]]:
    return lambda head_dim: np.dtype((element, (head_dim,)))


FORMATS: Mapping[str, KvFormat] = {
    "float32": KvFormat(_plain(np.float32), lambda rows: rows, lambda cells: cells),
    "bfloat16": KvFormat(_plain(np.uint16), _bfloat16, _from_bfloat16),
    "float16": KvFormat(_plain(np.float16), lambda rows: rows.astype(np.float16), lambda c: c.astype(np.float32)),
    "int8": KvFormat(_int8_cell, _int8, _from_int8),
}


def kv_format(kv_cache_dtype: str) -> KvFormat:
    """The format of this name; `auto` is float32. Raises ValueError for one that is not supported."""
    name = "float32" if kv_cache_dtype == "auto" else kv_cache_dtype
    if name not in FORMATS:
        raise ValueError(f"kv_cache_dtype must be auto or one of {', '.join(FORMATS)}, got {kv_cache_dtype!r}")
    return FORMATS[name]


def kv_bytes_per_token(spec: ModelSpec, kv_cache_dtype: str) -> int:
    """Bytes of one token in a block: of the layers of one KV group. Raises as `kv_format`."""
    row_bytes = kv_format(kv_cache_dtype).cell(spec.head_dim).itemsize
    return row_bytes * spec.kv_rows_per_token * layer_groups(spec).slots
