"""A model small enough for the reference backend to answer at once."""

import os
from pathlib import Path

import pytest

from tests.tiny import make_tiny, write_gguf

SMALL = ("--backend", "reference", "--num-blocks", "64")
"""Flags of every command that loads the tiny model."""


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(make_tiny(seed=3), tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of whoever runs the tests are not part of them."""
    for name in [name for name in os.environ if name.startswith("OCTAVO_") and not name.startswith("OCTAVO_TEST_")]:
        monkeypatch.delenv(name)
