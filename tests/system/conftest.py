"""The default model, loaded once for all tests that only ask it something."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from tests.system.serving import Served, serving


@pytest.fixture(scope="session")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(default_model, max_num_seqs=16, max_model_len=2048, seed=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def server(default_model: Path) -> Iterator[Served]:
    with serving(str(default_model), "--max-model-len", "4096") as server:
        yield server
