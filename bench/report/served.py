"""Section: servers over HTTP: how they start, what a cached prompt saves, and how they stand a load."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import servers
from bench.report.driver import prompts
from bench.report.installed import environment, program
from bench.report.processes import lines_of
from bench.report.section import Conditions, Figure, Section, attempted
from bench.report.shown import Cell, Claim, Column, Plot, Shown, Table, Target, Work
from bench.report.subjects import DEFAULT, format_of, path_of
from bench.report.throughput import OURS, Job, drive

PROMPT, NEW, CLIENTS = 256, 128, 16
LOAD = Work(DEFAULT, "served", CLIENTS, PROMPT)
LOADS: dict[str, tuple[str, ...]] = {
    "closed": ("--num-prompts", "64", "--max-concurrency", str(CLIENTS)),
    "poisson": ("--num-prompts", "24", "--request-rate", "1"),
}
WORDS = {"closed": f"{CLIENTS} clients, 64 prompts", "poisson": "1 request/s, Poisson, 24 prompts"}
KEPT = ("completed", "failed", "duration", "output_throughput")
LATENCIES = ("p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms")
CACHED_PROMPT, CACHED_ROUNDS = 2048, 3


def _measure(conditions: Conditions) -> Iterator[Figure]:
    peers = conditions.peers
    assert peers is not None
    yield from attempted("octavo, offline", lambda: _offline(conditions))
    yield from attempted("octavo", lambda: _server(servers.octavo(conditions), peers))
    yield from attempted("llama-server", lambda: _server(servers.llama_server(peers), peers))
    yield from attempted("vLLM", lambda: _server(servers.vllm(peers), peers))


def _offline(conditions: Conditions) -> Iterator[Figure]:
    """The work of the closed loop, without a server."""
    path = path_of(DEFAULT, conditions)
    jobs = [Job(64, PROMPT, NEW - 1)]
    for figure in drive("octavo", format_of(path), path, jobs, at_once=CLIENTS):
        whole_s = figure["first_s"][0] + figure["full_s"][0] - figure["again_s"][0]
        yield {"kind": "offline", "tokens": 64 * NEW, "full_s": [whole_s]}


def _server(server: servers.Server, peers: Path) -> Iterator[Figure]:
    """Starts it as often as that shall be seen, and asks the last one everything else."""
    for _ in range(server.starts - 1):
        with servers.running(server) as one:
            yield _start(server, one)
    with servers.running(server) as one:
        yield _start(server, one)
        name = {"server": server.name}
        yield from attempted(f"{server.name}, cached prompt", lambda: [name | _cached(one.port)])
        for seed, (arrivals, flags) in enumerate(LOADS.items()):
            what = f"{server.name}, {WORDS[arrivals]}"
            yield from attempted(what, lambda s=seed, a=arrivals, f=flags: [name | _load(peers, one.port, a, f, s)])


def _start(server: servers.Server, one: servers.Running) -> Figure:
    return {"server": server.name, "kind": "start", "ready_s": one.ready_s, "first_token_s": one.first_token_s}


def _cached(port: int) -> Figure:
    """Each prompt twice: nobody has seen it, and somebody has."""
    twice = [
        [servers.time_to_first_token(port, ids) for _ in range(2)]
        for number in range(CACHED_ROUNDS)
        for ids in prompts(1, CACHED_PROMPT, f"cached {number}")
    ]
    new_s, again_s = zip(*twice, strict=True)
    return {"kind": "cached", "new_s": list(new_s), "again_s": list(again_s)}


def _load(peers: Path, port: int, arrivals: str, flags: Sequence[str], seed: int) -> Figure:
    """`vllm bench serve` is the client. Another seed has other prompts, so that nothing of a load is cached before."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(program(peers, "vllm", "vllm")), "bench", "serve", "--backend", "openai"),
            *("--base-url", f"http://{servers.HOST}:{port}", "--model", servers.MODEL),
            *("--tokenizer", str(peers / "smollm2-hf"), "--dataset-name", "random", "--seed", str(seed)),
            *("--random-input-len", str(PROMPT), "--random-output-len", str(NEW), "--ignore-eos"),
            *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99", "--disable-tqdm"),
            *("--save-result", "--result-dir", folder, "--result-filename", "result.json", *flags),
        ]
        for _ in lines_of(command, environment(peers, "vllm")):
            pass
        return read_load(arrivals, json.loads(Path(folder, "result.json").read_text("utf-8")))


def read_load(arrivals: str, result: Mapping[str, Any]) -> Figure:
    """What is kept of the file that `vllm bench serve` writes. Raises LookupError where something is not there."""
    return {"kind": "load", "arrivals": arrivals, **{name: result[name] for name in (*KEPT, *LATENCIES)}}


# -- what is shown ---------------------------------------------------------------------------------------------------


def show(figures: list[Figure]) -> Shown:
    starts, cached, loads = ([each for each in figures if each["kind"] == kind] for kind in ("start", "cached", "load"))
    offline = _offline_rate(figures)
    claims = (*_start_claims(starts), *_cached_claims(cached), *_load_claims(loads, offline))
    return Shown((_starts(starts), _cached_table(cached), _loads(loads, offline)), claims, (_plot(loads),))


def _offline_rate(figures: Sequence[Figure]) -> float | None:
    return max((each["tokens"] / min(each["full_s"]) for each in figures if each["kind"] == "offline"), default=None)


def _names(figures: Sequence[Figure]) -> list[str]:
    return list(dict.fromkeys(each["server"] for each in figures))


def _start_of(starts: Sequence[Figure], name: str, field: str) -> float | None:
    """The best: noise only ever slows."""
    return min((each[field] for each in starts if each["server"].startswith(name)), default=None)


def _starts(starts: Sequence[Figure]) -> Table:
    columns = (Column("from the command on, in seconds"), Column("ready", 2), Column("first token", 2))
    fields = ("ready_s", "first_token_s")
    rows: list[list[Cell]] = [[name, *(_start_of(starts, name, field) for field in fields)] for name in _names(starts)]
    return Table(columns, rows, "Start, with the model not in the page cache; the best of three (vLLM: one)")


def _start_claims(starts: Sequence[Figure]) -> Iterator[Claim]:
    ready_s, theirs_s = _start_of(starts, OURS, "ready_s"), _start_of(starts, "vLLM", "ready_s")
    yield Claim("ready after a cold start", ready_s, Target(1.5, " s", at_most=True))
    first_s = _start_of(starts, OURS, "first_token_s")
    yield Claim("first token after a cold start", first_s, Target(2.0, " s", at_most=True))
    yield Claim("ready sooner than vLLM", _over(theirs_s, ready_s), Target(20, " x"))


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _medians(figure: Figure) -> tuple[float, float, float]:
    """Milliseconds of a prompt that is new and of one seen before, and the second as a percentage of the first."""
    new, again = (1e3 * statistics.median(figure[name]) for name in ("new_s", "again_s"))
    return new, again, 100 * again / new


def _cached_table(cached: Sequence[Figure]) -> Table:
    columns = (Column("first token, in ms"), Column("new", 1), Column("seen before", 1), Column("% of new", 1))
    caption = f"A prompt of {CACHED_PROMPT:,} tokens, alone, asked twice; medians of {CACHED_ROUNDS} prompts"
    return Table(columns, [[each["server"], *_medians(each)] for each in cached], caption)


def _cached_claims(cached: Sequence[Figure]) -> Iterator[Claim]:
    share = next((_medians(each)[2] for each in cached if each["server"] == OURS), None)
    yield Claim("first token of a cached 2k prompt, of the uncached one's time", share, Target(5, " %", at_most=True))


def _loads(loads: Sequence[Figure], offline: float | None) -> Table:
    columns = (
        Column("server"),
        Column("arrivals"),
        Column("completed", 0),
        Column("failed", 0),
        Column("output tokens/s", 0),
        Column("TTFT p50 ms", 0),
        Column("p99", 0),
        Column("ITL p50 ms", 1),
        Column("p99", 1),
    )
    rows: list[list[Cell]] = [["octavo offline, 16 at once", "64 prompts", 64, 0, offline, *[None] * 4]]
    for arrivals, words in WORDS.items():
        for each in loads:
            if each["arrivals"] == arrivals:
                values = [float(each[name]) for name in ("output_throughput", *LATENCIES)]
                rows.append([each["server"], words, each["completed"], each["failed"], *values])
    caption = f"{PROMPT} random tokens in, {NEW} out; `vllm bench serve` is the client, on the same machine"
    return Table(columns, rows, caption)


def _load_claims(loads: Sequence[Figure], offline: float | None) -> Iterator[Claim]:
    closed = {each["server"]: each for each in loads if each["arrivals"] == "closed"}
    own = closed.get(OURS, {})
    for short in ("llama-server", "vLLM"):
        other = next((each for name, each in closed.items() if name.startswith(short)), {})
        what = f"served, {CLIENTS} clients"
        rate = _over(own.get("output_throughput"), other.get("output_throughput"))
        yield Claim(f"{what}, output tokens/s, to {short}", rate, Target(2.5, " x"), LOAD)
        for name, field in (("TTFT", "p99_ttft_ms"), ("ITL", "p99_itl_ms")):
            part = _over(own.get(field), other.get(field))
            yield Claim(f"{what}, p99 {name}, of {short}'s", part, Target(1, " x", at_most=True))
    share = _over(own.get("output_throughput"), offline)
    yield Claim("served, of our own offline figure", None if share is None else 100 * share, Target(85, " %"))


def _plot(loads: Sequence[Figure]) -> Plot:
    closed = [each for each in loads if each["arrivals"] == "closed"]
    series = {each["server"]: (each["p50_itl_ms"], each["p99_itl_ms"]) for each in closed}
    title = f"Between tokens of a streamed answer, {CLIENTS} clients"
    return Plot("served-itl", title, "inter-token latency", "ms", ("p50", "p99"), series, bars=True)


SERVED = Section(
    name="served",
    title="Servers",
    about=(
        "Octavo with default settings, llama-server in Q4_0 with a slot for each client, vLLM in bf16. Each is "
        "started on a free port and asked over HTTP: until it says that it is ready, for a first token, for long "
        "prompts that it has seen or not, and then with a load: clients that ask again as soon as they have an "
        "answer, and independent arrivals. Clients share the machine's cores with the servers."
    ),
    measure=_measure,
    show=show,
    needs_peers=True,
)
