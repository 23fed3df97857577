"""All Backends, on tiny models: what the contract suite is run on."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

import numpy as np

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.cpu.isa import candidates
from octavo.backends.ledger import LedgerBackend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.simulated import SimulatedBackend, StepCosts, VirtualTime
from octavo.core.ports import Backend
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint, Vocabulary
from octavo.models.layer_groups import layer_groups
from octavo.models.tensors import Format, TensorInfo
from octavo.models.windows import Windows
from tests.contract.grouped import Grouped
from tests.tiny import TINY_VOCAB_SIZE, TinyModel, make_tiny

ISAS = tuple(candidate.name for candidate in candidates() if candidate.accepted)
MAX_MODEL_LEN = 256
WINDOWS = (None, 20, 20)
"""Two groups with a layer to spare: windows end within a block, and within a tile of the kernels."""
POISON = TINY_VOCAB_SIZE - 1
"""In poisoned models, the token whose embedding is not a number."""

Open = Callable[..., Backend]


@dataclass(frozen=True)
class MemorySource:
    """A TensorSource over a tiny model."""

    model: TinyModel

    def names(self) -> Collection[str]:
        return self.model.tensors.keys()

    def info(self, name: str) -> TensorInfo:
        return self.model.tensors[name][0]

    def raw(self, name: str) -> memoryview:
        return memoryview(self.model.tensors[name][1])


@cache
def tiny_checkpoint(
    weights: str = "F32", embed: str = "F32", *, poisoned: bool = False, windows: Windows = ()
) -> Checkpoint:
    """Two layers or `windows`, four heads on two KV heads, an output head of its own; matrices in format `weights`."""
    layers = {"num_layers": len(windows) or 2, "windows": windows}
    sizes = {"tied_output": False, "max_model_len": MAX_MODEL_LEN, "seed": 5}
    model = make_tiny(format=weights, embed_format=embed, **layers, **sizes)
    if poisoned:
        info, raw = model.tensors["embed"]
        model.tensors["embed"] = info, _poison_last_row(info, raw)
    return Checkpoint(
        name="tiny",
        path="",
        spec=model.spec,
        tensors=MemorySource(model),
        vocabulary=Vocabulary(),
        fingerprint=b"tiny model .... ",
        weight_format=weights,
        weight_bytes=sum(info.num_bytes for info, _ in model.tensors.values()),
    )


def _poison_last_row(info: TensorInfo, raw: bytes) -> bytes:
    """NaN in every element. (In a block format a scale that is not a number is refused when it is loaded.)"""
    rows = np.frombuffer(bytearray(raw), np.uint8).reshape(info.shape[0], -1)
    if info.format is Format.F32:
        rows[-1].view(np.float32)[:] = np.nan
    else:
        assert info.format is Format.BF16
        rows[-1].view(np.uint16)[:] = 0x7FC0
    return rows.tobytes()


def _as_one_group(backend: Backend, windows: Windows) -> Backend:
    return backend if windows == (None,) else Grouped(backend, windows)


def open_ledger(windows: Windows = (None,)) -> Open:
    """`windows`: of each KV group."""

    def open_backend(num_blocks: int, block_size: int, *, poisoned: bool = False) -> Backend:
        assert not poisoned, "a ledger has no weights"
        backend = LedgerBackend(
            num_blocks=num_blocks * len(windows),
            block_size=block_size,
            vocab_size=TINY_VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            windows=windows,
        )
        return _as_one_group(backend, windows)

    return open_backend


def open_simulated(num_blocks: int, block_size: int, *, poisoned: bool = False) -> Backend:
    """Over a ledger, whose answers it gives at other times."""
    ledger = open_ledger()(num_blocks, block_size, poisoned=poisoned)
    assert isinstance(ledger, LedgerBackend)
    return SimulatedBackend(ledger, StepCosts(base_s=0.01, token_s=0.001), VirtualTime())


def open_reference(windows: Windows = (), kv_cache_dtype: str = "auto") -> Open:
    """`windows`: of each layer."""

    def open_backend(num_blocks: int, block_size: int, *, poisoned: bool = False) -> Backend:
        checkpoint = tiny_checkpoint(poisoned=poisoned, windows=windows)
        groups = layer_groups(checkpoint.spec).windows
        backend = ReferenceBackend(
            checkpoint,
            num_blocks=num_blocks * len(groups),
            block_size=block_size,
            max_model_len=MAX_MODEL_LEN,
            dequantize=dequantize,
            kv_cache_dtype=kv_cache_dtype,
        )
        return _as_one_group(backend, groups)

    return open_backend


@dataclass(frozen=True)
class CpuKind:
    """One way to run the native backend: formats of the file, of the weights in memory, and of the cache."""

    weights: str
    embed: str
    dtype: str
    kv: str
    num_threads: int
    windows: Windows = ()


CPU_KINDS = {
    "f32": CpuKind("F32", "F32", "float32", "float32", 2),
    "q4_1": CpuKind("Q4_1", "Q8_0", "auto", "bfloat16", 2),
    "bf16": CpuKind("BF16", "BF16", "auto", "float16", 1),
    "int8": CpuKind("Q4_1", "Q8_0", "auto", "int8", 2),
    "windows": CpuKind("Q4_1", "Q8_0", "auto", "bfloat16", 2, WINDOWS),
    "all-windows": CpuKind("F32", "F32", "float32", "float32", 1, (9, 9)),
}


@cache
def cpu_model(isa: str, kind: CpuKind, *, poisoned: bool = False) -> CpuModel:
    embed = "F32" if poisoned and kind.embed == "Q8_0" else kind.embed
    checkpoint = tiny_checkpoint(kind.weights, embed, poisoned=poisoned, windows=kind.windows)
    return CpuModel.load(checkpoint, dtype=kind.dtype, isa=isa, num_threads=kind.num_threads)


def open_cpu(isa: str, kind: CpuKind) -> Open:
    def open_backend(num_blocks: int, block_size: int, *, poisoned: bool = False) -> Backend:
        model = cpu_model(isa, kind, poisoned=poisoned)
        groups = layer_groups(model.spec).windows
        backend = CpuBackend(
            model,
            num_blocks=num_blocks * len(groups),
            block_size=block_size,
            max_model_len=MAX_MODEL_LEN,
            kv_cache_dtype=kind.kv,
        )
        return _as_one_group(backend, groups)

    return open_backend


WITH_WEIGHTS: dict[str, Open] = {
    "reference": open_reference(),
    "reference-windows": open_reference(WINDOWS),
    "reference-int8": open_reference(kv_cache_dtype="int8"),
    **{f"cpu-{isa}-{name}": open_cpu(isa, kind) for isa in ISAS for name, kind in CPU_KINDS.items()},
}
ALL: dict[str, Open] = {
    "ledger": open_ledger(),
    "ledger-windows": open_ledger((None, 5)),
    "simulated": open_simulated,
    **WITH_WEIGHTS,
}
