"""LoadError: every problem with a file on disk, or with getting one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.models.fields import ModelError


class LoadError(ValueError):
    """Says which file, what in it, the value found, and what would have been right."""


def bad_file(path: str | Path, message: str) -> LoadError:
    """A LoadError for people: the file first, then what is wrong with it."""
    return LoadError(f"{path}: {message}")


@contextmanager
def located(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of whatever is wrong inside the block."""
    try:
        yield
    except (LoadError, ModelError) as error:
        raise bad_file(path, str(error)) from None
