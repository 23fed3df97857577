"""--quantization: what is rounded at load, to what, and what stays as it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend, CpuModel, _native
from octavo.config import ConfigError
from octavo.config.sources import from_keywords
from octavo.core.sampling import SamplingParams
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from octavo.models.tensors import Format, TensorInfo
from tests.contract.driver import Run, finish
from tests.contract.implementations import MAX_MODEL_LEN, MemorySource, tiny_checkpoint
from tests.contract.test_backend import blocks, prompt
from tests.system.replicas import opened
from tests.tiny import make_tiny, write_gguf

GROUP = 32


def as_floats(checkpoint: Checkpoint, dtype: Format = Format.F32) -> Checkpoint:
    """The same numbers in float32, or nearly the same in a shorter format."""
    assert isinstance(checkpoint.tensors, MemorySource)
    model = checkpoint.tensors.model
    floats = {name: dequantize(memoryview(raw), info) for name, (info, raw) in model.tensors.items()}
    kept = {name: (TensorInfo(x.shape, dtype), _bytes(x, dtype)) for name, x in floats.items()}
    return replace(checkpoint, tensors=MemorySource(replace(model, tensors=kept)), weight_format=str(dtype))


def _bytes(x: np.ndarray, dtype: Format) -> bytes:
    if dtype is Format.BF16:
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return x.astype(np.float16 if dtype is Format.F16 else np.float32).tobytes()


def outcome(model: CpuModel) -> object:
    backend = CpuBackend(model, num_blocks=16, block_size=16, max_model_len=MAX_MODEL_LEN)
    run = Run("a", prompt(40), SamplingParams(temperature=0, logprobs=2, prompt_logprobs=2), blocks(0))
    finish(backend, [run], 4)
    backend.close()
    return run.outcome


@pytest.mark.parametrize(("quantization", "weights"), [("int8", "Q8_0"), ("int4", "Q4_1")])
def test_the_numbers_of_a_quantised_file_give_its_bits_again(quantization: str, weights: str):
    """Rounding finds the file's own scales: of each group some number has the largest code."""
    file = tiny_checkpoint(weights, "Q8_0")
    again = CpuModel.load(as_floats(file), quantization=quantization)
    assert outcome(again) == outcome(CpuModel.load(file))


@pytest.mark.parametrize("dtype", [Format.F32, Format.F16, Format.BF16])
def test_floats_of_any_kind_are_rounded_and_take_the_memory_of_what_they_become(dtype: Format):
    checkpoint = as_floats(tiny_checkpoint("F32", "F32"), dtype)
    plain = CpuModel.load(checkpoint)
    int8, int4 = (CpuModel.load(checkpoint, quantization=name) for name in ("int8", "int4"))
    assert int4.weight_bytes < int8.weight_bytes < plain.weight_bytes
    assert len({plain.weight_format, int8.weight_format, int4.weight_format}) == 3
    assert int4.embed.num_bytes == int8.embed.num_bytes < plain.embed.num_bytes
    assert outcome(int8) != outcome(plain) != outcome(int4)
    assert "16 matrices of floats rounded to int4 (embeddings and output head to int8)" in int4.report[-1]


def test_what_is_quantised_stays_as_it_is():
    checkpoint = tiny_checkpoint("Q4_1", "F32")
    model = CpuModel.load(checkpoint, quantization="int8")
    assert model.report[-1] == "quantization: 2 matrices of floats rounded to int8; 14 stay as they are (Q4_1)"
    assert model.layers[0].down.num_bytes == CpuModel.load(checkpoint).layers[0].down.num_bytes


def test_rows_that_are_no_whole_groups_stay_floats():
    tiny = make_tiny(hidden_size=48, num_heads=3, num_kv_heads=1, intermediate_size=64)
    checkpoint = replace(tiny_checkpoint(), spec=tiny.spec, tensors=MemorySource(tiny))
    model = CpuModel.load(checkpoint, quantization="int4")
    assert model.report[-1].startswith("quantization: 2 matrices of floats rounded to int4")  # both `down`
    assert model.report[-1].endswith("13 stay as they are (F32)")


def test_four_bits_are_nearer_than_either_of_the_formats_that_they_are_kept_in():
    x = np.random.default_rng(0).standard_t(5, (64, 256)).astype(np.float32)
    x[1] = 0
    x[2] = 0.25
    packed = _native.PackedWeight(_native.Arena(), "q4", ["F32"], *x.shape)
    packed.pack(_native.Pool(1), x.tobytes(), "F32", len(x))
    found = np.empty_like(x)
    for row in range(len(x)):
        _native.gather("scalar", packed, row, found[row : row + 1])
    assert np.array_equal(found[1:3], x[1:3])
    groups, errors = x.reshape(-1, GROUP), np.square(found - x).reshape(-1, GROUP).sum(axis=1)
    assert (errors <= 1.02 * np.minimum(squared_error_of_q4_0(groups), squared_error_of_q4_1(groups)) + 1e-9).all()


def squared_error_of_q4_0(x: np.ndarray) -> np.ndarray:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    scale = np.where(extreme == 0, 1, extreme / -8)
    return np.square(np.clip(np.rint(x / scale), -8, 7) * scale - x).sum(axis=1)


def squared_error_of_q4_1(x: np.ndarray) -> np.ndarray:
    low = x.min(axis=1, keepdims=True)
    span = np.ptp(x, axis=1, keepdims=True)
    scale = np.where(span == 0, 1, span / 15)
    return np.square(np.rint((x - low) / scale) * scale + low - x).sum(axis=1)


@pytest.mark.parametrize("kind", ["q4", "q8"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_not_rounded_to_one(kind: str, value: float):
    weight = _native.PackedWeight(_native.Arena(), kind, ["F32"], 16, 64)
    floats = np.ones((16, 64), np.float32)
    floats[7, 40] = value
    with pytest.raises(ValueError, match="a weight is not a finite number"):
        weight.pack(_native.Pool(2), floats.tobytes(), "F32", 16)


def test_an_engine_says_so_in_its_facts_and_its_fingerprint(tmp_path: Path):
    path = write_gguf(make_tiny(format="F16"), tmp_path / "tiny.gguf")
    told: set[str] = set()
    for asked in ({}, {"quantization": "int8"}, {"quantization": "int4"}, {"dtype": "float32"}):
        with opened(path, num_blocks=8, **asked) as replica:
            told |= {replica.facts.fingerprint, replica.facts.weight_format}
    assert {"F16", "F16-int8", "F16-int4", "F16-float32"} < told
    assert len(told) == 8


def test_two_wishes_for_the_same_weights_are_refused():
    with pytest.raises(ConfigError, match="dtype and quantization"):
        from_keywords(dtype="float32", quantization="int8")
