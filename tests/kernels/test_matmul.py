"""Matrix products on every instruction set of this machine: right within their bounds, the same for any batch."""

import numpy as np
import pytest

from octavo.backends.cpu import _native
from octavo.loaders.dequant import dequantize
from octavo.models.tensors import Format, TensorInfo
from tests.kernels.cases import ISAS, MatmulCase, raw_tensor

QUANTISED = {
    "q4": (Format.Q4_0, Format.Q4_1, Format.Q4_K, Format.F32, Format.BF16),
    "q8": (Format.Q5_0, Format.Q5_1, Format.Q5_K, Format.Q6_K, Format.Q8_0, Format.Q4_0, Format.Q4_K, Format.F32),
}
PLAIN = {"bf16": (Format.BF16, Format.F16, Format.Q4_1), "f32": (Format.F32, Format.F16, Format.Q4_1, Format.Q6_K)}

CASES = (
    [
        MatmulCase(format_, kind, n, k, rows)
        for kind, formats in (QUANTISED | PLAIN).items()
        for format_ in formats
        for n, k, rows in ((48, 256, 3), (87, 512, 11))
    ]
    + [
        MatmulCase(Format.Q8_0, "q8", 1, 32, 1),
        MatmulCase(Format.F32, "f32", 17, 16, 2),
        MatmulCase(Format.BF16, "bf16", 17, 48, 5),  # a row is no whole groups
        MatmulCase(Format.BF16, "bf16", 33, 80, 40),
        MatmulCase(Format.Q4_1, "q4", 33, 4128, 40),  # longer than what is widened at once
        MatmulCase(Format.BF16, "bf16", 33, 4128, 40),
        MatmulCase(Format.Q8_0, "q8", 17, 64, 300),
    ]
    + [
        MatmulCase(format_, kind, 33, k, rows)  # an odd number of groups: the last has no other to share a line with
        for kind, format_ in (("q4", Format.Q4_0), ("q8", Format.Q5_0), ("q8", Format.F32))
        for k, rows in ((32, 1), (96, 9), (352, 3))
    ]
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_product_is_within_the_bound_of_its_number_format(case: MatmulCase, isa: str):
    packed, w = case.weight()
    x = case.x()
    error = np.abs(case.run(isa, packed, x)[:, : case.n] - x.astype(np.float64) @ w.T)
    bound = case.bound(x.astype(np.float64), w)
    assert (error <= bound).all(), f"worst error is {np.max(error / bound):.2f} of its bound"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q4", "q8", "bf16", "f32"])
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(kind: str, isa: str):
    format_ = (QUANTISED | PLAIN)[kind][1]
    case = MatmulCase(format_, kind, 80, 288 if format_ is not Format.Q4_K else 256, 19)
    packed, _ = case.weight()
    x = case.x()
    together = case.run(isa, packed, x)
    for first, last in [(0, 1), (1, 3), (3, 8), (8, 19), (18, 19)]:
        assert case.run(isa, packed, x[first:last]).tobytes() == together[first:last].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("format_", "kind"),
    [(Format.Q4_0, "q4"), (Format.Q4_1, "q4"), (Format.Q8_0, "q8"), (Format.F32, "q8"), (Format.BF16, "bf16")],
)
@pytest.mark.parametrize(("n", "k"), [(80, 96), (33, 4128)])
def test_a_row_gives_the_same_bits_in_batches_of_every_size(n: int, k: int, format_: Format, kind: str, isa: str):
    """At 1 to 70 rows kernels change their tiles; with long rows they also cut what they add up."""
    sizes = range(1, 71) if k == 96 else (1, 16, 17, 32, 33, 49, 70)
    case = MatmulCase(format_, kind, n, k, 70)
    packed, _ = case.weight()
    x = case.x()
    together = case.run(isa, packed, x)
    for size in sizes:
        assert case.run(isa, packed, x[-size:]).tobytes() == together[-size:].tobytes(), size


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q4", "q8"])
@pytest.mark.parametrize("exponent", [-14, -7, 0, 10])
def test_weights_of_any_size_keep_their_precision(exponent: int, kind: str, isa: str):
    """Small rows and large ones in one matrix, of about 2^exponent: errors stay a share of each row."""
    case = MatmulCase(Format.F32, kind, 32, 128, 3)
    rng = np.random.default_rng(exponent + 20)
    rows = rng.normal(0, 1, (32, 128)) * 2.0 ** np.linspace(-8, -2, 32)[:, None]
    raw = (rows * 2.0**exponent).astype(np.float32)
    packed = _native.PackedWeight(_native.Arena(), kind, ["F32"], case.n, case.k)
    packed.pack(_native.Pool(1), raw.tobytes(), "F32", case.n)
    x = case.x()
    error = np.abs(case.run(isa, packed, x)[:, : case.n] - x.astype(np.float64) @ raw.astype(np.float64).T)
    assert (error <= case.bound(x.astype(np.float64), raw.astype(np.float64))).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_", [Format.Q4_1, Format.Q8_0, Format.BF16, Format.F32], ids=str)
def test_epilogues_add_to_what_is_there_and_gate_what_alternates(format_: Format, isa: str):
    kind = {Format.Q4_1: "q4", Format.Q8_0: "q8", Format.BF16: "bf16", Format.F32: "f32"}[format_]
    case = MatmulCase(format_, kind, 96, 64, 9)
    packed, _ = case.weight()
    x = case.x()
    plain = case.run(isa, packed, x)
    added = np.ones_like(plain)
    _native.matmul(isa, packed, x, None, 0.0, "add", added)
    assert np.array_equal(added, np.float32(1) + plain)
    gated = np.empty((9, 48), np.float32)
    _native.matmul(isa, packed, x, None, 0.0, "swiglu", gated)
    panels = plain.reshape(9, 6, 16).astype(np.float64)
    gate, up = panels[:, 0::2].reshape(9, -1), panels[:, 1::2].reshape(9, -1)
    np.testing.assert_allclose(gated, gate / (1 + np.exp(-gate)) * up, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 9, 16, 40])
@pytest.mark.parametrize("format_", [Format.Q4_1, Format.Q8_0, Format.BF16, Format.F32], ids=str)
def test_rows_that_are_gated_at_once_are_those_that_would_be_prepared(format_: Format, rows: int, isa: str):
    kind = {Format.Q4_1: "q4", Format.Q8_0: "q8", Format.BF16: "bf16", Format.F32: "f32"}[format_]
    up, down = MatmulCase(format_, kind, 192, 64, rows), MatmulCase(format_, kind, 48, 96, rows)
    (gate_up, _), (reader, _) = up.weight(), down.weight()
    x, gated = up.x(), np.empty((rows, 96), np.float32)
    _native.matmul(isa, gate_up, x, None, 0.0, "swiglu", gated)
    at_once = np.empty((rows, 48), np.float32)
    assert _native.gated_matmul(isa, gate_up, reader, x, at_once) == (isa == "amx" and kind != "f32")
    if isa == "amx" and kind != "f32":
        assert at_once.tobytes() == down.run(isa, reader, gated).tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [32, 576, 5120])
def test_norms_are_part_of_the_product(k: int, isa: str):
    case = MatmulCase(Format.F32, "f32", 16, k, 4)
    packed, w = case.weight()
    x, norm = case.x() * 5, np.linspace(0.5, 1.5, k, dtype=np.float32)
    out = np.empty((4, 16), np.float32)
    _native.matmul(isa, packed, x, norm, 1e-5, "store", out)
    x64 = x.astype(np.float64)
    normalised = x64 / np.sqrt((x64**2).mean(axis=1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(out, normalised @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_zeros_and_huge_rows_stay_finite(isa: str):
    case = MatmulCase(Format.Q4_1, "q4", 16, 64, 2)
    packed, _ = case.weight()
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e30
    out = case.run(isa, packed, x)
    assert (out[0] == 0).all()
    assert np.isfinite(out[1]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q4", "q8", "bf16", "f32"])
@pytest.mark.parametrize("k", [32, 96, 128])
def test_a_row_of_a_packed_table_is_read_back(k: int, kind: str, isa: str):
    format_ = (QUANTISED | PLAIN)[kind][0]
    case = MatmulCase(format_, kind, 33, k, 1)
    packed, w = case.weight()
    for row in (0, 15, 16, 32):
        out = np.empty((1, k), np.float32)
        _native.gather(isa, packed, row, out)
        np.testing.assert_allclose(out[0], w[row], rtol=2.0**-9 if kind == "bf16" else 1e-6, atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [32, 96, 128])
def test_scales_are_the_same_wherever_there_is_room_for_them(k: int, isa: str):
    """What 16 bits hold, 32 hold too: a matrix that also takes rounded floats keeps each number of a Q8_0 tensor."""
    case = MatmulCase(Format.Q8_0, "q8", 33, k, 9)
    alone, _ = case.weight()
    raw = raw_tensor(Format.Q8_0, case.n, k, seed=case.n + k)
    fused = _native.PackedWeight(_native.Arena(), "q8", ["F32", "Q8_0"], case.n, k)
    fused.pack(_native.Pool(1), raw, "Q8_0", case.n)
    assert alone.num_bytes < fused.num_bytes or k == 32
    assert case.run(isa, alone, case.x()).tobytes() == case.run(isa, fused, case.x()).tobytes()


@pytest.mark.parametrize(
    ("kind", "format_", "n", "k", "message"),
    [
        ("q4", "Q8_0", 16, 32, "4-bit"),
        ("q8", "Q4_1", 16, 32, "made for other formats"),
        ("q8", "F32", 16, 32, "made for other formats"),
        ("q4", "BF16", 16, 32, "made for other formats"),
        ("q4", "Q4_0", 16, 48, "multiple of 32"),
        ("f32", "F32", 0, 16, "cannot be packed"),
        ("f32", "Q9_9", 16, 16, "unknown tensor format"),
    ],
)
def test_what_cannot_be_packed_is_refused(kind: str, format_: str, n: int, k: int, message: str):
    with pytest.raises(ValueError, match=message):
        weight = _native.PackedWeight(_native.Arena(), kind, ["Q4_0"], n, k)
        num_bytes = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "BF16": 64, "F32": 128}.get(format_, 20) * n
        weight.pack(_native.Pool(1), bytes(num_bytes), format_, n)


@pytest.mark.parametrize(
    ("formats", "value", "message"),
    [(["Q4_1", "F32"], 1e38, "does not fit 16 bits"), (["F32"], np.inf, "not a finite number")],
)
def test_a_scale_that_cannot_be_kept_is_refused_and_not_made_infinite(formats: list[str], value: float, message: str):
    weight = _native.PackedWeight(_native.Arena(), "q8", formats, 16, 32)
    with pytest.raises(ValueError, match=message):
        weight.pack(_native.Pool(2), np.full(16 * 32, value, np.float32).tobytes(), "F32", 16)


@pytest.mark.parametrize("format_", list(Format), ids=str)
def test_native_and_numpy_decode_the_same_floats(format_: Format):
    raw = raw_tensor(format_, 3, 512, seed=1)
    native = np.frombuffer(_native.dequantise(raw, format_.value, 3 * 512), np.float32)
    assert native.tobytes() == dequantize(raw, TensorInfo((3 * 512,), format_)).tobytes()
