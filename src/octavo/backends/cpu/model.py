"""CpuModel: a checkpoint's weights, packed for the kernels of this machine. It has no cache yet."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.cpu import _native
from octavo.backends.cpu.isa import choose
from octavo.backends.cpu.weights import Packer
from octavo.config.machine import usable_cpus
from octavo.models.checkpoint import Checkpoint
from octavo.models.layer_groups import layer_groups
from octavo.models.spec import ModelSpec

KV_DTYPES = {"auto": "bfloat16"} | {name: name for name in ("bfloat16", "float16", "float32", "int8")}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackedLayer:
    attn_norm: NDArray[np.float32]
    qkv: _native.PackedWeight
    o: _native.PackedWeight
    ffn_norm: NDArray[np.float32]
    gate_up: _native.PackedWeight
    down: _native.PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModel:
    """Packed weights and the threads that work on them; shared by all backends made of it."""

    spec: ModelSpec
    isa: str
    num_threads: int
    report: tuple[str, ...]
    """For people: the kernels and why, the threads and why, what was quantised."""
    weight_format: str
    """The file's, and what became of it where something was asked for: `Q4_1`, `F16-int8`, `Q8_0-float32`."""
    weight_bytes: int
    pool: _native.Pool
    embed: _native.PackedWeight
    output: _native.PackedWeight
    """The same object as `embed` where the output is tied."""
    output_norm: NDArray[np.float32]
    layers: tuple[PackedLayer, ...]

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        isa: str | None = None,
        num_threads: int | None = None,
        progress: Progress = lambda _: None,
    ) -> "CpuModel":
        """Packs all weights. `dtype` is auto (as the file has them), float32 or bfloat16; `quantization`, with auto,
        rounds matrices of floats to int8 or int4.

        Raises ValueError for kernels that this machine does not run, and for shapes that the kernels do not have.
        """
        spec = checkpoint.spec
        check_spec(spec)
        name, why = choose(isa)
        threads, reason = usable_cpus() if num_threads is None else (num_threads, "as configured")
        packer = Packer(checkpoint.tensors, _native.Pool(threads), dtype, _native.Arena(), quantization)
        layers: list[PackedLayer] = []
        for index in range(spec.num_layers):
            progress(
                f"{'packing' if quantization is None else 'quantising'} weights: layer {index + 1} of {spec.num_layers}"
            )
            layers.append(_layer(packer, f"layers.{index}."))
        embed = packer.matrix("embed")
        output = embed if spec.tied_output else packer.matrix("output")
        return cls(
            spec=spec,
            isa=name,
            num_threads=threads,
            report=(f"kernels: {name}, {why}", f"threads: {threads}, {reason}", *packer.report()),
            weight_format=checkpoint.format_as(quantization or (None if dtype == "auto" else dtype)),
            weight_bytes=_total_bytes(layers, embed, output),
            pool=packer.pool,
            embed=embed,
            output=output,
            output_norm=packer.vector("output_norm"),
            layers=tuple(layers),
        )

    def kv_bytes_per_token(self, kv_cache_dtype: str) -> int:
        """Bytes of one token in a block: of the layers of one KV group. Raises ValueError for an unknown dtype."""
        row_bytes = _native.kv_tile_bytes(resolve_kv_dtype(kv_cache_dtype), 1, self.spec.head_dim)
        return row_bytes * self.spec.kv_rows_per_token * layer_groups(self.spec).slots


def resolve_kv_dtype(kv_cache_dtype: str) -> str:
    """The number format that `auto` and the others stand for. Raises ValueError for one that is not supported."""
    if kv_cache_dtype not in KV_DTYPES:
        raise ValueError(f"kv_cache_dtype must be one of {', '.join(KV_DTYPES)}, got {kv_cache_dtype!r}")
    return KV_DTYPES[kv_cache_dtype]


def check_spec(spec: ModelSpec) -> None:
    """Raises ValueError where the kernels do not have what the network needs, with the number that does not fit."""
    multiples = {"head_dim": (spec.head_dim, 16), "hidden_size": (spec.hidden_size, 16)}
    multiples["intermediate_size"] = (spec.intermediate_size, 16)
    for name, (value, factor) in multiples.items():
        if value % factor:
            raise ValueError(f"{spec.architecture}: {name} is {value}, the CPU kernels need a multiple of {factor}")
    if spec.activation != "silu":
        raise ValueError(f"{spec.architecture}: activation {spec.activation!r} is not supported, only silu is")


def _layer(packer: Packer, prefix: str) -> PackedLayer:
    return PackedLayer(
        attn_norm=packer.vector(prefix + "attn_norm"),
        qkv=packer.stacked([prefix + part for part in ("q", "k", "v")]),
        o=packer.matrix(prefix + "o"),
        ffn_norm=packer.vector(prefix + "ffn_norm"),
        gate_up=packer.interleaved(prefix + "gate", prefix + "up"),
        down=packer.matrix(prefix + "down"),
    )


def _total_bytes(layers: list[PackedLayer], embed: _native.PackedWeight, output: _native.PackedWeight) -> int:
    packed = [weight for layer in layers for weight in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    packed += [embed] if output is embed else [embed, output]
    return sum(weight.num_bytes for weight in packed)
