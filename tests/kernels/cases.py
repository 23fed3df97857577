"""Kernel cases: what is computed, the answer in float64, and a bound that the rounding of each number format explains.

One case drives the correctness tests on every instruction set and the benchmark in bench/kernels.py.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.cpu import _native
from octavo.backends.cpu.isa import candidates
from octavo.loaders.dequant import dequantize
from octavo.models.tensors import BLOCKS, Format, TensorInfo

ISAS = tuple(candidate.name for candidate in candidates() if candidate.accepted)
FLOAT32_EPS = 2.0**-23
BF16_EPS = 2.0**-8
GROUP = 32
PANEL = 16

Floats = NDArray[np.float64]


def raw_tensor(format_: Format, n: int, k: int, seed: int) -> bytes:
    """Random blocks of a format with scales of a sensible size, so that any byte pattern is a valid weight."""
    rng = np.random.default_rng(seed)
    if BLOCKS[format_][0] == 1:
        floats = rng.normal(0, 0.1, n * k).astype(np.float32)
        if format_ is Format.F32:
            return floats.tobytes()
        if format_ is Format.F16:
            return floats.astype(np.float16).tobytes()
        return (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    elements, size = BLOCKS[format_]
    blocks = rng.integers(0, 256, (n * k // elements, size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    if format_ is Format.Q6_K:
        blocks[:, -2:] = scales[:, :2]
    else:
        num_scale_bytes = 4 if format_ in (Format.Q4_1, Format.Q5_1, Format.Q4_K, Format.Q5_K) else 2
        blocks[:, :num_scale_bytes] = scales[:, :num_scale_bytes]
    return blocks.tobytes()


@dataclass(frozen=True, slots=True)
class MatmulCase:
    """out = x w^T for `rows` rows of x [rows, k] and w [n, k], stored in `format` and packed as `kind`."""

    format: Format
    kind: str
    n: int
    k: int
    rows: int

    def __str__(self) -> str:
        return f"{self.format}-as-{self.kind}-{self.n}x{self.k}-rows{self.rows}"

    @property
    def columns(self) -> int:
        return -(-self.n // PANEL) * PANEL

    def weight(self) -> tuple[_native.PackedWeight, Floats]:
        """The packed matrix, and its values."""
        raw = raw_tensor(self.format, self.n, self.k, seed=self.n + self.k)
        packed = _native.PackedWeight(_native.Arena(), self.kind, [self.format.value], self.n, self.k)
        packed.pack(_native.Pool(1), raw, self.format.value, self.n)
        return packed, dequantize(raw, TensorInfo((self.n, self.k), self.format)).astype(np.float64)

    def x(self) -> NDArray[np.float32]:
        return np.random.default_rng(self.rows).normal(0, 1, (self.rows, self.k)).astype(np.float32)

    def bound(self, x: Floats, w: Floats) -> Floats:
        """|error| per output: rounding of activations, of weights, and of the float32 sums."""
        products = np.abs(x) @ np.abs(w).T
        sums = self.k * FLOAT32_EPS * products
        if self.kind == "f32":
            return sums
        if self.kind == "bf16":
            exact = self.format is Format.BF16
            return sums + BF16_EPS * products * (0.5 if exact else 1.0)
        largest = np.abs(x).reshape(len(x), -1, GROUP).max(axis=2)
        weights = np.abs(w).reshape(len(w), -1, GROUP).sum(axis=2)
        rounded_x = (largest / 254) @ weights.T
        # Scales of K formats are products that 16 bits round; groups of Q6_K become 8-bit groups of 32.
        coarse = np.abs(w).reshape(len(w), -1, GROUP).max(axis=2)
        share = {Format.Q4_K: 2.0**-9, Format.Q5_K: 2.0**-9}.get(self.format, 0.0)
        if self.format is Format.Q6_K or BLOCKS[self.format][0] == 1:
            share = 1 / 200 if self.kind == "q8" else 1 / 14
        rounded_w = share * np.abs(x).reshape(len(x), -1, GROUP).sum(axis=2) @ coarse.T
        # A K format's minimum is rounded with its own size, which may be above the largest value.
        return rounded_x + 4 * rounded_w + sums * 4

    def run(self, isa: str, packed: _native.PackedWeight, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty((len(x), self.columns), np.float32)
        _native.matmul(isa, packed, x, None, 0.0, "store", out)
        return out


MOST = 0
"""Query rows at once: as many as a kernel set takes."""


@dataclass(frozen=True, slots=True)
class AttendCase:
    """Causal attention of `rows` tokens over a fresh paged cache; each attends to the last `window` ones, 0: to all."""

    kv_dtype: str
    block_size: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    window: int = 0

    def __str__(self) -> str:
        heads = f"h{self.heads}k{self.kv_heads}d{self.head_dim}r{self.rope_dim}"
        return f"{self.kv_dtype}-block{self.block_size}-rows{self.rows}-{heads}-window{self.window}"

    def qkv(self) -> NDArray[np.float32]:
        columns = (self.heads + 2 * self.kv_heads) * self.head_dim
        return np.random.default_rng(self.rows).normal(0, 1, (self.rows, columns)).astype(np.float32)

    def frequencies(self) -> NDArray[np.float32]:
        half = self.rope_dim // 2
        return (10000.0 ** (-np.arange(half) / max(half, 1))).astype(np.float32)

    def run(self, isa: str, qkv: NDArray[np.float32], *, rows_at_once: int, seed: int = 0) -> NDArray[np.float32]:
        """`seed` shuffles which physical blocks are used; `rows_at_once` counts a KV head's queries, or is `MOST`."""
        blocks = np.random.default_rng(seed).permutation(-(-self.rows // self.block_size)).astype(np.int32)
        out = np.empty((self.rows, self.heads * self.head_dim), np.float32)
        shape = (self.heads, self.kv_heads, self.head_dim, self.window)
        scale = self.head_dim**-0.5
        arrays = (self.frequencies(), scale, rows_at_once, qkv, out)
        _native.attend(isa, self.kv_dtype, self.block_size, blocks, *shape, *arrays)
        return out

    def expected(self, qkv: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """The answer [rows, heads * head_dim] and a bound on each of its errors."""
        parts = qkv.astype(np.float64).reshape(self.rows, -1, self.head_dim)
        q, k = self._rotated(parts[:, : self.heads]), self._rotated(parts[:, self.heads : self.heads + self.kv_heads])
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(parts[:, self.heads + self.kv_heads :], group, axis=1)
        scale = self.head_dim**-0.5
        scores = np.einsum("thd,shd->hts", q, k) * scale
        distance = np.subtract.outer(np.arange(self.rows), np.arange(self.rows))
        scores[:, (distance < 0) | (distance >= (self.window or self.rows))] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        out = np.einsum("hts,shd->thd", weights, v)
        sizes = np.einsum("hts,shd->thd", weights, np.abs(v))
        if self.kv_dtype == "int8":
            bound = self._int8_error(q, k, v, weights, sizes, scale)
        else:
            bound = sizes * self._relative_error(q, k, scale)
        return out.reshape(self.rows, -1), (bound + 1e-6).reshape(self.rows, -1)

    def _rotated(self, x: Floats) -> Floats:
        half = self.rope_dim // 2
        angles = np.arange(self.rows, dtype=np.float32)[:, None] * self.frequencies()[None]
        cos, sin = np.cos(angles.astype(np.float64))[:, None], np.sin(angles.astype(np.float64))[:, None]
        low, high = x[..., :half], x[..., half : 2 * half]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin, x[..., 2 * half :]], axis=2)

    def _int8_error(self, q: Floats, k: Floats, v: Floats, weights: Floats, sizes: Floats, scale: float) -> Floats:
        """Bytes are half a step of 1/127 of their row's largest off; words of queries and weights, of 1/32767."""
        key_steps, value_steps = (np.abs(x).max(axis=2) / 254 for x in (k, v))
        query_steps = np.abs(q).max(axis=2) / 65534
        scores = np.abs(q).sum(axis=2)[:, None] * key_steps[None] + query_steps[:, None] * np.abs(k).sum(axis=2)[None]
        moved = np.expm1(2 * 1.01 * scale * scores.max(axis=1) + 1e-5)[..., None]
        rounded = np.einsum("hts,sh->th", weights, value_steps)[..., None]
        # Of a weight times its value's scale half a step of the tile's largest: each of at most 64 keys of a tile.
        words = np.minimum(64, self.rows) * np.abs(v).max() / 65534
        return sizes * moved + rounded * (1 + moved) + words

    def _relative_error(self, q: Floats, k: Floats, scale: float) -> float:
        """Errors of scores move weights by e^d - 1, and the weights and values are rounded themselves."""
        eps = {"float32": FLOAT32_EPS * 8, "float16": 2.0**-11, "bfloat16": BF16_EPS}[self.kv_dtype]
        largest = np.abs(q).max(axis=(0, 1)) @ np.abs(k).max(axis=(0, 1)) * scale
        return float(2 * np.expm1(2 * eps * min(largest, 20.0)) + 2 * eps)
