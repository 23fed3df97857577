"""Storms over a pool and a tier that are both too small: whatever is swapped, lost or late, the tokens are the same.

The scheduler machine meets a tier now and then; here blocks go up and down in nearly every step.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from octavo.core.request import Request
from octavo.core.types import FinishReason, Limits
from tests.core.replica import Outcome, Replica, alone, request, tier

SHARED = ([1, 0, 1, 1, 0, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1])


class Storm:
    """One replica under random orders. Everything follows from the seed."""

    def __init__(self, seed: int, *, caching: bool) -> None:
        self.random = Random(seed)
        pick = self.random.choice
        self.limits = Limits(
            num_blocks=pick([5, 6, 7, 9]),
            block_size=pick([1, 2, 4]),
            vocab_size=3,
            max_model_len=22,
            max_num_seqs=pick([2, 4]),
            max_num_batched_tokens=pick([2, 3, 256]),
            enable_prefix_caching=caching,
            block_manager="v1",  # greedy, so that blocks run short
            scheduling_policy=pick(["fcfs", "priority"]),
        )
        below = tier(
            pick([1, 3, 20]), self.limits.block_size, num_staged=pick([1, 3, 20]), num_storing=pick([1, 3, 20])
        )
        self.replica = Replica(self.limits, tier=below, watermark=0.0)
        self.requests: dict[str, Request] = {}
        self.cancelled: set[str] = set()

    def run(self, num_moves: int) -> None:
        moves = (self.submit, self.step, self.deliver, self.spoil, self.cancel)
        for move in self.random.choices(moves, weights=(4, 14, 5, 2, 1), k=num_moves):
            move()
        self.replica.run(max_steps=3000)

    def submit(self) -> None:
        shared = self.random.choice(SHARED)
        prompt = shared[: self.random.randint(3, len(shared))] + self.random.choices(
            [0, 1], k=self.random.randint(0, 3)
        )
        name = f"r{len(self.requests)}"
        params = {"max_tokens": self.random.randint(1, 9), "n": self.random.choice([1, 1, 1, 2]), "temperature": 1.0}
        self.requests[name] = request(name, prompt, priority=self.random.randint(0, 1), **params)
        self.replica.submit(self.requests[name])

    def step(self) -> None:
        self.replica.step(deliver=False)

    def deliver(self) -> None:
        self.replica.deliver(self.random.randint(1, 4))

    def spoil(self) -> None:
        if self.replica.shelf.reports:
            self.replica.shelf.spoil(self.random.randrange(len(self.replica.shelf.reports)))

    def cancel(self) -> None:
        if self.requests:
            name = self.random.choice(list(self.requests))
            self.cancelled.add(name)
            self.replica.cancel(name)

    def check(self) -> None:
        for name, one in self.requests.items():
            got, due = self.replica.outcomes[name], self.due(one)
            for choice in range(one.params.n) if got.refused is None else ():
                tokens = got.tokens[choice]
                assert tokens == due.tokens[choice][: len(tokens)]
                if got.finished[choice].reason is not FinishReason.ABORT:
                    assert len(tokens) == one.params.max_tokens
                else:
                    assert name in self.cancelled

    def due(self, one: Request) -> Outcome:
        return alone(one, replace(self.limits, num_blocks=100, max_num_batched_tokens=256))


@pytest.mark.parametrize("caching", [True, False])
def test_each_request_gets_the_tokens_that_it_gets_alone(caching: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        storm = Storm(seed, caching=caching)
        storm.run(150)
        storm.check()
        counts = storm.replica.scheduler.cache.tier.counts
        seen.update({name: getattr(counts, name) for name in counts.__slots__})
        seen["swapped"] += sum(event.tokens_swapped > 0 for event in storm.replica.preemptions())
    assert min(seen[name] for name in ("stores", "loads", "load_failures", "store_failures", "swapped")) > 0, seen
    assert caching or not len(storm.replica.scheduler.cache.index), "blocks of requests that are over can be found"
