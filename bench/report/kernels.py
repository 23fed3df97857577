"""Section: matrix products of one thread."""

from collections.abc import Iterator

from bench.kernels import COLUMNS, LENGTH, PRODUCTS, ROWS, matmul_gflops
from bench.report.section import Conditions, Figure, Section
from bench.report.shown import Column, Shown, Table
from tests.kernels.cases import ISAS


def _measure(_: Conditions) -> Iterator[Figure]:
    for isa in (isa for isa in ISAS if isa != "scalar"):
        for format_ in PRODUCTS:
            gflops = [matmul_gflops(isa, format_, rows) for rows in ROWS]
            yield {"isa": isa, "weights": format_.value, "rows": ROWS, "gflops": gflops}


def show(figures: list[Figure]) -> Shown:
    if not figures:
        return Shown()
    columns = (Column("kernels"), Column("weights"), *(Column(f"{rows} rows", 0) for rows in figures[0]["rows"]))
    return Shown((Table(columns, [[each["isa"], each["weights"], *each["gflops"]] for each in figures]),))


KERNELS = Section(
    name="kernels",
    title="Matrix products",
    about=(
        f"GFLOP/s of one thread for {COLUMNS} x {LENGTH} weights, by rows of activations; the best of many runs, in "
        "CPU time."
    ),
    measure=_measure,
    show=show,
)
