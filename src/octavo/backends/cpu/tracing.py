"""Native stages of a traced run as KernelSpans, and what bounds them on this machine."""

from collections.abc import Mapping

from octavo.backends.cpu import _native
from octavo.backends.cpu.model import CpuModel
from octavo.backends.cpu.program import place_of
from octavo.core.ports import KernelSpan, MachineRates

STREAM_BYTES = 256 * 2**20
"""What is read to measure the bandwidth: more than caches hold."""

_OF_KV = {"bfloat16": "bf16", "float16": "f32", "float32": "f32", "int8": "q8"}
"""Which arithmetic attention is held against. That of int8 is wider than bytes, so this limit is out of its reach."""
_NO_OP = -1


def kernel_spans(model: CpuModel, kv_cache_dtype: str, trace: _native.Trace) -> list[KernelSpan]:
    kinds = _arithmetic(model, kv_cache_dtype)
    return [_span(kinds, *found) for found in trace.spans]


def _span(
    kinds: Mapping[tuple[str, int | None], str],
    part: str,
    number: int,
    rows: int,
    began_s: float,
    ended_s: float,
    *counts: float,
) -> KernelSpan:
    op, layer = (_op_of(part), None) if number == _NO_OP else place_of(number)
    kernel = "prepare" if part == "head_prepare" else part
    return KernelSpan(op, kernel, layer, kinds.get((op, layer), ""), rows, began_s, ended_s, *counts)


def _op_of(part: str) -> str:
    return "head" if part == "head_prepare" else part


def _arithmetic(model: CpuModel, kv_cache_dtype: str) -> dict[tuple[str, int | None], str]:
    kinds: dict[tuple[str, int | None], str] = {("head", None): model.output.kind}
    for number, layer in enumerate(model.layers):
        weights = {"qkv": layer.qkv, "o": layer.o, "gate_up": layer.gate_up, "down": layer.down}
        kinds |= {(op, number): weight.kind for op, weight in weights.items()}
        kinds["attention", number] = _OF_KV[kv_cache_dtype]
    return kinds


def measure_rates(model: CpuModel, kv_cache_dtype: str, seconds: float) -> MachineRates:
    """Half of the time for reading, and the rest for the dot products that this model uses."""
    kinds = sorted(set(_arithmetic(model, kv_cache_dtype).values()))
    share = seconds / 2 / len(kinds)
    return MachineRates(
        bytes_per_s=_native.read_bandwidth(model.isa, model.pool, STREAM_BYTES, seconds / 2),
        operations_per_s={kind: _native.peak_operations(model.isa, model.pool, kind, share) for kind in kinds},
    )
