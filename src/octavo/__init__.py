"""Octavo: an LLM inference and serving engine around a paged KV cache.

`import octavo` is light; the names below load what they need when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchParams", "PoolingParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

if TYPE_CHECKING:
    from octavo.boot import LLM
    from octavo.core.sampling import SamplingParams, StructuredOutputsParams
    from octavo.engine.beam_search import BeamSearchParams
    from octavo.engine.embedding import PoolingParams

_HOMES = {
    "LLM": "octavo.boot",
    "BeamSearchParams": "octavo.engine.beam_search",
    "PoolingParams": "octavo.engine.embedding",
    "SamplingParams": "octavo.core.sampling",
    "StructuredOutputsParams": "octavo.core.structured",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
