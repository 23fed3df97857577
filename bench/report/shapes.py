"""Section: larger models with random weights, beside llama.cpp on the same file."""

from collections.abc import Iterator, Sequence

from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Shown, Table, Target, Work
from bench.report.subjects import RANDOM, path_of
from bench.report.throughput import KINDS, Job, Rate, batched_bench, best, drive, others, ours, rates, ratio

PROMPT, NEW = 64, 32
ROUNDS = {1: 3, 8: 2, 32: 1}
"""Requests at once -> rounds: the more there are, the longer a round, and the less noise in it."""
LEAST = {1: 1.1, 8: 2.0, 32: 2.0}
_WEIGHTS = "Q4_0"


def _measure(conditions: Conditions) -> Iterator[Figure]:
    jobs = [Job(batch, PROMPT, NEW, rounds) for batch, rounds in ROUNDS.items()]
    peers = conditions.peers
    assert peers is not None
    for shape in RANDOM:
        path = path_of(shape, conditions)
        yield from _of(shape, attempted(f"octavo {shape}", lambda p=path: drive("octavo", _WEIGHTS, p, jobs)))
        yield from _of(shape, attempted(f"llama.cpp {shape}", lambda p=path: batched_bench(peers, _WEIGHTS, p, jobs)))


def _of(shape: str, figures: Iterator[Figure]) -> Iterator[Figure]:
    return (figure | {"shape": shape} for figure in figures)


def show(figures: list[Figure]) -> Shown:
    found = {shape: rates(each for each in figures if each["shape"] == shape) for shape in RANDOM}
    columns = (
        Column("shape"),
        Column("work"),
        Column("requests", 0),
        Column("octavo", 1),
        Column("llama.cpp", 1),
        Column("ratio", 2),
    )
    rows = [_row(shape, found[shape], kind, batch) for shape in RANDOM for kind in KINDS for batch in ROUNDS]
    return Shown((Table(columns, rows),), tuple(_claim(s, found[s], batch) for s in RANDOM for batch in ROUNDS))


def _pair(found: Sequence[Rate], kind: str, batch: int) -> tuple[Rate | None, Rate | None]:
    here = [rate for rate in found if rate.batch == batch]
    return best(ours(here), kind), best(others(here), kind)


def _row(shape: str, found: Sequence[Rate], kind: str, batch: int) -> list[Cell]:
    pair = _pair(found, kind, batch)
    speeds = [None if rate is None else rate.of(kind) for rate in pair]
    return [shape, kind, batch, *speeds, ratio(*pair, kind)]


def _claim(shape: str, found: Sequence[Rate], batch: int) -> Claim:
    value = ratio(*_pair(found, "decode", batch), "decode")
    what = f"shape of {shape}, decode, {batch} at once, to llama.cpp"
    return Claim(what, value, Target(LEAST[batch], " x"), Work(shape, "decode", batch, PROMPT))


SHAPES = Section(
    name="shapes",
    title="Larger shapes",
    about=(
        "Models with the shapes of half a billion and of a billion parameters, random weights in Q4_0 "
        f"(`bench/random_models.py`), read by both engines from the same file: prompts of {PROMPT} random tokens, "
        f"{NEW} greedy tokens each, in tokens a second."
    ),
    measure=_measure,
    show=show,
    needs_peers=True,
)
