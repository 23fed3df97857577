"""Stored bytes -> float32, one slow and obvious function for each format: the oracle that kernels are measured against.

Each function takes the tensor's bytes as blocks and returns float32 [num_blocks, elements in a block].
Source: the block structures of ggml (`ggml-common.h`) and its reference dequantisation; the order of the float32
operations is the same, so that results are equal bit for bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.loaders.errors import LoadError
from octavo.models.tensors import BLOCKS, Format, TensorInfo

Floats = NDArray[np.float32]
Levels = NDArray[Any]
"""Small whole numbers: what weights are quantised to."""
Blocks = NDArray[Any]
"""Records [num_blocks], one for each block, with the fields of its structure."""


def dequantize(raw: memoryview | bytes, info: TensorInfo) -> Floats:
    """The tensor as a new float32 array of `info.shape`. Raises LoadError where the bytes do not fit the shape."""
    if len(raw) != info.num_bytes:
        raise LoadError(
            f"{info.format} tensor of shape {list(info.shape)} needs {info.num_bytes} bytes, got {len(raw)}"
        )
    blocks = np.frombuffer(raw, dtype=LAYOUTS[info.format])
    return DECODERS[info.format](blocks).reshape(info.shape)


def _f32(blocks: Blocks) -> Floats:
    return blocks["x"].astype(np.float32)


def _f16(blocks: Blocks) -> Floats:
    return blocks["x"].astype(np.float32)


def _bf16(blocks: Blocks) -> Floats:
    """bfloat16 is the upper half of a float32."""
    return (blocks["x"].astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Blocks) -> Floats:
    return _column(blocks, "d") * (_nibbles(blocks["qs"]).astype(np.int8) - 8).astype(np.float32)


def _q4_1(blocks: Blocks) -> Floats:
    return _column(blocks, "d") * _nibbles(blocks["qs"]).astype(np.float32) + _column(blocks, "m")


def _q5_0(blocks: Blocks) -> Floats:
    levels = _nibbles(blocks["qs"]) | _fifth_bits(blocks["qh"])
    return _column(blocks, "d") * (levels.astype(np.int8) - 16).astype(np.float32)


def _q5_1(blocks: Blocks) -> Floats:
    levels = _nibbles(blocks["qs"]) | _fifth_bits(blocks["qh"])
    return _column(blocks, "d") * levels.astype(np.float32) + _column(blocks, "m")


def _q8_0(blocks: Blocks) -> Floats:
    return _column(blocks, "d") * blocks["qs"].astype(np.float32)


def _q4_k(blocks: Blocks) -> Floats:
    """8 groups of 32: bytes 32g..32g+31 hold group 2g in their low nibbles and group 2g + 1 in their high ones."""
    return _scaled_groups(blocks, _nibble_groups(blocks["qs"]))


def _q5_k(blocks: Blocks) -> Floats:
    """As Q4_K, and bit g of qh[i] is the fifth bit of element i of group g."""
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = (blocks["qh"][:, None, :] >> bits & 1) << 4
    return _scaled_groups(blocks, _nibble_groups(blocks["qs"]) | high)


def _q6_k(blocks: Blocks) -> Floats:
    """Two halves of 128: ql [half, 64] has the low four bits, qh [half, 32] the upper two; a scale for each 16."""
    low = blocks["ql"].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    high = blocks["qh"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    levels = (low.reshape(-1, 16, 16) | high.reshape(-1, 16, 16) << 4).astype(np.int8) - 32
    scales = _column(blocks, "d") * blocks["scales"].astype(np.float32)
    return (scales[:, :, None] * levels.astype(np.float32)).reshape(len(blocks), 256)


def _column(blocks: Blocks, field: str) -> Floats:
    """A float16 number for each block as float32 [num_blocks, 1]."""
    return blocks[field].astype(np.float32)[:, None]


def _nibbles(packed: Levels) -> Levels:
    """[blocks, 16] -> [blocks, 32]: the low nibbles are the first half, the high ones the second."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(words: Levels) -> Levels:
    """[blocks] -> [blocks, 32]: bit i of each word, as 16 or 0."""
    return ((words[:, None] >> np.arange(32, dtype=np.uint32) & 1) << 4).astype(np.uint8)


def _nibble_groups(packed: Levels) -> Levels:
    """[blocks, 128] -> [blocks, 8, 32]."""
    groups = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _scaled_groups(blocks: Blocks, levels: Levels) -> Floats:
    """d * scale * level - dmin * minimum, with 6-bit scales and minima for each of the 8 groups."""
    scales, minima = _six_bit_pairs(blocks["scales"])
    scale, minimum = _column(blocks, "d") * scales, _column(blocks, "dmin") * minima
    return (scale[:, :, None] * levels.astype(np.float32) - minimum[:, :, None]).reshape(len(blocks), 256)


def _six_bit_pairs(packed: Levels) -> tuple[Levels, Levels]:
    """[blocks, 12] -> scales and minima [blocks, 8], as float32.

    Bytes 0..3 and 4..7 hold scales and minima 0..3 in their low six bits; 4..7 have their low four bits in the nibbles
    of bytes 8..11, and their upper two in the top bits of bytes 0..7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


LAYOUTS: dict[Format, np.dtype[Any]] = {
    Format.F32: np.dtype([("x", "<f4", 1)]),
    Format.F16: np.dtype([("x", "<f2", 1)]),
    Format.BF16: np.dtype([("x", "<u2", 1)]),
    Format.Q4_0: np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    Format.Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]),
    Format.Q5_0: np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)]),
    Format.Q5_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)]),
    Format.Q8_0: np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    Format.Q4_K: np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]),
    Format.Q5_K: np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]),
    Format.Q6_K: np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
}
"""The block structure of each format."""

DECODERS: dict[Format, Callable[[Blocks], Floats]] = {
    Format.F32: _f32,
    Format.F16: _f16,
    Format.BF16: _bf16,
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
    Format.Q5_0: _q5_0,
    Format.Q5_1: _q5_1,
    Format.Q8_0: _q8_0,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
}

assert all(LAYOUTS[format_].itemsize == size for format_, (_, size) in BLOCKS.items())
