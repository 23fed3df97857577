"""Random models: what `bench/` measures larger models with. On a tiny shape, since only numbers differ."""

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from bench.random_models import FORMATS, SHAPES, Shape, tensors, write_model
from octavo import LLM, SamplingParams
from octavo.loaders import open_checkpoint
from tests.tiny import TINY_VOCAB_SIZE, make_tiny, write_gguf

TINY = Shape(hidden=128, inner=192, layers=2, heads=4, kv_heads=2, head_dim=32, context=256)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(make_tiny(), tmp_path_factory.mktemp("tokenizer") / "tiny.gguf")


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest, tokenizer: Path, tmp_path: Path) -> tuple[str, Path]:
    write_model(tmp_path / "random.gguf", "tiny", TINY, request.param, tokenizer)
    return request.param, tmp_path / "random.gguf"


def test_it_loads_and_generates(written: tuple[str, Path], tokenizer: Path) -> None:
    format_, path = written
    checkpoint, source = open_checkpoint(path), open_checkpoint(tokenizer)
    spec = checkpoint.spec
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers, spec.head_dim) == (128, 192, 2, 32)
    assert (spec.num_heads, spec.num_kv_heads, spec.vocab_size, spec.tied_output) == (4, 2, TINY_VOCAB_SIZE, True)
    assert checkpoint.weight_format == format_
    assert checkpoint.vocabulary == source.vocabulary
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0, logprobs=1)
    with LLM(path, num_blocks=8, num_threads=1) as llm:
        answer = llm.generate("the other", params, use_tqdm=False)[0].outputs[0]
    assert len(answer.token_ids) == 4 and answer.cumulative_logprob is not None
    assert math.isfinite(answer.cumulative_logprob)


def test_weights_have_the_sizes_of_trained_ones_in_the_reader_of_the_format(written: tuple[str, Path]) -> None:
    format_, path = written
    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert {name: tuple(reversed([int(n) for n in tensor.shape])) for name, tensor in found.items()} == dict(
        tensors(TINY, TINY_VOCAB_SIZE)
    )
    for name, tensor in found.items():
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            assert tensor.tensor_type.name == "F32" and abs(values.mean() - 1) < 0.1
        else:
            assert tensor.tensor_type.name == format_
            assert np.std(values) * np.sqrt(values.shape[1]) == pytest.approx(1, abs=0.05), name
            assert abs(values.mean()) * np.sqrt(values.shape[1]) < 0.1


def test_the_same_words_make_the_same_file(written: tuple[str, Path], tokenizer: Path, tmp_path: Path) -> None:
    format_, path = written
    write_model(tmp_path / "again.gguf", "tiny", TINY, format_, tokenizer)
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("name", "billions"), [("0.5b", 0.49), ("1b", 1.07)])
def test_shapes_have_as_many_parameters_as_they_say(name: str, billions: float) -> None:
    count = sum(math.prod(size) for _, size in tensors(SHAPES[name], 49_152))
    assert round(count / 1e9, 2) == billions
