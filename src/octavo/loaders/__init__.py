"""Bytes on disk -> a Checkpoint: GGUF files and Hugging Face folders, and where to get them."""

from octavo.loaders.checkpoint import open_checkpoint
from octavo.loaders.errors import LoadError

__all__ = ["LoadError", "open_checkpoint"]
