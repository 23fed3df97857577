"""A latency objective on a real server, beside the same server without: `python bench/slo.py [--itl-ms 400]`.

Two servers of the default model, and rounds that go to one and the other in turn, so that what else the machine does
hits both. In a round some answers are streamed, and long prompts arrive one after the other, until a fixed load is
served. Reported are the p99 of inter-token latencies and of first tokens as clients see them, tokens a second, and the
CPU time of both processes of a server, which a busy machine blurs less: for each round, and for all together but the
first, in which the objective has to be found.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

STREAMED, ANSWER_LEN = 6, 120
"""Answers that are streamed at once, each of so many tokens, and the rounds of them."""
TURNS = 3
DOCUMENTS, DOCUMENT_LEN = 12, 1500
MODEL = "bench"


@dataclass
class Round:
    """What clients saw, in seconds."""

    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    num_tokens: int = 0
    took: float = 0.0
    cpu: float = 0.0

    @classmethod
    def together(cls, rounds: Sequence["Round"]) -> "Round":
        return cls(
            [gap for each in rounds for gap in each.gaps],
            [first for each in rounds for first in each.firsts],
            sum(each.num_tokens for each in rounds),
            sum(each.took for each in rounds),
            sum(each.cpu for each in rounds),
        )

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.took

    def words(self) -> str:
        itl, ttft = p99(self.gaps) * 1000, p99(self.firsts) * 1000
        median = statistics.median(self.gaps) * 1000
        latencies = f"itl p50 {median:5.0f} p99 {itl:6.0f} ms   first p99 {ttft:6.0f} ms"
        return f"{latencies}   {self.tokens_per_s:6.0f} tokens/s   {self.cpu:5.1f} s of CPU"


def p99(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


@dataclass(frozen=True)
class Server:
    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds that the server and its engine have computed."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        pids = [self.pid, *(int(pid) for file in children for pid in file.read_text().split())]
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    """A server on a port of its own."""
    line = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--served-model-name", MODEL, *flags]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        try:
            assert process.stdout is not None
            ready = (found for line in process.stdout if (found := re.search(r"ready on http://\S+?:(\d+)", line)))
            yield Server(int(next(ready)[1]), process.pid)
        finally:
            process.terminate()


async def stream(port: int, prompt: list[int], max_tokens: int) -> AsyncIterator[float]:
    """The times at which the tokens of an answer come."""
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    body = json.dumps({**fields, "ignore_eos": True, "temperature": 0, "return_token_ids": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    async for line in reader:
        if line.startswith(b"data: {") and b'"token_ids":[' in line:
            yield time.perf_counter()
    writer.close()


async def ask(port: int, result: Round, prompt: list[int], max_tokens: int) -> None:
    sent, times = time.perf_counter(), [at async for at in stream(port, prompt, max_tokens)]
    if len(times) < max_tokens:
        raise SystemExit(f"{len(times)} of {max_tokens} tokens came")
    result.firsts.append(times[0] - sent)
    result.gaps += [after - before for before, after in pairwise(times)]
    result.num_tokens += len(prompt) + max_tokens


async def load(server: Server, number: int) -> Round:
    """The work of one round; the same in all rounds of a number, and no prompt twice."""
    result, port = Round(), server.port

    def prompt(length: int, of: int) -> list[int]:
        return [100 + (number * 7919 + of * 104_729 + at * 31) % 40_000 for at in range(length)]

    async def chat(user: int) -> None:
        for turn in range(TURNS):
            await ask(port, result, prompt(40, 1000 + user * TURNS + turn), ANSWER_LEN)

    async def documents() -> None:
        for each in range(DOCUMENTS):
            await ask(port, result, prompt(DOCUMENT_LEN, each), 2)

    began, computed = time.perf_counter(), server.cpu()
    await asyncio.gather(*(chat(user) for user in range(STREAMED)), documents())
    result.took, result.cpu = time.perf_counter() - began, server.cpu() - computed
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--itl-ms", type=float, default=400.0, help="the objective")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = ("without", "with")
    rounds: dict[str, list[Round]] = {name: [] for name in names}
    with ExitStack() as stack:
        flags = (("--prefill-tokens-beside-decodes", "0"), ("--slo-itl-ms", str(args.itl_ms)))
        servers = [stack.enter_context(serving("--max-model-len", "4096", *more)) for more in flags]
        for number in range(args.rounds):
            for name, server in list(zip(names, servers, strict=True))[:: 1 if number % 2 else -1]:
                rounds[name].append(asyncio.run(load(server, number)))
                print(f"round {number} {name:8} {rounds[name][-1].words()}", flush=True)
    off, on = (Round.together(rounds[name][1:]) for name in names)
    print(f"all but 0 without  {off.words()}\nall but 0 with     {on.words()}")
    lost, more = 1 - on.tokens_per_s / off.tokens_per_s, on.cpu / off.cpu - 1
    met = {True: "met", False: "missed"}
    print(
        f"objective {args.itl_ms:.0f} ms: {met[p99(off.gaps) * 1000 <= args.itl_ms]} without, "
        f"{met[p99(on.gaps) * 1000 <= args.itl_ms]} with, at {lost:.1%} less throughput and {more:.1%} more CPU time"
    )


if __name__ == "__main__":
    main()
