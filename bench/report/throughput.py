"""Throughput: engines run on the same work, offline, and the rates that follow from the seconds they took."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import driver
from bench.report.installed import environment, llama_program, program
from bench.report.processes import lines_of
from bench.report.section import Figure

KINDS = ("prefill", "decode")
OURS = "octavo"
NAMES = {"octavo": "octavo", "vllm": "vLLM", "openvino": "OpenVINO"}
LLAMA = "llama.cpp"


class Job(NamedTuple):
    """Prompts of a length at once, tokens after them, and how often."""

    batch: int
    prompt: int
    new: int
    rounds: int = 1


# -- measuring -------------------------------------------------------------------------------------------------------


def drive(
    engine: str,
    weights: str,
    model: Path,
    jobs: Sequence[Job],
    peers: Path | None = None,
    *,
    at_once: int | None = None,
    **options: str,
) -> Iterator[Figure]:
    """One process of an engine does all jobs, as `driver` says. Raises FAILURES, after what came before."""
    asked = {"engine": engine, "model": str(model), "works": jobs, "at_once": at_once, "options": options}
    python = Path(sys.executable) if peers is None else program(peers, engine, "python")
    env = dict(os.environ) if peers is None else environment(peers, engine)
    env["PYTHONSAFEPATH"] = "1"  # an engine that looks for its `kernels` must not find the module beside the driver
    for line in lines_of([str(python), driver.__file__, json.dumps(asked)], env):
        if line.startswith('{"engine"'):
            yield json.loads(line) | {"engine": NAMES[engine], "weights": weights}


def batched_bench(peers: Path, weights: str, model: Path, jobs: Sequence[Job]) -> Iterator[Figure]:
    """llama-batched-bench does each job, in a process for each length and round. Raises FAILURES."""
    bench = llama_program(peers, "llama-batched-bench")
    for length, new, number in sorted({(j.prompt, j.new, i) for j in jobs for i in range(j.rounds)}):
        batches = sorted(j.batch for j in jobs if (j.prompt, j.new) == (length, new) and j.rounds > number)
        words = {
            "-m": model,
            "-t": os.cpu_count(),
            "-c": max(batches) * (length + new) + 64,
            "-b": driver.MAX_BATCHED_TOKENS,
            "-fa": "on",
            "-npp": length,
            "-ntg": new,
            "-npl": ",".join(map(str, batches)),
            "--output-format": "jsonl",
        }
        command = [str(bench), *(str(each) for word in words.items() for each in word)]
        yield from read_batched(weights, lines_of(command, environment(peers, "llamacpp")))


def read_batched(weights: str, lines: Iterable[str]) -> Iterator[Figure]:
    """What llama-batched-bench prints: it tells prompts and the tokens after them apart itself."""
    for line in lines:
        if line.startswith("{"):
            row = json.loads(line)
            work = {"batch": row["pl"], "prompt": row["pp"], "new": row["tg"]}
            yield {"engine": LLAMA, "weights": weights, **work, "first_s": [row["t_pp"]], "decode_s": [row["t_tg"]]}


# -- what follows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one engine and number format at one work."""

    engine: str
    weights: str
    batch: int
    prompt: int
    prefill: float
    decode: float | None
    """None where noise hid it."""

    @property
    def who(self) -> str:
        return f"{self.engine} {self.weights}"

    def of(self, kind: str) -> float | None:
        return self.prefill if kind == "prefill" else self.decode


def rates(figures: Iterable[Figure]) -> list[Rate]:
    """The best of all rounds, since noise only ever slows."""
    grouped: dict[tuple[Any, ...], list[Figure]] = {}
    for figure in figures:
        key = tuple(figure[name] for name in ("engine", "weights", "batch", "prompt", "new"))
        grouped.setdefault(key, []).append(figure)
    return [_rate(*key, group) for key, group in grouped.items()]


def _rate(engine: str, weights: str, batch: int, prompt: int, new: int, group: Sequence[Figure]) -> Rate:
    first_s, decode_s = _best(group, "first_s"), _decode_s(group)
    return Rate(
        engine, weights, batch, prompt, batch * prompt / first_s, batch * new / decode_s if decode_s > 0 else None
    )


def _decode_s(group: Sequence[Figure]) -> float:
    """As the engine tells it, or what is left without a run of the same prompts for one token."""
    if "decode_s" in group[0]:
        return _best(group, "decode_s")
    return _best(group, "full_s") - _best(group, "again_s")


def _best(group: Iterable[Figure], name: str) -> float:
    return min(seconds for figure in group for seconds in figure[name])


def best(found: Iterable[Rate], kind: str) -> Rate | None:
    """Of those that have such a rate."""
    return max((rate for rate in found if rate.of(kind)), key=lambda rate: rate.of(kind) or 0.0, default=None)


def others(found: Iterable[Rate]) -> list[Rate]:
    return [rate for rate in found if rate.engine != OURS]


def ours(found: Iterable[Rate]) -> list[Rate]:
    return [rate for rate in found if rate.engine == OURS]


def ratio(own: Rate | None, other: Rate | None, kind: str) -> float | None:
    mine, theirs = (None if rate is None else rate.of(kind) for rate in (own, other))
    return mine / theirs if mine and theirs else None
