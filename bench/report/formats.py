"""Section: what number formats cost: perplexity of a fixed text, beside the same weights in float32."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.report.installed import model
from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Shown, Table, Target
from bench.report.subjects import DEFAULT, path_of
from octavo.config import Config
from octavo.config.sources import from_keywords
from octavo.tools.partner import open_partner
from octavo.tools.perplexity import Reading, in_float32, read_ids, top1_agreement
from octavo.tools.terminal import ignore

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "smollm2.json"
"""Its text: docstrings of Python's standard library, 4,608 tokens."""
TARGET = Target(0.5, " %", at_most=True)
KV = ("bfloat16", "float16", "int8")


class Way(NamedTuple):
    """How a file is read, beside float32 throughout."""

    kv_cache_dtype: str
    quantization: str | None = None


def _measure(conditions: Conditions) -> Iterator[Figure]:
    yield from _compared(path_of(DEFAULT, conditions), [Way(kv) for kv in KV])
    peers = conditions.peers
    if peers is not None:
        for format_ in ("Q4_0", "Q8_0"):
            yield from attempted(format_, lambda f=format_: _compared(model(peers, f), [Way(KV[0])]))
        ways = [Way(KV[0], quantization) for quantization in (None, "int8", "int4")]
        yield from attempted("bf16", lambda: _compared(peers / "smollm2-hf", ways))


def _compared(path: Path, ways: Sequence[Way]) -> Iterator[Figure]:
    exact = _read(in_float32(from_keywords(model=str(path), max_num_seqs=1)))
    yield _figure(exact, exact)
    for way in ways:
        given = {name: value for name, value in way._asdict().items() if value is not None}
        yield _figure(_read(from_keywords(model=str(path), max_num_seqs=1, **given)), exact)


def _read(config: Config) -> Reading:
    """As ids, so that it is the same text for all, whatever their tokenizers make of it."""
    ids = json.loads(GOLDEN.read_text("utf-8"))["perplexity"]["token_ids"]
    with open_partner(config) as (partner, facts):
        return read_ids(partner, facts, ids, ignore)


def _figure(own: Reading, exact: Reading) -> Figure:
    """The tokens themselves are not kept: only how often both would choose the same, and how far they are apart."""
    each_token = ("best", "nlls")
    values = {field.name: getattr(own, field.name) for field in dataclasses.fields(own) if field.name not in each_token}
    apart = [a - b for a, b in zip(own.nlls, exact.nlls, strict=True)]
    error = statistics.stdev(apart) / math.sqrt(len(apart))
    return {**values, "exact_nll": exact.nll, "error": error, "top1": top1_agreement(own, exact)}


def show(figures: list[Figure]) -> Shown:
    columns = (
        Column("weights"),
        Column("KV"),
        Column("NLL", 4),
        Column("perplexity", 4),
        Column("% from float32", 3),
        Column("± %", 3),
        Column("% top-1 agreement", 2),
    )
    return Shown((Table(columns, [_row(each) for each in figures]),), tuple(_claims(figures)))


def _percent(each: Figure) -> float:
    """By how much its perplexity is above that in float32."""
    return 100 * math.expm1(each["nll"] - each["exact_nll"])


def _row(each: Figure) -> list[Cell]:
    formats = [each["weight_format"], each["kv_cache_dtype"]]
    nll, error = each["nll"], 100 * each["error"]
    return [*formats, nll, math.exp(nll), _percent(each), error, 100 * each["top1"]]


def _claims(figures: Sequence[Figure]) -> Iterator[Claim]:
    for each in figures:
        if each["kv_cache_dtype"] != "float32":
            what = f"perplexity above float32, {each['weight_format']} weights, {each['kv_cache_dtype']} KV"
            noise = f"± {100 * each['error']:.2f} %, the standard error over these tokens"
            yield Claim(what, _percent(each), TARGET, note=noise)


FORMATS = Section(
    name="formats",
    title="Number formats",
    about=(
        "4,608 tokens of documentation, read in windows of 513, as `octavo doctor --perplexity` reads any text. "
        "Each file is compared with itself: its weights dequantised to float32, and nothing rounded on the way. "
        "± is the standard error of that difference over the tokens of this text. Top-1 agreement is how often both "
        "would choose the same next token. `-int8` and `-int4` are weights that "
        "`--quantization` rounded at load."
    ),
    measure=_measure,
    show=show,
)
