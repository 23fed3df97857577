"""Spoiled files: whatever bytes are in them, opening ends in a checkpoint or in a LoadError, within bounded memory."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.loaders import LoadError, open_checkpoint
from tests.tiny import hf_config, make_tiny, tiny_writer, write_directory

MODEL = make_tiny(
    format="Q4_1",
    hidden_size=32,
    intermediate_size=32,
    num_layers=1,
    num_heads=2,
    divisors=(1.0,) * 8,
    tied_output=False,
)
PLAIN = make_tiny(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2)
GGUF = tiny_writer(MODEL).to_bytes()
MEMORY_LIMIT = 16 * 2**20
"""A few megabytes above what these files of 60 kB need: a count that is believed would ask for far more."""
HOSTILE = (
    0,
    1,
    2,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**48,
    2**61,
    2**63 - 1,
    2**63,
    2**64 - 8,
    2**64 - 1,
)

Mutation = Callable[[bytes], bytes]


def overwrite(position: int, new: bytes) -> Mutation:
    return lambda data: data[:position] + new + data[position + len(new) :]


def positions(data: bytes) -> st.SearchStrategy[int]:
    """Mostly in the header, where numbers are believed or not."""
    return st.integers(0, min(2048, len(data) - 8)) | st.integers(0, len(data) - 8)


def mutations(data: bytes) -> st.SearchStrategy[Mutation]:
    words = st.sampled_from(HOSTILE).flatmap(
        lambda value: st.sampled_from([struct.pack("<Q", value), struct.pack("<I", value % 2**32)])
    )
    return (
        st.builds(overwrite, positions(data), st.binary(min_size=1, max_size=4))
        | st.builds(overwrite, positions(data), words)
        | st.integers(0, len(data)).map(lambda end: lambda old: old[:end])
        | st.tuples(positions(data), st.integers(1, 64)).map(lambda cut: lambda old: old[: cut[0]] + old[sum(cut) :])
        | st.tuples(positions(data), st.binary(max_size=16)).map(
            lambda new: lambda old: old[: new[0]] + new[1] + old[new[0] :]
        )
    )


def open_bounded(path: Path) -> None:
    """Opens and reads all tensors; LoadError is a good end, anything else and any large allocation is not."""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.tensors.names():
            assert len(checkpoint.tensors.raw(name)) == checkpoint.tensors.info(name).num_bytes
    except LoadError as error:
        assert str(path) in str(error) or path.parent.name in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_LIMIT


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.gguf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(PLAIN, tmp_path_factory.mktemp("fuzz") / "m")


def check_gguf(path: Path, changes: list[Mutation]) -> None:
    data = GGUF
    for change in changes:
        data = change(data)
    path.write_bytes(data)
    open_bounded(path)


@given(st.lists(mutations(GGUF), min_size=1, max_size=3))
@settings(max_examples=300)
def test_spoiled_gguf(gguf: Path, changes: list[Mutation]) -> None:
    check_gguf(gguf, changes)


@pytest.mark.slow
@given(st.lists(mutations(GGUF), min_size=1, max_size=3))
@settings(max_examples=8_000)
def test_spoiled_gguf_at_length(gguf: Path, changes: list[Mutation]) -> None:
    check_gguf(gguf, changes)


def test_every_truncation_of_a_header(gguf: Path) -> None:
    for end in range(0, 1200, 7):
        check_gguf(gguf, [lambda old, end=end: old[:end]])


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8) | st.sampled_from(HOSTILE).map(lambda v: str(v).encode()))
@settings(max_examples=150)
def test_spoiled_safetensors(folder: Path, position: int, new: bytes) -> None:
    file = folder / "model.safetensors"
    good = file.read_bytes()
    file.write_bytes(overwrite(position, new)(good))
    try:
        open_bounded(folder)
    finally:
        file.write_bytes(good)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(HOSTILE) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
CONFIG_KEYS = (
    *hf_config(PLAIN.spec),
    *("rope_scaling", "rope_parameters", "sliding_window", "layer_types", "quantization_config", "num_experts"),
)
ROPE_KEYS = (
    "rope_type",
    "type",
    "factor",
    "rope_theta",
    "low_freq_factor",
    "high_freq_factor",
    "partial_rotary_factor",
)
ROPE_VALUES = st.sampled_from(("linear", "llama3", "default", "yarn")) | VALUES


@given(
    st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, min_size=1, max_size=2),
    st.none() | st.dictionaries(st.sampled_from((*ROPE_KEYS, "original_max_position_embeddings")), ROPE_VALUES),
)
@settings(max_examples=200)
def test_spoiled_configurations(folder: Path, changes: dict[str, object], rope: dict[str, object] | None) -> None:
    config = {**hf_config(PLAIN.spec), **changes, **({} if rope is None else {"rope_scaling": rope})}
    (folder / "config.json").write_text(json.dumps(config))
    open_bounded(folder)
