"""Section: decode behind long contexts, beside other engines."""

from collections.abc import Iterator, Sequence

from bench.report.installed import model
from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Plot, Shown, Table, Target, Work
from bench.report.subjects import DEFAULT, format_of, path_of
from bench.report.throughput import Job, Rate, batched_bench, best, drive, others, ours, rates, ratio

NEW = 32
LENGTHS = (256, 1024, 4096, 8128)
"""The last is as much as the default model's 8,192 positions leave beside NEW more tokens."""
BATCHES = (1, 8)
OTHERS = (4096,)
"""Lengths for engines other than llama.cpp: where the target is."""
TARGET = Target(2.5, " x")


def jobs(lengths: Sequence[int]) -> list[Job]:
    """One request is noisier, and costs little: it is done twice."""
    return [Job(batch, length, NEW, 2 if batch == 1 else 1) for batch in BATCHES for length in lengths]


def _measure(conditions: Conditions) -> Iterator[Figure]:
    peers = conditions.peers
    assert peers is not None
    path, some = path_of(DEFAULT, conditions), jobs(OTHERS)
    yield from attempted("octavo", lambda: drive("octavo", format_of(path), path, jobs(LENGTHS)))
    yield from attempted("llama.cpp Q4_0", lambda: batched_bench(peers, "Q4_0", model(peers, "Q4_0"), jobs(LENGTHS)))
    yield from attempted("OpenVINO Q4_0", lambda: drive("openvino", "Q4_0", model(peers, "Q4_0"), some, peers))
    yield from attempted("vLLM BF16", lambda: drive("vllm", "BF16", peers / "smollm2-hf", some, peers))


def show(figures: list[Figure]) -> Shown:
    found = rates(figures)
    names = list(dict.fromkeys(rate.who for rate in (*ours(found), *others(found))))
    claims = [_claim(found, 8, 4096)]
    return Shown((_table(found, names),), tuple(claims), (_plot(found, names),))


def _here(found: Sequence[Rate], batch: int, length: int) -> list[Rate]:
    return [rate for rate in found if (rate.batch, rate.prompt) == (batch, length)]


def _ratio(found: Sequence[Rate], batch: int, length: int) -> float | None:
    here = _here(found, batch, length)
    return ratio(best(ours(here), "decode"), best(others(here), "decode"), "decode")


def _table(found: Sequence[Rate], names: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for batch in BATCHES:
        for length in LENGTHS:
            speeds = {rate.who: rate.decode for rate in _here(found, batch, length)}
            rows.append([f"decode, {batch} at once", length, *map(speeds.get, names), _ratio(found, batch, length)])
    columns = (Column("work"), Column("context", 0), *(Column(name, 0) for name in names), Column("ratio", 2))
    return Table(columns, rows)


def _claim(found: Sequence[Rate], batch: int, length: int) -> Claim:
    what = f"decode, {batch} at once, behind {length:,} tokens"
    return Claim(what, _ratio(found, batch, length), TARGET, Work(DEFAULT, "decode", batch, length))


def _plot(found: Sequence[Rate], names: Sequence[str]) -> Plot:
    speeds = {(rate.who, rate.prompt): rate.decode for rate in found if rate.batch == 8}
    series = {name: tuple(speeds.get((name, length)) for length in LENGTHS) for name in names}
    ticks = tuple(f"{length:,}" for length in LENGTHS)
    return Plot(
        "decode-by-context", "Decode of 8 requests behind a context", "tokens before", "tokens/s", ticks, series
    )


CONTEXT = Section(
    name="context",
    title="Long contexts",
    about=(
        f"Prompts of random tokens, nothing shared, and {NEW} tokens after each: decode in tokens a second. The "
        "ratio is to the best other engine that was measured with that length."
    ),
    measure=_measure,
    show=show,
    needs_peers=True,
)
