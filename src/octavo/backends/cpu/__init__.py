"""The native CPU backend: packed weights, a program of kernels, and paged attention."""

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.model import CpuModel

__all__ = ["CpuBackend", "CpuModel"]
