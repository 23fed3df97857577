"""Section: throughput beside other engines, the same work on the same machine in one run."""

from collections.abc import Iterator, Sequence

from bench.report.installed import model
from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Plot, Shown, Table, Target, Work
from bench.report.subjects import BF16, DEFAULT, format_of, path_of
from bench.report.throughput import KINDS, OURS, Job, Rate, batched_bench, best, drive, others, ours, rates, ratio

PROMPT = 256
NEW, NEW_OF_MANY = 128, 64
"""New tokens of each of up to 8 requests, and of more: these are so many that fewer steps say as much."""
BATCHES = (1, 4, 8, 16, 32, 64)
LLAMA = {"Q4_0": BATCHES, "Q8_0": (1, 8, 32), "Q4_1": (1, 8), "BF16": BATCHES}
"""llama.cpp's fastest 4-bit format and bf16 at all sizes; enough of the others to see that they are not the best."""
OPENVINO = {"Q4_0": BATCHES, "Q8_0": (1, 8, 32)}
_BF16 = "BF16"
KV_INT8 = ", int8 KV"
"""Behind the number format of weights: measured, too, with a KV cache in 8 bits."""
_LEAST = {("decode", DEFAULT): 2.5, ("prefill", DEFAULT): 1.4, ("decode", BF16): 1.5, ("prefill", BF16): 1.5}
_ALONE = 1.5
"""Of decode at batch 1."""


def _jobs(batches: Sequence[int]) -> list[Job]:
    """Small batches are noisier, and cost little: they are done twice."""
    return [Job(batch, PROMPT, NEW, 2) if batch <= 8 else Job(batch, PROMPT, NEW_OF_MANY) for batch in batches]


def _measure(conditions: Conditions) -> Iterator[Figure]:
    """Twice, ours before and behind the others: a machine is slow for minutes, and all shall have the others, too."""
    yield from _own(DEFAULT, conditions)
    for _ in range(2):
        yield from _others(conditions)
        yield from _own(BF16, conditions)
        yield from _own(DEFAULT, conditions)
    yield from _own(DEFAULT, conditions, KV_INT8, kv_cache_dtype="int8")


def _others(conditions: Conditions) -> Iterator[Figure]:
    peers = conditions.peers
    assert peers is not None
    for format_, batches in LLAMA.items():
        jobs = _jobs(batches)
        yield from attempted(
            f"llama.cpp {format_}", lambda f=format_, j=jobs: batched_bench(peers, f, model(peers, f), j)
        )
    for format_, batches in OPENVINO.items():
        jobs = _jobs(batches)
        yield from attempted(
            f"OpenVINO {format_}", lambda f=format_, j=jobs: drive("openvino", f, model(peers, f), j, peers)
        )
    jobs = _jobs(BATCHES)
    yield from attempted(f"vLLM {_BF16}", lambda: drive("vllm", _BF16, peers / "smollm2-hf", jobs, peers))


def _own(subject: str, conditions: Conditions, beside: str = "", **options: str) -> Iterator[Figure]:
    path = path_of(subject, conditions)
    weights, jobs = format_of(path) + beside, _jobs(BATCHES)
    yield from attempted(f"octavo, {subject}{beside}", lambda: drive("octavo", weights, path, jobs, **options))


# -- what is shown ---------------------------------------------------------------------------------------------------


def show(figures: list[Figure]) -> Shown:
    found = rates(figures)
    mine = next((rate.weights for rate in ours(found)), "")
    return Shown(
        tables=(
            _beside(f"The default model as shipped ({mine})", found, mine),
            _beside("The same with `--kv-cache-dtype int8`", found, mine + KV_INT8),
            _beside("bf16 weights, beside the other engines' bf16", _only(found, _BF16), _BF16),
            *(_variants(found, kind) for kind in KINDS),
        ),
        claims=(*_claims(found, mine, DEFAULT), *_claims(_only(found, _BF16), _BF16, BF16)),
        plots=(_plot(found),),
    )


def _only(found: Sequence[Rate], weights: str) -> list[Rate]:
    return [rate for rate in found if rate.weights == weights]


def _pair(found: Sequence[Rate], mine: str, kind: str, batch: int) -> tuple[Rate | None, Rate | None]:
    """Ours with these weights, and the best of all variants of other engines."""
    here = [rate for rate in found if rate.batch == batch]
    return best(_only(ours(here), mine), kind), best(others(here), kind)


def _beside(caption: str, found: Sequence[Rate], mine: str) -> Table:
    rows: list[list[Cell]] = []
    for kind in KINDS:
        for batch in BATCHES:
            own, other = _pair(found, mine, kind, batch)
            which = None if other is None else other.who
            speeds = [None if rate is None else rate.of(kind) for rate in (own, other)]
            rows.append([kind, batch, *speeds, which, ratio(own, other, kind)])
    columns = (
        Column("work"),
        Column("requests", 0),
        Column(OURS, 0),
        Column("best other", 0),
        Column("which"),
        Column("ratio", 2),
    )
    return Table(columns, rows, caption)


def _variants(found: Sequence[Rate], kind: str) -> Table:
    """A row for each engine and number format, a column for each batch size."""
    speeds = {(rate.who, rate.batch): rate.of(kind) for rate in found}
    names = sorted({rate.who for rate in found}, key=lambda who: (not who.startswith(OURS), who))
    rows: list[list[Cell]] = [[who, *(speeds.get((who, batch)) for batch in BATCHES)] for who in names]
    return Table((Column(kind), *(Column(f"{batch} at once", 0) for batch in BATCHES)), rows, f"All formats, {kind}")


def _claims(found: Sequence[Rate], mine: str, subject: str) -> Iterator[Claim]:
    for kind in KINDS:
        for batch in BATCHES:
            alone = subject == DEFAULT and kind == "decode" and batch == 1
            target = Target(_ALONE if alone else _LEAST[kind, subject], " x")
            value = ratio(*_pair(found, mine, kind, batch), kind)
            weights = "bf16 weights, " if subject == BF16 else ""
            work = Work(subject, kind, batch, PROMPT)
            yield Claim(f"{weights}{kind}, {batch} at once", value, target, work)


def _plot(found: Sequence[Rate]) -> Plot:
    names = sorted({rate.who for rate in found}, key=lambda who: (not who.startswith(OURS), who))
    speeds = {(rate.who, rate.batch): rate.decode for rate in found}
    series = {who: tuple(speeds.get((who, batch)) for batch in BATCHES) for who in names}
    return Plot(
        "decode-by-batch",
        "Decode beside other engines",
        "requests at once",
        "tokens/s",
        tuple(map(str, BATCHES)),
        series,
    )


PEERS = Section(
    name="peers",
    title="Beside other engines",
    about=(
        f"Prompts of {PROMPT} random tokens, no two alike, {NEW} greedy tokens each ({NEW_OF_MANY} from 16 requests "
        "on), in tokens a second; the best of one to six rounds, minutes apart. prefill: prompt tokens a second up to "
        "the first new one. decode: the tokens after it, timed with the prompts' KV in the prefix cache, or apart by "
        "llama-batched-bench. The opponent is the best number format of the best other engine for that row. "
        "Transformers' `generate` is left out: it is slower than all of these."
    ),
    measure=_measure,
    show=show,
    needs_peers=True,
)
