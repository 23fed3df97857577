"""Replicas with real models in this process, for tests that play their orders themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo import boot
from octavo.config.sources import from_keywords
from octavo.engine.loop import Replica
from octavo.loaders import open_checkpoint


@contextmanager
def opened(model: Path, **settings: Any) -> Iterator[Replica]:
    """A replica of this model, closed on exit."""
    config = from_keywords(model=str(model), **settings)
    built = boot.build_replica(config, open_checkpoint(model), lambda _: None)
    try:
        yield built
    finally:
        built.backend.close()
