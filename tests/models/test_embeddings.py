"""The default model's embeddings against Transformers' `last_hidden_state`, pooled: tests/golden/embeddings.json."""

import base64
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.reference import ReferenceBackend
from octavo.core.ports import Backend
from octavo.core.sampling import SamplingParams
from octavo.loaders import open_checkpoint
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from tests.contract.driver import Run, finish
from tests.contract.implementations import ISAS

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "embeddings.json").read_text("utf-8"))
SHORT = [entry for entry in GOLDEN if len(entry["prompt_token_ids"]) < 20]
SIZES = {"num_blocks": 64, "block_size": 16, "max_model_len": 1024}

FLOAT32_ERROR = 1e-5
"""Of each number of a vector of length 1: float32 over 30 layers against another order of additions."""
DEFAULT_COSINE = {"mean": 0.998, "last": 0.997}
"""Activations rounded to 8 bits and a bfloat16 cache turn a vector by some degrees; over many tokens that evens out."""


@pytest.fixture(scope="module")
def checkpoint(default_model: Path) -> Checkpoint:
    return open_checkpoint(default_model)


@pytest.fixture(scope="module")
def native(checkpoint: Checkpoint) -> Callable[..., CpuBackend]:
    @cache
    def load(isa: str | None, dtype: str) -> CpuModel:
        return CpuModel.load(checkpoint, dtype=dtype, isa=isa)

    return lambda isa, dtype, kv: CpuBackend(load(isa, dtype), kv_cache_dtype=kv, **SIZES)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Iterator[Backend]:
    backend = ReferenceBackend(checkpoint, dequantize=dequantize, **SIZES)
    yield backend
    backend.close()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def golden(entry: dict[str, Any], pooling: str) -> np.ndarray:
    return unit(np.frombuffer(base64.b64decode(entry[pooling]), "<f4").astype(np.float64))


def pooled(backend: Backend, entry: dict[str, Any], pooling: str) -> np.ndarray:
    ids = tuple(entry["prompt_token_ids"])
    adds_from = 0 if pooling == "mean" else len(ids) - 1
    run = Run("golden", ids, SamplingParams(), tuple(range(64)), adds_from=adds_from)
    finish(backend, [run], 0, chunk=300)
    assert run.error is None
    return unit(np.frombuffer(run.total, np.float64))


def check(backend: Backend, entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        for pooling in ("mean", "last"):
            assert pooled(backend, entry, pooling) == pytest.approx(golden(entry, pooling), abs=FLOAT32_ERROR)


def test_native_float32_gives_the_golden_embeddings(native: Callable[..., Backend]):
    check(native(None, "float32", "float32"), GOLDEN)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_set_gives_the_golden_embeddings(native: Callable[..., Backend], isa: str):
    check(native(isa, "float32", "float32"), GOLDEN)


def test_the_reference_gives_golden_embeddings(reference: Backend):
    check(reference, SHORT[:2])


@pytest.mark.slow
def test_the_reference_gives_all_short_golden_embeddings(reference: Backend):
    check(reference, SHORT)


def test_the_default_path_is_near_the_golden_embeddings(native: Callable[..., Backend], record_property, capsys):
    backend = native(None, "auto", "auto")
    for pooling, least in DEFAULT_COSINE.items():
        found = [float(pooled(backend, entry, pooling) @ golden(entry, pooling)) for entry in GOLDEN]
        record_property(f"least cosine of {pooling}", min(found))
        with capsys.disabled():
            print(f"\n  cosine with the golden embedding, {pooling}: {min(found):.5f} to {max(found):.5f}")
        assert min(found) > least
