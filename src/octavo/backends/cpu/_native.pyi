"""The native module: packed weights, programs over a paged KV cache, sampling. Built from native/src/bind."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

class Pool:
    """Threads that live as long as it does; its callers are one of `num_threads`."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...

class Arena:
    """Memory for many matrices, in huge pages."""

    def __init__(self) -> None: ...

class PackedWeight:
    """A matrix [n, k] in the layout that the kernels stream. `kind` is q4, q8, bf16 or f32.

    `formats` are those that will be packed into it. Raises ValueError where rows do not fill whole groups, or a format
    does not fit the kind or is none of these.
    """

    def __init__(self, arena: Arena, kind: str, formats: Sequence[str], n: int, k: int) -> None: ...
    def pack(
        self, pool: Pool, raw: memoryview | bytes, format: str, rows: int, first_panel: int = 0, panel_step: int = 1
    ) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...

class Trace:
    """Where the time of a run went: stages, one after the other."""

    def __init__(self) -> None: ...
    @property
    def spans(self) -> list[tuple[str, int, int, float, float, float, float, float, float]]:
        """Part, operation or -1, rows, began, ended; bytes streamed, read and written; operations."""

class Program:
    """A network as a list of operations; `run` computes one step. Keeps the weights that it reads alive."""

    def __init__(
        self,
        isa: str,
        pool: Pool,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rope_dim: int,
        scale: float,
        inverse_frequencies: Sequence[float],
    ) -> None: ...
    def buffer(self, columns: int) -> int: ...
    def embed(self, table: PackedWeight, out: int) -> None: ...
    def matmul(
        self, source: int, norm: Floats | None, eps: float, weight: PackedWeight, epilogue: str, out: int
    ) -> None: ...
    def attention(self, qkv: int, out: int, group: int, window: int) -> None: ...
    def head(self, source: int, norm: Floats, eps: float, weight: PackedWeight) -> None: ...
    def allocate(self, type: str, num_blocks: int, block_size: int) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    def read_block(self, block: int, out: Bytes) -> None: ...
    def write_block(self, block: int, raw: Bytes) -> None: ...
    def run(
        self,
        tokens: Ints,
        starts: Ints,
        row_offsets: Ints,
        block_ids: Ints,
        block_offsets: Ints,
        copies: Ints,
        logit_rows: Ints,
        jobs: Bytes,
        ids: Ints,
        values: Floats,
        masks: Bytes,
        scored: Bytes,
        alternatives: Bytes,
        sum_rows: Ints,
        sums: Doubles,
        trace: Trace | None = None,
    ) -> tuple[float, float, float]:
        """Seconds in the layers, the output head and sampling. Raises ValueError, with nothing done, for a bad step.

        A `trace` gets the stages of this run behind those that it has.
        """

def read_bandwidth(isa: str, pool: Pool, num_bytes: int, seconds: float) -> float:
    """Bytes a second that all threads read from memory: the best of the passes that end in time."""

def peak_operations(isa: str, pool: Pool, kind: str, seconds: float) -> float:
    """Operations a second of the dot product of this kind of weights, from registers."""

def candidates() -> list[tuple[str, bool, str]]:
    """Kernel sets in order of preference: name, accepted, why not."""

def kv_tile_bytes(type: str, tokens: int, head_dim: int) -> int:
    """Bytes of the keys, or of the values, of one head and so many tokens."""

def dequantise(raw: bytes, format: str, count: int) -> bytes:
    """`count` elements of a file format as float32."""

# Single kernels, for tests and benchmarks, on the calling thread.

def sample_rows(
    isa: str, logits: Floats, jobs: Bytes, ids: Ints, values: Floats, masks: Bytes, scored: Bytes, alternatives: Bytes
) -> None: ...
def matmul(
    isa: str, weight: PackedWeight, x: Floats, norm: Floats | None, eps: float, epilogue: str, out: Floats
) -> None: ...
def gated_matmul(isa: str, gate_up: PackedWeight, down: PackedWeight, x: Floats, out: Floats) -> bool: ...
def gather(isa: str, weight: PackedWeight, row: int, out: Floats) -> None: ...
def attend(
    isa: str,
    type: str,
    block_size: int,
    blocks: Ints,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    inverse_frequencies: Floats,
    scale: float,
    rows_at_once: int,
    qkv: Floats,
    out: Floats,
) -> None: ...
