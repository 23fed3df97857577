"""How weights are named and handed over: canonical names, element formats, and the TensorSource loaders implement."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Format(StrEnum):
    """Element formats as they lie in files. The quantised ones are GGML's block formats."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"


BLOCKS: dict[Format, tuple[int, int]] = {
    Format.F32: (1, 4),
    Format.F16: (1, 2),
    Format.BF16: (1, 2),
    Format.Q4_0: (32, 18),
    Format.Q4_1: (32, 20),
    Format.Q5_0: (32, 22),
    Format.Q5_1: (32, 24),
    Format.Q8_0: (32, 34),
    Format.Q4_K: (256, 144),
    Format.Q5_K: (256, 176),
    Format.Q6_K: (256, 210),
}
"""Format -> (elements in a block, bytes in a block)."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape is rows first ([out, in] for a weight); rows are contiguous in `format`."""

    shape: tuple[int, ...]
    format: Format

    @property
    def num_bytes(self) -> int:
        elements, size = BLOCKS[self.format]
        count = 1
        for dim in self.shape:
            count *= dim
        return count // elements * size


class TensorSource(Protocol):
    """The weights of one checkpoint under canonical names (`ModelSpec` lists them), in canonical row order."""

    def names(self) -> Collection[str]: ...

    def info(self, name: str) -> TensorInfo:
        """Raises KeyError for a name that is not there."""
        ...

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes, `info(name).num_bytes` of them: a view of the file where the order allows it."""
        ...
