"""Models with sliding windows against Transformers: tests/golden/windows.json, made by tests/golden/make_windows.py."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.reference import ReferenceBackend
from octavo.core.ports import Backend
from octavo.core.sampling import SamplingParams
from octavo.loaders import open_checkpoint
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from octavo.models.layer_groups import layer_groups
from tests.contract.driver import Run, step
from tests.contract.grouped import Grouped
from tests.contract.implementations import ISAS
from tests.golden.windowed import CASES, Windowed

GOLDEN: dict[str, dict[str, Any]] = {
    entry["name"]: entry
    for entry in json.loads((Path(__file__).parents[1] / "golden" / "windows.json").read_text("utf-8"))
}
LOGPROB_ERROR = 1e-4
"""Float32 over five layers; the fixture rounds to 5e-7."""
BLOCK = 8
NUM_BLOCKS = 10
FORMATS: dict[str, Callable[[Windowed, Path], Path]] = {
    "folder": lambda case, tmp: case.write(tmp / "model"),
    "gguf": lambda case, tmp: case.write_gguf(tmp / "model.gguf"),
}

Open = Callable[..., Backend]


def open_reference(checkpoint: Checkpoint, **sizes: int) -> Backend:
    return ReferenceBackend(checkpoint, dequantize=dequantize, **sizes)


def open_native(isa: str) -> Open:
    def open_it(checkpoint: Checkpoint, **sizes: int) -> Backend:
        return CpuBackend(CpuModel.load(checkpoint, dtype="float32", isa=isa), kv_cache_dtype="float32", **sizes)

    return open_it


BACKENDS: dict[str, Open] = {"reference": open_reference, **{isa: open_native(isa) for isa in ISAS}}


def scored(checkpoint: Checkpoint, open_it: Open, tokens: list[int], chunk: int) -> Run:
    """The text scored in chunks, in tables from which everything behind the windows is gone."""
    windows = layer_groups(checkpoint.spec).windows
    backend = open_it(checkpoint, num_blocks=NUM_BLOCKS * len(windows), block_size=BLOCK, max_model_len=80)
    params = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=1)
    run = Run("golden", tuple(tokens), params, tuple(range(NUM_BLOCKS)))
    while not run.generated:
        step(Grouped(backend, windows), [run], chunk)
    backend.close()
    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_weights_are_those_that_transformers_was_given(case: Windowed) -> None:
    """If not, numpy's random numbers have changed: make the fixture again."""
    assert case.digest() == GOLDEN[case.name]["weights_sha256"]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logprobs_are_those_of_transformers(case: Windowed, format_: str, name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(FORMATS[format_](case, tmp_path))
    assert checkpoint.spec.windows == case.windows
    golden = GOLDEN[case.name]
    run = scored(checkpoint, BACKENDS[name], golden["token_ids"], chunk=7 if format_ == "gguf" else 19)
    for place, logprob in zip(run.scored, golden["logprobs"], strict=True):
        assert place.logprob == pytest.approx(logprob, abs=LOGPROB_ERROR)
    greedy = len(case.prompt) - 1
    for place, gap in zip(run.scored[greedy:], golden["top2_gap"][greedy:], strict=True):
        assert place.rank == 1 or gap <= 2 * LOGPROB_ERROR


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_with_full_attention_the_answers_would_be_others(case: Windowed, tmp_path: Path) -> None:
    """So the fixture can tell: they are the same up to the window and differ beyond it."""
    checkpoint = open_checkpoint(case.write(tmp_path / "model"))
    full = replace(checkpoint, spec=replace(checkpoint.spec, windows=()))
    golden = GOLDEN[case.name]
    errors = [
        abs((place.logprob or 0.0) - logprob)
        for place, logprob in zip(
            scored(full, open_native(ISAS[0]), golden["token_ids"], 64).scored, golden["logprobs"], strict=True
        )
    ]
    assert max(errors[:8]) < LOGPROB_ERROR
    assert max(errors[8:]) > 100 * LOGPROB_ERROR
