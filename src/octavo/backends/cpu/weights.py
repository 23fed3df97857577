"""How the tensors of a checkpoint become packed matrices: which are fused, and in which number format."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.cpu import _native
from octavo.models.tensors import Format, TensorInfo, TensorSource

PANEL = 16
"""Rows of a packed matrix that the kernels compute side by side."""

KINDS = ("q4", "q8", "bf16", "f32")
"""Packed formats, each able to hold all that the ones before it hold."""

_KIND_OF = {
    Format.Q4_0: "q4",
    Format.Q4_1: "q4",
    Format.Q4_K: "q4",
    Format.Q5_0: "q8",
    Format.Q5_1: "q8",
    Format.Q5_K: "q8",
    Format.Q6_K: "q8",
    Format.Q8_0: "q8",
    Format.F16: "bf16",
    Format.BF16: "bf16",
    Format.F32: "f32",
}
_KIND_OF_DTYPE = {"float32": "f32", "bfloat16": "bf16"}
_KIND_OF_QUANTIZATION = {"int8": "q8", "int4": "q4"}
_FLOATS = {Format.F32, Format.F16, Format.BF16}
_GROUP = 32
"""Elements along a row that share a scale in q4 and q8."""
_TABLES = ("embed", "output")
"""Matrices with a row for each token: never below 8 bits, since every token is looked up in one and scored by one."""


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs tensors of one source with one pool's threads, into one arena. `dtype` is auto, float32 or bfloat16.

    `quantization`, int8 or int4, is what matrices of floats are rounded to; quantised ones stay as they are.
    """

    tensors: TensorSource
    pool: _native.Pool
    dtype: str
    arena: _native.Arena
    quantization: str | None = None

    def matrix(self, name: str) -> _native.PackedWeight:
        """The tensor alone."""
        return self._fused([name], first_panels=[0], panel_step=1)

    def stacked(self, names: Sequence[str]) -> _native.PackedWeight:
        """The tensors under one another. Each but the last has a multiple of PANEL rows, or ValueError."""
        panels = [self._panels(name) for name in names]
        return self._fused(names, first_panels=[sum(panels[:i]) for i in range(len(panels))], panel_step=1)

    def interleaved(self, first: str, second: str) -> _native.PackedWeight:
        """Panels of the two taken in turn: what SwiGLU multiplies lies side by side."""
        return self._fused([first, second], first_panels=[0, 1], panel_step=2)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A norm's weights as float32."""
        info = self.tensors.info(name)
        raw = _native.dequantise(bytes(self.tensors.raw(name)), info.format.value, info.shape[0])
        return np.frombuffer(raw, np.float32)

    def _panels(self, name: str) -> int:
        rows = self.tensors.info(name).shape[0]
        if rows % PANEL:
            raise ValueError(f"tensor {name} has {rows} rows, this backend needs a multiple of {PANEL}")
        return rows // PANEL

    def _fused(self, names: Sequence[str], *, first_panels: Sequence[int], panel_step: int) -> _native.PackedWeight:
        infos = [self.tensors.info(name) for name in names]
        kind = self._kind_of_dtype() or max(map(self._kind, names, infos), key=KINDS.index)
        rows, formats = sum(info.shape[0] for info in infos), [info.format.value for info in infos]
        weight = _native.PackedWeight(self.arena, kind, formats, rows, infos[0].shape[1])
        for name, info, first in zip(names, infos, first_panels, strict=True):
            raw = self.tensors.raw(name)
            weight.pack(self.pool, raw, info.format.value, info.shape[0], first, panel_step)
        return weight

    def _kind_of_dtype(self) -> str | None:
        return _KIND_OF_DTYPE.get(self.dtype)

    def _kind(self, name: str, info: TensorInfo) -> str:
        if not self.is_quantised(name):
            return _KIND_OF[info.format]
        return "q8" if name in _TABLES else _KIND_OF_QUANTIZATION[self.quantization or ""]

    def is_quantised(self, name: str) -> bool:
        """Is this tensor rounded at load, because it is asked for?"""
        info = self.tensors.info(name)
        is_float_matrix = info.format in _FLOATS and len(info.shape) == 2
        return self.quantization is not None and is_float_matrix and info.shape[1] % _GROUP == 0

    def report(self) -> tuple[str, ...]:
        """A line for people, where a quantisation is asked for."""
        if self.quantization is None:
            return ()
        matrices = [name for name in self.tensors.names() if len(self.tensors.info(name).shape) == 2]
        rounded = [name for name in matrices if self.is_quantised(name)]
        formats = sorted({self.tensors.info(name).format for name in matrices if name not in rounded})
        stay = f"; {len(matrices) - len(rounded)} stay as they are ({', '.join(formats)})" if formats else ""
        tables = " (embeddings and output head to int8)" if self.quantization != "int8" else ""
        return (f"quantization: {len(rounded)} matrices of floats rounded to {self.quantization}{tables}{stay}",)
