"""The threads of a step: every tile once, whatever the number of threads, and many short jobs in a row."""

import numpy as np
import pytest

from octavo.backends.cpu import _native
from octavo.models.tensors import Format
from tests.kernels.cases import MatmulCase, raw_tensor


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_packing_gives_the_same_matrix_on_any_number_of_threads(num_threads: int):
    case = MatmulCase(Format.Q4_1, "q4", 160, 64, 5)
    packed = _native.PackedWeight(_native.Arena(), "q4", ["Q4_1"], case.n, case.k)
    pool = _native.Pool(num_threads)
    assert pool.num_threads == num_threads
    raw = raw_tensor(case.format, case.n, case.k, seed=case.n + case.k)
    for _ in range(50):
        packed.pack(pool, raw, "Q4_1", case.n)
    expected, _ = case.weight()
    assert np.array_equal(case.run("scalar", packed, case.x()), case.run("scalar", expected, case.x()))


def test_pools_end_their_threads():
    before = threads()
    pools = [_native.Pool(4) for _ in range(8)]
    assert threads() == before + 24
    del pools
    assert threads() == before


def threads() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
