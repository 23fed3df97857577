"""LoadError: every problem with a file on disk, or with getting one."""

from pathlib import Path


class LoadError(ValueError):
    """Says which file, what in it, the value found, and what would have been right."""


def bad_file(path: str | Path, message: str) -> LoadError:
    """A LoadError for people: the file first, then what is wrong with it."""
    return LoadError(f"{path}: {message}")
