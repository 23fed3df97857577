"""Programs of Debian's package `prometheus`, for tests that need the real ones."""

import shutil

import pytest


def program(name: str) -> str:
    """The path of one of them; the test is skipped where it is not installed, which CI does not allow."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here: apt-get install prometheus")
    return found
