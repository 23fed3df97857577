"""Section: matrix products of one thread."""

from bench.kernels import COLUMNS, LENGTH, PRODUCTS, ROWS, matmul_gflops
from bench.report.section import Cell, Column, Conditions, Section
from tests.kernels.cases import ISAS


def _measure(_: Conditions) -> list[list[Cell]]:
    return [
        [isa, format_.value, *(matmul_gflops(isa, format_, rows) for rows in ROWS)]
        for isa in ISAS
        if isa != "scalar"
        for format_ in PRODUCTS
    ]


KERNELS = Section(
    name="kernels",
    title="Matrix products",
    about=(
        f"GFLOP/s of one thread for {COLUMNS} x {LENGTH} weights, by rows of activations; the best of many runs, in "
        f"CPU time."
    ),
    columns=(Column("kernels"), Column("weights"), *(Column(f"{rows} rows", 0) for rows in ROWS)),
    measure=_measure,
)
