"""A server with the default model that all clients visit, and what must be true when one has gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import interpreter
from tests.clients.page import addressed, example_of
from tests.clients.rest import check_rest
from tests.system.serving import MODEL, Served, serving


@pytest.fixture(scope="session")
def server(default_model: Path) -> Iterator[Served]:
    with serving(str(default_model), "--max-model-len", "4096") as server:
        yield server


@pytest.fixture(scope="session")
def installed() -> None:
    if not interpreter.PYTHON.exists():
        pytest.skip(interpreter.MISSING)


@pytest.fixture
def visited(server: Served) -> Iterator[Served]:
    """The server, which must be at rest when the test is over."""
    yield server
    check_rest(server)


@pytest.fixture(scope="session")
def ask(server: Served, installed: None) -> Callable[[str, str], Any]:
    """Runs the example that imports a package, and a program, against the server; it must be at rest afterwards.

    What the program printed as JSON, with what the example printed as `documented`.
    """

    def ask(package: str, program: str) -> Any:
        example = addressed(example_of(package), server)
        documented, said = interpreter.said(program, server.url, MODEL, example=example)
        check_rest(server)
        return {**said, "documented": documented}

    return ask
