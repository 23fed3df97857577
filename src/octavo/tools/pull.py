"""`octavo pull`: a model by name, from wherever it is, onto this machine."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from octavo.config.sources import Resolved
from octavo.loaders import hub
from octavo.models.catalog import DEFAULT_MODEL, MODELS
from octavo.tools.terminal import download_progress


def main(_: Resolved, options: argparse.Namespace) -> int:
    """Prints the path of what was fetched, and nothing else, to standard output."""
    if options.list:
        sys.stdout.write("\n".join(catalogue()) + "\n")
        return 0
    with download_progress() as progress:
        path = hub.pull(options.name or DEFAULT_MODEL.name, progress)
    sys.stdout.write(f"{path}\n")
    return 0


def fetch(name: str | None) -> Path:
    """Where the model lies on this machine, fetched first where it is missing; None is the default model."""
    with download_progress() as progress:
        return hub.default_model_path(progress) if name is None else hub.resolve(name, progress)


def catalogue() -> Iterator[str]:
    """A line for each model: name, size, licence, what it is, and whether it is here."""
    for model in MODELS:
        here = "here" if hub.is_cached(model) else "not downloaded"
        size = f"{model.size_bytes / 2**20:.0f} MiB"
        yield f"{model.name:28} {size:>9}  {model.license:12} {model.description} ({here})"
