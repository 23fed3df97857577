"""The tiny models with sliding windows that windows.json has Transformers' answers for."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.windows import Windows
from tests.tiny import TinyModel, make_tiny, write_directory, write_gguf

WINDOW = 8
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "layer_types": None}


@dataclass(frozen=True)
class Windowed:
    name: str
    windows: Windows
    seed: int
    config: tuple[tuple[str, Any], ...] = ()
    """What config.json says beside what `tests.tiny` writes."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Five windows long: what lies before the last one comes through the layers below, or not at all."""
        return tuple(int(token) for token in np.random.default_rng(self.seed).integers(3, 259, 5 * WINDOW))

    def model(self) -> TinyModel:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "num_kv_heads": 2}
        layers = {"num_layers": len(self.windows), "windows": self.windows}
        return make_tiny(head_dim=16, tied_output=False, seed=self.seed, **sizes, **layers)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, (_, raw) in sorted(self.model().tensors.items()):
            digest.update(name.encode() + raw)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        return write_directory(self.model(), folder, **dict(self.config))

    def write_gguf(self, path: Path) -> Path:
        return write_gguf(self.model(), path)


CASES = (
    Windowed("ministral", (None, WINDOW, WINDOW, None, WINDOW), 11),
    Windowed("mistral", (WINDOW,) * 3, 12, tuple(MISTRAL.items())),
)
