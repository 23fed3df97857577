"""Dequantisation of every format against the `gguf` package, bit for bit, on random blocks."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as oracle

from octavo.loaders import LoadError
from octavo.loaders.dequant import LAYOUTS, dequantize
from octavo.loaders.gguf import FORMATS, OTHER_FORMAT_NAMES
from octavo.models.tensors import BLOCKS, Format, TensorInfo


def random_blocks(format_: Format, rows: int, seed: int) -> tuple[bytes, TensorInfo]:
    """Three blocks a row of random bytes, with finite numbers where the format has float16 fields."""
    rng = np.random.default_rng(seed)
    elements, size = BLOCKS[format_]
    raw = rng.integers(0, 256, rows * 3 * size, dtype=np.uint8)
    blocks = raw.view(LAYOUTS[format_])
    for field in {"d", "m", "dmin"} & set(blocks.dtype.names or ()):
        blocks[field] = rng.normal(size=len(blocks)).astype(np.float16)
    return raw.tobytes(), TensorInfo((rows, 3 * elements), format_)


@pytest.mark.parametrize("format_", list(Format))
def test_equal_to_the_independent_implementation(format_: Format) -> None:
    raw, info = random_blocks(format_, rows=40, seed=7)
    expected = oracle(np.frombuffer(raw, np.uint8).reshape(info.shape[0], -1), GGMLQuantizationType[format_.value])
    found = dequantize(raw, info)
    assert found.dtype == np.float32 and found.shape == info.shape
    np.testing.assert_array_equal(
        found.view(np.uint32), expected.astype(np.float32).reshape(info.shape).view(np.uint32)
    )


def test_the_numbers_of_formats_are_those_of_the_format() -> None:
    ours = {**OTHER_FORMAT_NAMES, **FORMATS}
    for kind in GGMLQuantizationType:
        assert ours.get(kind.value, kind.name) == kind.name


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    raw, info = random_blocks(Format.Q4_1, rows=2, seed=1)
    with pytest.raises(LoadError, match="needs 120 bytes, got 119"):
        dequantize(raw[:-1], info)
