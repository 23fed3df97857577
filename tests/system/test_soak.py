"""A soak: thousands of random requests on the real model, in pools far too small, against the same ones alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from octavo.core.audit import audit
from octavo.core.events import Admitted, Drafted, Event, Finished, Generated, Preempted, Refused, Tiered
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.core.types import FinishReason, RequestId
from octavo.engine.loop import EngineLoop, Order, Replica, Withdraw
from tests.engine.script import play
from tests.system.replicas import opened

MOST_AT_ONCE = 24
AUDIT_EVERY = 50

Answer = dict[int, list[int]]
"""Choice -> token ids."""


def variants(rng: random.Random, count: int) -> list[Request]:
    """Different requests that share beginnings: prompts, forms of drawing, lengths, ranks, tenants."""
    stems = [tuple(rng.randrange(100, 40_000) for _ in range(length)) for length in (12, 33, 60)]
    return [_variant(rng, number, rng.choice(stems)) for number in range(count)]


def _variant(rng: random.Random, number: int, stem: tuple[int, ...]) -> Request:
    beams = rng.random() < 0.1
    n = rng.choice([1, 1, 1, 1, 2, 3])
    params = SamplingParams(
        n=n,
        temperature=0.0 if beams else rng.choice([0.0, 0.8]),
        max_tokens=rng.randint(1, 10),
        use_beam_search=beams,
        best_of=max(n, 3) if beams else None,
        repetition_penalty=1.0 if beams else rng.choice([1.0, 1.0, 1.1]),
        ignore_eos=rng.random() < 0.5,
    )
    tail = tuple(rng.randrange(100, 40_000) for _ in range(rng.randint(1, 20)))
    tenant = rng.choice(["", "red", "blue"])
    return Request(
        request_id=f"v{number}",
        prompt=stem[: rng.randint(1, len(stem))] + tail,
        params=params,
        seed=number,
        priority=rng.randint(0, 2),
        namespace=tenant.encode(),
        tenant=tenant,
    )


@dataclass
class Crowd:
    """A port that sends random variants, withdraws some of them, and takes down what comes back."""

    rng: random.Random
    kinds: Sequence[Request]
    expected: dict[RequestId, Answer]
    num_requests: int
    replica: Replica
    live: dict[RequestId, Request] = field(default_factory=dict)
    answers: dict[RequestId, Answer] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    turns: int = 0

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        self.turns += 1
        if self.turns % AUDIT_EVERY == 0 or idle:
            assert audit(self.replica.scheduler) == ()
        if self.sent == self.num_requests:
            return None if idle else ()
        if not idle and self.rng.random() < 0.5:
            return ()
        orders: list[Order] = [self._new() for _ in range(self.rng.randint(0, 6)) if self._has_room]
        if self.live and self.rng.random() < 0.1:
            orders.append(Withdraw(self.rng.choice(list(self.live))))
        return orders

    @property
    def _has_room(self) -> bool:
        return len(self.live) < MOST_AT_ONCE and self.sent < self.num_requests

    def _new(self) -> Request:
        kind = self.rng.choice(self.kinds)
        request = replace(kind, request_id=f"{kind.request_id}-{self.sent}")
        self.sent += 1
        self.live[request.request_id] = request
        self.answers[request.request_id] = {}
        return request

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            name = type(event).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            if isinstance(event, Generated):
                mine = self.answers[event.request_id].setdefault(event.choice, [])
                mine.extend(token.token for token in event.tokens)
            elif isinstance(event, Finished):
                self._check(event)
        for name in [name for name in self.live if name not in self.replica.scheduler.roster.requests]:
            if any(getattr(event, "request_id", None) == name for event in events):
                del self.live[name], self.answers[name]

    def _check(self, event: Finished) -> None:
        """Whole where it ended by itself; where it was withdrawn, what came is how the whole begins."""
        assert event.reason is not FinishReason.ERROR, event
        got = self.answers[event.request_id].get(event.choice, [])
        due = self.expected[event.request_id.split("-")[0]].get(event.choice, [])
        cut = event.reason is FinishReason.ABORT
        assert got == (due[: len(got)] if cut else due), event


def alone(model: Path, kinds: Sequence[Request]) -> dict[RequestId, Answer]:
    found: dict[RequestId, Answer] = {}
    with opened(model, max_model_len=256, enable_prefix_caching=False) as built:
        for kind in kinds:
            answer: Answer = {}
            for event in play(built, [kind]).events:
                assert not isinstance(event, Refused), event
                if isinstance(event, Generated):
                    answer.setdefault(event.choice, []).extend(token.token for token in event.tokens)
            found[kind.request_id] = answer
    return found


POOLS = {
    "v1": {"block_manager": "v1", "scheduling_policy": "priority", "eviction_policy": "lru"},
    "tier": {"block_manager": "v1", "scheduling_policy": "fair", "kv_offload_bytes": 20_000_000},
    "v2": {"block_manager": "v2", "scheduling_policy": "fcfs", "speculative_config": {"num_speculative_tokens": 3}},
}


def soak(model: Path, num_requests: int, num_kinds: int, **options: object) -> Crowd:
    rng = random.Random(11)
    kinds = variants(rng, num_kinds)
    expected = alone(model, kinds)
    small = {"num_blocks": 30, "max_model_len": 120, "max_num_seqs": 12, "max_num_batched_tokens": 64}
    with opened(model, **small, **options) as built:
        crowd = Crowd(rng, kinds, expected, num_requests, built)
        EngineLoop(built).run(crowd)
        load = built.scheduler.load()
        assert (load.blocks_leased, load.num_running, load.num_waiting, crowd.live) == (0, 0, 0, {})
        assert load.blocks_blank + load.blocks_cached == small["num_blocks"]
        assert audit(built.scheduler) == ()
    assert crowd.counts[Admitted.__name__] >= num_requests * 0.8
    return crowd


def check_kind(kind: str, crowd: Crowd) -> None:
    """The greedy one runs out of blocks time and again; the one that reserves them hardly ever does."""
    share = crowd.counts.get(Preempted.__name__, 0) / crowd.num_requests
    assert kind != "v1" or share > 0.02
    assert kind != "v2" or share < 0.02
    assert (crowd.counts.get(Tiered.__name__, 0) > 0) == (kind == "tier")


@pytest.mark.parametrize("kind", POOLS)
def test_a_short_soak(default_model: Path, kind: str):
    check_kind(kind, soak(default_model, 60, num_kinds=20, **POOLS[kind]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", POOLS)
def test_ten_thousand_requests(default_model: Path, kind: str):
    crowd = soak(default_model, 10_000, num_kinds=80, **POOLS[kind])
    check_kind(kind, crowd)
    assert kind != "v2" or crowd.counts[Drafted.__name__] > 0
