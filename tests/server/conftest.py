"""The tiny model, and a server over it that all tests of the folder share."""

from collections.abc import Iterator

import pytest

from octavo.models.checkpoint import Checkpoint
from tests.server.site import Site, running, tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def site(checkpoint: Checkpoint) -> Iterator[Site]:
    with running(checkpoint) as site:
        yield site
