"""Section: how much of the KV cache's memory holds real tokens, beside contiguous reservation of the maximum."""

from collections.abc import Iterator, Sequence

from bench.allocation import STEP_S, TOKEN_S, Load, drawn, serve, traced
from bench.report.section import Conditions, Figure, Section
from bench.report.shown import Cell, Claim, Column, Shown, Table, Target

COUNT = 400
LONGEST = 2048
"""Positions of the model; what is contiguous is reserved for all of them."""
NUM_CONTIGUOUS = 16
"""Requests that contiguous reservation has memory for."""
BLOCK = 16
CONTIGUOUS = "contiguous"
MANAGERS = {"v1": "blocks of {}, room for the prompt", "v2": "blocks of {}, room for prompt and expected answer"}
TARGET = Target(96, " %")
_FIELDS = ("leased_use", "running", "tokens_per_s", "preemptions", "tokens_lost", "mean_s", "p99_s")


def load() -> Load:
    """All at once, so that the queue is never empty while it matters."""
    lengths = _that_fit(traced("azure2023_conv.csv", 10 * COUNT, LONGEST))
    what = "the Azure 2023 conversation trace (CC-BY 4.0)" if lengths else "a draw with a fixed seed"
    lengths = lengths or _that_fit(drawn(1, 600, 110, 2 * COUNT, 1500))
    blocks = NUM_CONTIGUOUS * LONGEST // BLOCK
    return Load("saturated", what, lengths, COUNT, 0.0, blocks, LONGEST)


def _that_fit(lengths: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    return [pair for pair in lengths or () if sum(pair) < LONGEST][:COUNT]


def _measure(_: Conditions) -> Iterator[Figure]:
    one = load()
    for manager, words in MANAGERS.items():
        yield _figure(one, words.format(BLOCK), manager, BLOCK)
    yield _figure(one, CONTIGUOUS, "v2", LONGEST)


def _figure(one: Load, how: str, manager: str, block: int) -> Figure:
    """A block as long as the model's context is what a contiguous cache reserves for each request."""
    outcome = serve(one, manager, block)
    values = {name: getattr(outcome, name) for name in _FIELDS}
    return {"how": how, "block": block, "manager": manager, "lengths": one.what, "requests": len(one.lengths), **values}


def show(figures: list[Figure]) -> Shown:
    base = next((each for each in figures if each["block"] == LONGEST), None)
    columns = (
        Column(f"memory of {NUM_CONTIGUOUS * LONGEST:,} tokens"),
        Column("% real tokens", 1),
        Column("requests at once", 1),
        Column("ratio", 2),
        Column("output tokens/s", 0),
        Column("ratio", 2),
        Column("preemptions", 0),
    )
    rows = [_row(each, base) for each in figures]
    caption = f"{figures[0]['requests']} requests with the lengths of {figures[0]['lengths']}" if figures else ""
    return Shown((Table(columns, rows, caption),), tuple(_claims(figures)))


def _row(each: Figure, base: Figure | None) -> list[Cell]:
    cells: list[Cell] = [each["how"], 100 * each["leased_use"]]
    for name in ("running", "tokens_per_s"):
        cells += [each[name], None if base is None else each[name] / base[name]]
    return [*cells, each["preemptions"]]


def _claims(figures: Sequence[Figure]) -> Iterator[Claim]:
    share = min((100 * each["leased_use"] for each in figures if each["block"] == BLOCK), default=None)
    yield Claim(f"KV memory that holds real tokens at saturation, blocks of {BLOCK}", share, TARGET)


MEMORY = Section(
    name="memory",
    title="Memory of the KV cache",
    about=(
        "The real scheduler and allocator in simulated time, on one trace, while requests wait: what share of the "
        "memory that is taken holds real tokens, how many run at once, and the throughput that follows where a "
        f"step costs {STEP_S * 1e3:g} ms and {TOKEN_S * 1e3:g} ms a token. Contiguous reservation takes {LONGEST:,} "
        "tokens for each request, all that the model allows, as engines without pages do; requests longer than "
        "that are left out of the trace. Everything follows from the lengths: the same on any machine."
    ),
    measure=_measure,
    show=show,
)
