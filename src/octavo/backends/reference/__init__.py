"""The reference backend: numpy, naive, complete."""

from octavo.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
