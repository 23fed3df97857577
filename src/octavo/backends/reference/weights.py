"""Weights as float32 arrays under the names of ModelSpec, each with its shape checked."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.models.checkpoint import Checkpoint
from octavo.models.shapes import layer_shapes
from octavo.models.tensors import TensorInfo

Array = NDArray[np.float32]
Dequantize = Callable[[memoryview, TensorInfo], Array]
"""Raw bytes of a tensor -> float32 of `info.shape`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Shapes are rows first, as in ModelSpec."""

    attn_norm: Array
    q: Array
    k: Array
    v: Array
    o: Array
    ffn_norm: Array
    gate: Array
    up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class Weights:
    embed: Array
    output_norm: Array
    output: Array
    """The same array as `embed` where the output is tied."""
    layers: tuple[Layer, ...]


def load_weights(checkpoint: Checkpoint, dequantize: Dequantize) -> Weights:
    """All weights of a checkpoint, as float32. Raises ValueError for a wrong shape, KeyError for a missing tensor."""
    spec = checkpoint.spec

    def load(name: str, shape: tuple[int, ...]) -> Array:
        info = checkpoint.tensors.info(name)
        if info.shape != shape:
            raise ValueError(f"{checkpoint.name}: tensor {name} has shape {info.shape}, the model needs {shape}")
        return np.ascontiguousarray(dequantize(checkpoint.tensors.raw(name), info), np.float32)

    shapes = layer_shapes(spec)
    layers = tuple(
        Layer(**{part: load(f"layers.{index}.{part}", shape) for part, shape in shapes.items()})
        for index in range(spec.num_layers)
    )
    embed = load("embed", (spec.vocab_size, spec.hidden_size))
    output = embed if spec.tied_output else load("output", (spec.vocab_size, spec.hidden_size))
    return Weights(embed, load("output_norm", (spec.hidden_size,)), output, layers)
