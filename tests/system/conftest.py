"""The default model, loaded once for all tests that only ask it something."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from tests.system.serving import Served, serving


@pytest.fixture(scope="session", autouse=True)
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where engines that break on purpose leave their records: not among those of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("dumps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CRASH_DUMP_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(default_model, max_num_seqs=16, max_model_len=2048, seed=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def server(default_model: Path) -> Iterator[Served]:
    with serving(str(default_model), "--max-model-len", "4096") as server:
        yield server
