"""Traces of requests whose shared prefixes are known: recorded ones, and sessions built from recorded lengths.

A block id stands for one block's content and all that comes before it. The same rows and the same seed give the same
requests, on every machine. What was made up is said in the docstring of each trace.
"""

import ast
import csv
import json
import os
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice
from pathlib import Path

TRACES = Path(os.environ.get("OCTAVO_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
SEED = 20_240_607


@dataclass(frozen=True, slots=True)
class Request:
    """The blocks of a prompt, and those that its answer adds; a next turn may begin with both."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def chat() -> list[Request]:
    """Azure's conversation lengths and times, the first 10,000 of them, as chats; blocks of 64 tokens.

    A row continues the chat whose text is the longest one shorter than the row's context, if that is at least half of
    it and was answered 5 to 600 s ago. Otherwise it opens a chat with one of 24 system prompts of 1 to 12 blocks, the
    k-th of which is chosen 1/k as often as the first.
    """
    rng, fresh = random.Random(SEED), count()
    systems = [_take(fresh, rng.randint(1, 12)) for _ in range(24)]
    weights = [1 / rank for rank in range(1, 25)]
    chats: list[tuple[int, float, tuple[int, ...]]] = []
    requests: list[Request] = []
    for now, context, generated in islice(_azure("conv"), 10_000):
        chats = [one for one in chats if now - one[1] <= 600] if len(requests) % 256 == 0 else chats
        past = _continued(chats, now, context) or rng.choices(systems, weights)[0]
        prompt = past[:context] + _take(fresh, context - len(past))
        requests.append(Request(prompt, _take(fresh, generated)))
        insort(chats, (context + generated, now, prompt + requests[-1].output))
    return requests


def _continued(chats: list[tuple[int, float, tuple[int, ...]]], now: float, context: int) -> tuple[int, ...] | None:
    for place in range(bisect_left(chats, (context,)) - 1, -1, -1):
        length, last, blocks = chats[place]
        if 2 * length < context:
            return None
        if 5 <= now - last <= 600:
            del chats[place]
            return blocks
    return None


def code() -> list[Request]:
    """Azure's code completion lengths, the first 6,000 of them, as editors that ask again; blocks of 64 tokens.

    300 editors, the k-th 1/k as busy as the first. Each prompt begins with 2 blocks that all share, and repeats its
    editor's previous one up to a place chosen uniformly in its second half; one in eight is about another file.
    """
    rng, fresh = random.Random(SEED), count()
    preamble = _take(fresh, 2)
    before = [preamble] * 300
    weights = [1 / rank for rank in range(1, 301)]
    requests: list[Request] = []
    for _, context, generated in islice(_azure("code"), 6_000):
        editor = rng.choices(range(300), weights)[0]
        last = preamble if rng.random() < 1 / 8 else before[editor]
        kept = last[: max(2, int(min(len(last), context) * rng.uniform(0.5, 1.0)))][:context]
        before[editor] = kept + _take(fresh, context - len(kept))
        requests.append(Request(before[editor], _take(fresh, generated)))
    return requests


def _azure(name: str) -> Iterator[tuple[float, int, int]]:
    """Rows as seconds, blocks of context, and full blocks generated."""
    with (TRACES / f"azure2023_{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            time = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield time, max(1, int(row["ContextTokens"]) // 64), int(row["GeneratedTokens"]) // 64


def _clients(folder: str, num_requests: int, continued: float) -> list[Request]:
    rng, fresh = random.Random(SEED), count()
    members = [_Client(path, rng, fresh) for path in sorted((TRACES / "servegen" / folder).glob("*-trace.csv"))]
    requests: list[Request] = []
    for window in count():
        rates = [member.rates[window % len(member.rates)] for member in members]
        for _ in range(int(sum(rates) * 10)):
            requests.append(rng.choices(members, rates)[0].request(window * 600, continued))
            if len(requests) == num_requests:
                return requests
    raise AssertionError


class _Client:
    def __init__(self, trace: Path, rng: random.Random, fresh: Iterator[int]) -> None:
        with trace.open(encoding="utf-8") as file:
            self.rates = [float(row[1]) for row in csv.reader(file)]
        stored = json.loads(trace.with_name(trace.name.replace("trace.csv", "dataset.json")).read_text("utf-8"))
        self.lengths = {int(time): _histograms(each) for time, each in stored.items() if each["input_tokens"]}
        shortest = min(min(inputs[0]) for inputs, _ in self.lengths.values() if inputs[0])
        self.template = _take(fresh, max(1, shortest // 32))
        self.chats: list[tuple[int, tuple[int, ...]]] = []
        self.rng, self.fresh = rng, fresh

    def request(self, time: int, continued: float) -> Request:
        inputs, outputs = self.lengths.get(time // 21_600 * 21_600) or next(iter(self.lengths.values()))
        turn, past = 0, self.template
        if self.chats and self.rng.random() < continued:
            weights = [1 / rank for rank in range(1, len(self.chats) + 1)]
            place = self.rng.choices(range(len(self.chats)), weights)[0]
            turn, past = self.chats.pop(place)
        num_new = max(1, self.rng.choices(*inputs)[0] // 16 - len(self.template))
        prompt = past + _take(self.fresh, num_new)
        output = _take(self.fresh, self.rng.choices(*outputs)[0] // 16)
        if turn < 7:
            self.chats.insert(0, (turn + 1, prompt + output))
            del self.chats[64:]
        return Request(prompt, output)


_Histogram = tuple[list[int], list[float]]


def _histograms(stored: dict[str, str]) -> tuple[_Histogram, _Histogram]:
    inputs, outputs = (ast.literal_eval(stored[key]) for key in ("input_tokens", "output_tokens"))
    return (list(inputs), list(inputs.values())), (list(outputs), list(outputs.values()))


def hot_prompt() -> list[Request]:
    """A hot system prompt under a scan: Vidur's arXiv lengths, 8,000 of them, nearly all one-off; blocks of 64 tokens.

    One in 100, chosen at random, begins with a system prompt of 24 blocks. So between two uses of it some 4,400 blocks
    go by that are never asked for again.
    """
    rng, fresh = random.Random(SEED), count()
    system = _take(fresh, 24)
    with (TRACES / "vidur_arxiv_summarization_lengths.csv").open(encoding="utf-8") as file:
        rows = list(islice(csv.DictReader(file), 8_000))
    requests: list[Request] = []
    for row in rows:
        past = system if rng.random() < 0.01 else ()
        prompt = past + _take(fresh, int(row["num_prefill_tokens"]) // 64)
        requests.append(Request(prompt, _take(fresh, int(row["num_decode_tokens"]) // 64)))
    return requests


def _take(fresh: Iterator[int], n: int) -> tuple[int, ...]:
    return tuple(islice(fresh, max(0, n)))


def mooncake_conversation() -> list[Request]:
    """Mooncake's conversations, 30 min: recorded prefixes, one block for each hash id (512 tokens)."""
    return _mooncake("conversation_first30min")


def mooncake_synthetic() -> list[Request]:
    """Mooncake's synthetic mix of long documents and chats: recorded prefixes, one block for each hash id."""
    return _mooncake("synthetic")


def _mooncake(name: str) -> list[Request]:
    """The blocks of an answer are new ones: the rows do not say which a later prompt repeats."""
    rows = [json.loads(line) for line in (TRACES / f"mooncake_{name}.jsonl").read_text("utf-8").splitlines()]
    fresh = count(1 + max(max(row["hash_ids"]) for row in rows))
    return [Request(tuple(row["hash_ids"]), _take(fresh, row["output_length"] // 512)) for row in rows]


def language_clients() -> list[Request]:
    """ServeGen's language clients, 30,000 requests, half of which go on with a chat; blocks of 16 tokens.

    Clients are drawn by their rates, with lengths from their histograms. Half of a client's shortest prompt is its own
    template. One that goes on does so with one of its client's last 64 chats, the k-th latest 1/k as often as the
    latest. A chat is left after 8 turns.
    """
    return _clients("language_m-small", 30_000, 0.5)


def reasoning_clients() -> list[Request]:
    """ServeGen's reasoning clients, 4,000 requests, three in ten of which go on with a chat; else as language ones."""
    return _clients("reason_deepseek-r1", 4_000, 0.3)


ALL: dict[str, Callable[[], list[Request]]] = {
    "mooncake conversation": mooncake_conversation,
    "mooncake synthetic": mooncake_synthetic,
    "azure chat": chat,
    "azure code": code,
    "servegen language": language_clients,
    "servegen reasoning": reasoning_clients,
    "hot prompt in a scan": hot_prompt,
}
"""Name -> the trace. The docstrings say what was recorded and what was made up."""
