"""Subjects: the models that are measured, by name, and where they lie."""

from pathlib import Path

from bench.random_models import SHAPES, write_model
from bench.report.section import Conditions
from octavo.loaders import open_checkpoint
from octavo.loaders.hub import default_model_path, resolve

DEFAULT, BF16 = "default", "bf16"
RANDOM = tuple(SHAPES)
"""Random models in Q4_0, by their shapes."""
_BUILD = Path(__file__).resolve().parents[2] / "build"


def path_of(subject: str, conditions: Conditions) -> Path:
    """The file or folder of a subject; a random one is written where it is not there yet. Raises LookupError."""
    if subject == DEFAULT:
        return default_model_path() if conditions.model is None else resolve(conditions.model)
    if subject in RANDOM:
        return _random(subject)
    if conditions.peers is None:
        raise LookupError(f"{subject} needs --peers DIR")
    return conditions.peers / "smollm2-hf"


def format_of(path: Path) -> str:
    """What most of its weights are stored in, such as Q4_1."""
    return open_checkpoint(path).weight_format


def _random(shape: str) -> Path:
    """Its bytes follow from its name, so one that is there is the right one."""
    path = _BUILD / f"random-{shape}-Q4_0.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        write_model(part, shape, SHAPES[shape], "Q4_0", default_model_path())
        part.rename(path)
    return path
