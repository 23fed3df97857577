"""Octavo: an LLM inference and serving engine around a paged KV cache.

`import octavo` is light; the names below load what they need when they are first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]

if TYPE_CHECKING:
    from octavo.boot import LLM
    from octavo.core.sampling import SamplingParams, StructuredOutputsParams


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo.boot import LLM

        return LLM
    if name == "SamplingParams":
        from octavo.core.sampling import SamplingParams

        return SamplingParams
    if name == "StructuredOutputsParams":
        from octavo.core.structured import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
