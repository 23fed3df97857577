"""Block managers compared: `python -m bench.allocation [--write docs/allocation.md]`, with ../shared/traces if there.

The real scheduler over a backend that computes nothing, in simulated time: a step costs a base and something for each
token. The lengths of prompts and answers are those of the Azure 2023 traces where they lie beside the checkout, else
drawn with a fixed seed from shapes like theirs. Everything follows from the lengths: the same numbers on any machine.
"""

import argparse
import csv
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.policy import answer
from bench.traces import TRACES
from octavo.core.events import Finished, Preempted
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits

STEP_S, TOKEN_S = 0.010, 0.0002
"""What a step costs: a fixed part, and for each token that it computes."""
COUNT = 400
MOST = 1024
"""`max_tokens` of every request: what the client asked for is far from what comes."""


@dataclass(frozen=True)
class Load:
    name: str
    what: str
    lengths: Sequence[tuple[int, int]]
    """(prompt, answer) in tokens."""
    burst: int
    """Requests that arrive together."""
    gap_s: float
    """Between two bursts."""
    num_blocks: int
    """Of 16 tokens."""
    max_model_len: int = 8192


@dataclass(frozen=True)
class Outcome:
    preemptions: int
    tokens_lost: int
    mean_s: float
    p99_s: float
    seconds: float
    tokens_per_s: float
    """Of answers, over all of it."""
    leased_use: float
    pool_use: float
    contiguous_use: float
    running: float
    """Requests at once; this and the three above are means while something waits."""


def traced(name: str, count: int, most: int) -> list[tuple[int, int]] | None:
    path = TRACES / name
    if not path.exists():
        return None
    with path.open(newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return [(prompt, answer) for prompt, answer in rows if 0 < prompt <= most and 0 < answer <= MOST][:count]


def drawn(seed: int, prompt: float, answer: float, count: int, most: int) -> list[tuple[int, int]]:
    """Log-normal lengths around these medians."""
    rng = random.Random(seed)

    def length(median: float, limit: int) -> int:
        return max(1, min(limit, round(median * rng.lognormvariate(0, 0.8))))

    return [(length(prompt, most), length(answer, MOST)) for _ in range(count)]


def loads() -> tuple[list[Load], str]:
    chats, codes = traced("azure2023_conv.csv", COUNT, 1500), traced("azure2023_code.csv", COUNT, 6000)
    source = "lengths of the Azure 2023 traces (CC-BY 4.0)" if chats and codes else "lengths drawn with a fixed seed"
    short = [(max(1, prompt // 4), answer) for prompt, answer in chats or drawn(1, 600, 110, COUNT, 1500)]
    long = [(prompt, 8 * answer) for prompt, answer in codes or drawn(2, 2000, 12, COUNT, 6000)]
    tiny = drawn(3, 40, 12, COUNT, 200)
    return [
        Load(
            "bursty-tiny",
            "prompts of some 40 tokens, answers of some 12, 100 at once, every second",
            tiny,
            100,
            1.0,
            150,
        ),
        Load("bursty-short", "chats with a quarter of their prompt, 64 at once, every 8 s", short, 64, 8.0, 600),
        Load("long-prefill", "code prompts with answers eight times as long, 8 at once, every 4 s", long, 8, 4.0, 1200),
    ], source


def serve(load: Load, manager: str, block_size: int = 16, *, caching: bool = False) -> Outcome:
    """Plays a load through a scheduler, and measures. No two prompts begin alike, so `caching` finds nothing."""
    limits = Limits(
        num_blocks=load.num_blocks * 16 // block_size,
        block_size=block_size,
        vocab_size=1000,
        max_model_len=load.max_model_len,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_num_partial_prefills=4,
        enable_prefix_caching=caching,
        block_manager=manager,
    )
    one = Scheduler(limits)
    arrived = {f"r{i}": i // load.burst * load.gap_s for i in range(len(load.lengths))}
    lengths = dict(zip(arrived, load.lengths, strict=True))
    due = deque(enumerate(arrived))
    now, took, lost, preemptions = 0.0, [], 0, 0
    shares: list[tuple[float, ...]] = []
    while due or one.has_work:
        if not one.has_work:
            now = max(now, arrived[due[0][1]])
        while due and arrived[due[0][1]] <= now:
            i, name = due.popleft()
            prompt = tuple((i * 7919 + j) % 999 for j in range(lengths[name][0]))
            params = SamplingParams(max_tokens=min(MOST, load.max_model_len - 1 - len(prompt)), temperature=0.0)
            one.submit(Request(request_id=name, prompt=prompt, params=params), now)
        plan = one.plan(now)
        now += STEP_S + TOKEN_S * plan.num_tokens
        events = one.commit(plan, answer(plan), now)
        for event in events:
            if isinstance(event, Finished):
                took.append(now - arrived[event.request_id])
            elif isinstance(event, Preempted):
                preemptions, lost = preemptions + 1, lost + event.tokens_lost
        for choice in list(one.roster.running):  # what ends an answer: its length in the trace
            if len(choice.tokens) - choice.prompt_len >= lengths[choice.request_id][1]:
                one.cancel(choice.request_id, now)
                took.append(now - arrived[choice.request_id])
        if one.roster.waiting:
            shares.append(measure(one))
    took.sort()
    columns = list(zip(*shares, strict=True)) or [(1.0,)] * 4
    means = [statistics.fmean(column) for column in columns]
    rate = sum(answer for _, answer in load.lengths) / now
    return Outcome(preemptions, lost, statistics.fmean(took), took[len(took) * 99 // 100], now, rate, *means)


def measure(one: Scheduler) -> tuple[float, float, float, float]:
    """Real tokens as a share of leased slots, of all slots (cached too), of the most that may be; and how many run."""
    tokens = sum(choice.computed for choice in one.roster.running)
    pool, size = one.cache.pool, one.limits.block_size
    contiguous = sum(choice.max_len for choice in one.roster.running)
    held = tokens + pool.num_cached * size
    running = float(len(one.roster.running))
    return tokens / (pool.num_leased * size or 1), held / (pool.num_blocks * size), tokens / (contiguous or 1), running


def page() -> str:
    kinds, source = loads()
    lines = [
        "# Block managers, compared",
        "",
        "Made by `bench/allocation.py`; do not edit. The real scheduler in simulated time: a step costs "
        f"{STEP_S * 1e3:g} ms and {TOKEN_S * 1e3:g} ms a token; {source}; {COUNT} requests each, `max_tokens` {MOST}, "
        "no prompt begins like another.",
        "The share is measured at saturation, that is while something waits.",
        "",
        "| load | manager | preemptions | tokens computed again | mean s | p99 s | all done s "
        "| real tokens in leased slots | in all slots, without prefix cache | with it "
        "| contiguous reservation would hold |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for load in kinds:
        lines += [row(load, manager) for manager in ("v1", "v2")]
    lines += [
        "",
        "Loads: " + "; ".join(f"*{load.name}*: {load.what}, {load.num_blocks} blocks of 16" for load in kinds) + ".",
        "",
    ]
    lines += [
        "v1 lets more in at once and fills the pool to the brim: that pays where answers are so short that hardly "
        "anybody outgrows what is free. v2 pays where they are longer: what v1 lets in, it must throw out again and "
        "compute anew. A contiguous cache, which reserves the most that a request may take, would hold real tokens in "
        "the last column's share of its slots. What v2 reserves is not empty: until it is needed, the prefix cache "
        "keeps what others left there, so with it the memory holds real tokens in all but the ends of sequences.",
        "",
    ]
    lines += ["## Block sizes", "", "The same memory, cut differently, with v2: real tokens in leased slots.", ""]
    sizes = (8, 16, 32, 64, 128)
    lines += ["| load | " + " | ".join(map(str, sizes)) + " |", "|---" * 6 + "|"]
    for load in kinds:
        uses = [serve(load, "v2", size).leased_use for size in sizes]
        lines.append(f"| {load.name} | " + " | ".join(f"{use:.1%}" for use in uses) + " |")
    return "\n".join(lines) + "\n"


def row(load: Load, manager: str) -> str:
    out, cached = serve(load, manager), serve(load, manager, caching=True)
    uses = f"{out.leased_use:.1%} | {out.pool_use:.1%} | {cached.pool_use:.1%} | {out.contiguous_use:.1%}"
    times = f"{out.mean_s:.1f} | {out.p99_s:.1f} | {out.seconds:.0f}"
    return f"| {load.name} | {manager} | {out.preemptions:,} | {out.tokens_lost:,} | {times} | {uses} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="write the page there, instead of printing it")
    target = parser.parse_args().write
    text = page()
    if target:
        Path(target).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
