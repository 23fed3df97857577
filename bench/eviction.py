"""What each eviction policy finds in the prefix cache, on traces, beside an optimum that knows the future.

`python -m bench.eviction` prints a table, `--write` makes docs/eviction.md of it. It replays the block accesses of each
trace through the real pool, index and leases: no scheduler, no clock, so every policy and the optimum see the same
requests in the same order. A block of the trace is a block of one token, its id.
"""

import argparse
import sys
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench import traces
from octavo.core.eviction import EVICTIONS, Eviction, Leaves
from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, KeyChain, new_chain
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex

AT_ONCE = 8
"""Requests that hold their blocks at the same time: each ends when so many others have begun after it."""
SHARES = (0.01, 0.03, 0.1, 0.3)
"""Sizes of the pool, as shares of all distinct blocks of a trace."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "eviction.md"


class Belady:
    """Takes the leaf that is asked for again last (Belady 1966): no policy without foresight finds more."""

    def __init__(self, requests: Sequence[traces.Request]) -> None:
        self.now = 0
        """The request that is served now."""
        self._uses: dict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            for block in request.prompt:
                self._uses[block].append(number)
        self._leaves = Leaves()

    def __len__(self) -> int:
        return len(self._leaves)

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def add(self, block: int, entry: CachedBlock) -> None:
        uses = self._uses.get(entry.tokens[0], [])
        later = bisect_right(uses, self.now)
        next_use = uses[later] if later < len(uses) else sys.maxsize
        self._leaves.add(block, entry, (-next_use, 0))

    def hit(self, block: int, key: bytes) -> None:
        self._leaves.remove(block)

    def pop(self) -> int:
        block = self._leaves.first()
        assert block is not None
        self._leaves.remove(block)
        return block

    def drop(self, block: int) -> None:
        self._leaves.remove(block)


class Replay:
    """One trace through one pool."""

    def __init__(self, requests: Sequence[traces.Request], chains: Sequence[KeyChain]) -> None:
        self.requests, self.chains = requests, chains

    def hit_rate(self, num_blocks: int, eviction: Eviction) -> float:
        """The share of all prompt blocks that were found."""
        self.pool, self.index = BlockPool(num_blocks, lambda _: eviction), PrefixIndex(GROUPS)
        self.live: deque[tuple[int, Lease]] = deque()
        num_hit = 0
        for number in range(len(self.requests)):
            if isinstance(eviction, Belady):
                eviction.now = number
            num_hit += self.begin(number)
            if len(self.live) == AT_ONCE:
                self.end()
        return num_hit / sum(len(request.prompt) for request in self.requests)

    def begin(self, number: int) -> int:
        """Computes a prompt on top of what is cached of it."""
        num_tokens, chain = len(self.requests[number].prompt), self.chains[number]
        hit = self.index.match(chain, num_tokens)
        lease = Lease.on_hit(self.pool, self.index, GROUPS, hit, len(hit))
        while lease.append_slots(num_tokens - len(hit)) is None:
            self.end()
        lease.publish(chain, num_tokens)
        self.live.append((number, lease))
        return len(hit)

    def end(self) -> None:
        """The oldest one has its answer: as much of it as there are blocks for."""
        number, lease = self.live.popleft()
        request = self.requests[number]
        num_tokens = min(len(request.output), self.pool.num_free)
        lease.append_slots(num_tokens)
        lease.publish(self.chains[number], len(request.prompt) + num_tokens)
        lease.release()


GROUPS = KvGroups(block_size=1)


def chain_of(request: traces.Request) -> KeyChain:
    chain = new_chain(HASHES["blake2b"], 1)
    chain.extend(request.prompt + request.output)
    return chain


@dataclass(frozen=True)
class Row:
    trace: str
    num_requests: int
    num_blocks: int
    share: float
    """Of all distinct blocks of the trace."""
    hit_rates: dict[str, float]
    """By policy, in percent."""


def measure(name: str) -> Iterator[Row]:
    requests = traces.ALL[name]()
    replay = Replay(requests, [chain_of(request) for request in requests])
    num_distinct = len({block for request in requests for block in request.prompt + request.output})
    longest = max(len(request.prompt + request.output) for request in requests)
    for num_blocks in sorted({max(4 * longest, int(num_distinct * share)) for share in SHARES}):
        policies = {policy: new(num_blocks) for policy, new in EVICTIONS.items()} | {"optimum": Belady(requests)}
        rates = {policy: 100 * replay.hit_rate(num_blocks, eviction) for policy, eviction in policies.items()}
        yield Row(name, len(requests), num_blocks, num_blocks / num_distinct, rates)


POLICIES = (*EVICTIONS, "optimum")


def line(row: Row) -> str:
    """Of a Markdown table; the best policy is bold."""
    best = max((f"{row.hit_rates[policy]:.2f}" for policy in EVICTIONS), key=float)
    shown = [f"{row.hit_rates[policy]:.2f}" for policy in POLICIES]
    cells = [f"**{cell}**" if cell == best and POLICIES[i] in EVICTIONS else cell for i, cell in enumerate(shown)]
    return f"| {row.trace} | {row.num_blocks:,} ({row.share:.0%}) | {' | '.join(cells)} |"


def page(rows: Sequence[Row]) -> str:
    table = "\n".join(line(row) for row in rows)
    about = "\n".join(f"- **{name}**: {described(name)}" for name in traces.ALL)
    return TEMPLATE.format(table=table, about=about, verdict=verdict(rows), policies=" | ".join(POLICIES), bars=BARS)


def verdict(rows: Sequence[Row]) -> str:
    """How the default compares with LRU, in numbers."""
    gains = [row.hit_rates["adaptive"] - row.hit_rates["lru"] for row in rows]
    means = [mean(gain for gain, row in zip(gains, rows, strict=True) if row.trace == name) for name in traces.ALL]
    return (
        f"`adaptive` finds more than `lru` in {sum(gain > 0 for gain in gains)} of {len(gains)} rows and less in "
        f"{sum(gain < 0 for gain in gains)}; the difference is between {min(gains):+.3f} and {max(gains):+.3f} points. "
        f"On each trace as a whole (the mean of its rows) it is between {min(means):+.3f} and {max(means):+.3f}."
    )


BARS = "|".join(["---", "---", *("--:" for _ in POLICIES)])


def described(name: str) -> str:
    """What the trace says of itself."""
    return " ".join((traces.ALL[name].__doc__ or "").split())


TEMPLATE = """\
# Eviction, measured

Made by `python -m bench.eviction --write`; do not edit. What the policies are: [cache.md](cache.md#what-is-evicted).

Each cell is the share of all prompt blocks that were found in the prefix cache, in percent; the best policy is bold.
The last column is what a policy that knows all later requests would find (Belady's rule, on the same accesses, tails
before heads). The size of the pool is also given as a share of all distinct blocks of the trace.

| trace | blocks | {policies} |
|{bars}|
{table}

{verdict}

## What was chosen

`adaptive`. It is `lru` until blocks that had been hit are missed after their eviction; and then it has as much more
patience with such blocks as their ghosts ask for, against the ghosts of the others. None of the plain policies is at
least as good as `lru` everywhere. `s3fifo` is far ahead in small pools where most prompts come once, and far behind
where chats go on: their blocks come back once and late, which it is made to distrust. `gdsf` lies between. Why in
detail, and what else was tried: [decisions/core-eviction.md](decisions/core-eviction.md).

## What is replayed

The block accesses go through the real pool, index and leases, {at_once} requests at a time, without a scheduler, so
that every policy sees the same ones in the same order. Blocks of answers take room too. The two Mooncake traces are
recorded prefixes; the other recordings have lengths and times only, and their sessions are made up as said here, with
a fixed seed. Sources and licences are in the README of `../shared/traces`, where the script looks for them
(`OCTAVO_TRACES`).

{about}
""".replace("{at_once}", str(AT_ONCE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/eviction.md")
    parser.add_argument("--trace", action="append", choices=tuple(traces.ALL), help="only these")
    options = parser.parse_args()
    rows: list[Row] = []
    print("trace, blocks:", *POLICIES)
    for name in options.trace or traces.ALL:
        for row in measure(name):
            rows.append(row)
            print(line(row), flush=True)
    if options.write:
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
