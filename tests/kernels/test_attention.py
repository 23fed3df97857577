"""Paged attention on every instruction set: right within its bounds, blind to blocks, batches and unwritten memory."""

from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.reference.kv import kv_format
from tests.kernels.cases import ISAS, MOST, AttendCase

KV_DTYPES = ("float32", "float16", "bfloat16", "int8")
SHAPES = [
    AttendCase("", 16, rows, heads, kv_heads, head_dim, rope_dim)
    for rows, heads, kv_heads, head_dim, rope_dim in [
        (1, 3, 1, 16, 16),
        (70, 9, 3, 64, 64),
        (37, 4, 4, 80, 80),
        (33, 14, 2, 32, 16),
        (66, 2, 1, 128, 0),
    ]
]


def with_dtype(case: AttendCase, kv_dtype: str, block_size: int = 16) -> AttendCase:
    return replace(case, kv_dtype=kv_dtype, block_size=block_size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows_at_once", [3, MOST])
def test_attention_is_within_the_bound_of_its_cache_format(
    rows_at_once: int, shape: AttendCase, kv_dtype: str, isa: str
):
    """The cache is full of NaN where nothing was written, so a read of it would show."""
    case = with_dtype(shape, kv_dtype)
    qkv = case.qkv()
    expected, bound = case.expected(qkv)
    error = np.abs(case.run(isa, qkv, rows_at_once=rows_at_once) - expected)
    assert (error <= bound).all(), f"worst error is {np.nanmax(error / bound):.2f} of its bound"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_an_int8_cache_keeps_what_the_reference_keeps(isa: str, block_size: int):
    """Without rotation both round the same floats, so what is left is the rounding of queries and weights to words."""
    case = AttendCase("int8", block_size, 150, 4, 2, 64, 0)
    qkv = case.qkv()
    parts = qkv.reshape(case.rows, -1, case.head_dim)
    kv_int8 = kv_format("int8")
    parts[:, case.heads :] = kv_int8.read(kv_int8.keep(parts[:, case.heads :].copy()))
    out = case.run(isa, case.qkv(), rows_at_once=3)
    expected, _ = case.expected(parts.reshape(case.rows, -1))
    assert np.abs(out - expected).max() <= 2e-4


@pytest.mark.parametrize("isa", ISAS)
def test_an_int8_row_that_is_not_finite_reaches_those_that_attend_to_it_and_no_others(isa: str):
    """Its tile is computed together with rows before it. Rows of zeros, and of numbers without an inverse, are rows."""
    case = AttendCase("int8", 16, 70, 4, 2, 32, 32)
    qkv = case.qkv()
    qkv[3, 4 * 32 :], qkv[4, 4 * 32 :] = 0, 1e-38
    clean = case.run(isa, qkv, rows_at_once=6)
    assert np.isfinite(clean).all()
    qkv[50, 4 * 32 + 5], qkv[50, 6 * 32 + 7] = np.nan, np.inf
    out = case.run(isa, qkv, rows_at_once=6)
    assert out[:50].tobytes() == clean[:50].tobytes()
    first_head = out.reshape(70, 4, 32)[50:, :2]
    assert not np.isfinite(first_head).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("rows_at_once", [1, MOST])
def test_a_key_that_is_no_number_is_not_taken_for_one(rows_at_once: int, kv_dtype: str, isa: str):
    """Its value is one, and small, so that nothing but the score can tell."""
    case = AttendCase(kv_dtype, 16, 70, 2, 1, 32, 0)
    qkv = case.qkv()
    qkv[:, 3 * 32 :] *= 1e-3
    clean = case.run(isa, qkv, rows_at_once=rows_at_once)
    qkv[50, 2 * 32 + 5] = np.nan
    out = case.run(isa, qkv, rows_at_once=rows_at_once)
    assert out[:50].tobytes() == clean[:50].tobytes()
    assert not np.isfinite(out[50:]).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", [8, 32])
@pytest.mark.parametrize("window", [1, 7, 8, 40, 64, 100])
@pytest.mark.parametrize("rows_at_once", [3, MOST])
def test_a_window_is_within_the_same_bound_and_nothing_behind_it_is_read(
    rows_at_once: int, window: int, block_size: int, kv_dtype: str, isa: str
):
    """Blocks behind the window of the first row of a group are full of NaN."""
    case = AttendCase(kv_dtype, block_size, 150, 4, 2, 32, 32, window)
    qkv = case.qkv()
    expected, bound = case.expected(qkv)
    out = case.run(isa, qkv, rows_at_once=rows_at_once)
    assert (np.abs(out - expected) <= bound).all()
    full = replace(case, window=0).run(isa, qkv, rows_at_once=rows_at_once)
    assert out[:window].tobytes() == full[:window].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [0, 20])
def test_bits_do_not_depend_on_block_size_block_order_or_how_rows_are_grouped(window: int, kv_dtype: str, isa: str):
    shape = AttendCase(kv_dtype, 16, 75, 6, 2, 32, 32, window)
    qkv = shape.qkv()
    first = shape.run(isa, qkv, rows_at_once=1)
    for block_size in (8, 16, 32, 64, 128):
        for rows_at_once, seed in ((1, 1), (4, 2), (6, 3), (MOST, 4)):
            again = with_dtype(shape, kv_dtype, block_size).run(isa, qkv, rows_at_once=rows_at_once, seed=seed)
            assert again.tobytes() == first.tobytes(), (block_size, rows_at_once)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [0, 300, 700])
def test_long_contexts_are_merged_from_splits(window: int, kv_dtype: str, isa: str):
    """1,100 keys are three splits of 512; each row's own last split is partial, with a window its first one too."""
    case = AttendCase(kv_dtype, 16, 1100, 2, 1, 32, 32, window)
    qkv = case.qkv()
    expected, bound = case.expected(qkv)
    out = case.run(isa, qkv, rows_at_once=MOST)
    assert (np.abs(out - expected) <= bound).all()
    assert out.tobytes() == case.run(isa, qkv, rows_at_once=2, seed=5).tobytes()
