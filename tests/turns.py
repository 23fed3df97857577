"""Turns: where tests run in several processes, one marked `alone` runs while no other does."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Holds the room, among those who share the folder: with whoever is in it, or `alone`.

    Who goes in holds the door meanwhile, so that who waits to be alone lets nobody else in.
    """
    with (folder / "room").open("w") as room:
        with (folder / "door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
