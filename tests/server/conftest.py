"""The tiny model, and a server over it that all tests of the folder share."""

from collections.abc import Iterator

import pytest

from octavo.models.checkpoint import Checkpoint
from tests.server.site import Gate, Site, backend_of, running, tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def site(checkpoint: Checkpoint) -> Iterator[Site]:
    with running(checkpoint) as site:
        yield site


@pytest.fixture
def gated(checkpoint: Checkpoint) -> Iterator[tuple[Site, Gate]]:
    """A server of its own whose engine computes a step only when the gate lets it. Two choices run at once."""
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, backend=gate, max_num_seqs=2) as site:
        yield site, gate
        gate.open()
