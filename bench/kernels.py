"""How fast single kernels are on one thread: `python -m bench.kernels [ISA ...]`. The cases are those of tests/kernels.

Figures are the best of many runs in CPU time of the thread, so that other work on the machine disturbs them little;
they compare kernels with one another and with the machine's peak, not with other programs.
"""

import sys
import time
from collections.abc import Callable

from octavo.models.tensors import Format
from tests.kernels.cases import ISAS, AttendCase, MatmulCase

PRODUCTS = {Format.Q4_1: "q4", Format.Q4_0: "q4", Format.Q8_0: "q8", Format.BF16: "bf16", Format.F32: "f32"}
ROWS = (1, 2, 4, 8, 16, 64, 256)
COLUMNS, LENGTH = 3072, 576
KEYS = 512


def best_s(run: Callable[[], object], repeats: int) -> float:
    """The shortest of `repeats` runs, in seconds of this thread's CPU time."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times)


def matmul_gflops(isa: str, format_: Format, rows: int) -> float:
    case = MatmulCase(format_, PRODUCTS[format_], COLUMNS, LENGTH, rows)
    packed, _ = case.weight()
    x = case.x()
    seconds = best_s(lambda: case.run(isa, packed, x), max(5, 200 // rows))
    return 2e-9 * COLUMNS * LENGTH * rows / seconds


def attend_us(isa: str, kv_dtype: str) -> float:
    """Microseconds a query row of one head over a causal context of KEYS, half of which it sees on average."""
    case = AttendCase(kv_dtype, 16, KEYS, 9, 3, 64, 64)
    qkv = case.qkv()
    return best_s(lambda: case.run(isa, qkv, rows_at_once=6), 3) / (KEYS * case.heads) * 1e6


def main(isas: list[str]) -> None:
    for isa in isas:
        print(f"\n{isa}: products of {COLUMNS} x {LENGTH}, GFLOP/s by rows")
        print(f"{'':>8}" + "".join(f"{rows:>8}" for rows in ROWS))
        for format_ in PRODUCTS:
            print(f"{format_:>8}" + "".join(f"{matmul_gflops(isa, format_, rows):>8.1f}" for rows in ROWS))
        times = ", ".join(f"{kv} {attend_us(isa, kv):.2f}" for kv in ("bfloat16", "float16", "int8", "float32"))
        print(f"attention, us a query row and head over {KEYS} causal keys: {times}")


if __name__ == "__main__":
    main(sys.argv[1:] or [isa for isa in ISAS if isa != "scalar"])
