"""Each eviction policy beside a naive model of it, under the traffic of real leases: equal after every move."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.eviction import EVICTIONS, Adaptive, Eviction, Gdsf, S3Fifo
from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, new_chain
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex

GROUPS = KvGroups(block_size=1)


class Model:
    """The cached blocks as a list in order of release. Slow, and by the words of the policy's definition."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.cached: list[tuple[int, CachedBlock]] = []
        self.ghosts: list[tuple[bytes, int]] = []
        self.tick = 0

    def add(self, block: int, entry: CachedBlock) -> None:
        self.tick += 1
        self.released(entry)
        self.cached.append((block, entry))

    def hit(self, block: int, key: bytes) -> None:
        self.cached = [pair for pair in self.cached if pair[0] != block]
        self.was_hit(key)

    def pop(self) -> int:
        block, entry = self.victim()
        self.cached.remove((block, entry))
        self.evicted(entry)
        self.forget(entry.key)
        return block

    def drop(self, block: int) -> None:
        ((_, entry),) = [pair for pair in self.cached if pair[0] == block]
        self.cached.remove((block, entry))
        self.forget(entry.key)

    def order(self) -> Iterator[int]:
        twin = deepcopy(self)
        while twin.cached:
            yield twin.pop()

    def leaves(self) -> list[tuple[int, CachedBlock]]:
        parents = [entry.parent for _, entry in self.cached]
        return [(block, entry) for block, entry in self.cached if entry not in parents]

    def haunt(self, key: bytes, kind: int) -> None:
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != key] + [(key, kind)]
        self.ghosts = self.ghosts[-self.num_blocks :]

    def victim(self) -> tuple[int, CachedBlock]:
        return self.cached[0]

    def released(self, entry: CachedBlock) -> None: ...
    def was_hit(self, key: bytes) -> None: ...
    def evicted(self, entry: CachedBlock) -> None: ...
    def forget(self, key: bytes) -> None: ...


class FifoModel(Model):
    """Leaves by when their content was first released."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.born: dict[bytes, int] = {}

    def released(self, entry: CachedBlock) -> None:
        self.born.setdefault(entry.key, self.tick)

    def victim(self) -> tuple[int, CachedBlock]:
        return min(self.leaves(), key=lambda pair: self.born[pair[1].key])

    def forget(self, key: bytes) -> None:
        del self.born[key]


class GdsfModel(Model):
    """Leaves by age at their last release + (1 + hits) x cost."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.hits: dict[bytes, int] = {}
        self.value: dict[bytes, float] = {}
        self.age = 0.0

    def released(self, entry: CachedBlock) -> None:
        self.value[entry.key] = self.age + (1 + self.hits.get(entry.key, 0)) * (1 + entry.position / Gdsf.FAR)

    def was_hit(self, key: bytes) -> None:
        self.hits[key] = self.hits.get(key, 0) + 1

    def victim(self) -> tuple[int, CachedBlock]:
        return min(self.leaves(), key=lambda pair: self.value[pair[1].key])

    def evicted(self, entry: CachedBlock) -> None:
        self.age = max(self.age, self.value[entry.key])

    def forget(self, key: bytes) -> None:
        self.hits.pop(key, None)


@dataclass
class Life:
    born: int
    is_main: bool = False
    hits: int = 0


class S3FifoModel(Model):
    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.lives: dict[bytes, Life] = {}

    def released(self, entry: CachedBlock) -> None:
        life = self.lives.setdefault(entry.key, Life(0))
        if not life.born:
            life.born = self.tick
            life.is_main = entry.key in [key for key, _ in self.ghosts]
            self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != entry.key]

    def was_hit(self, key: bytes) -> None:
        life = self.lives.setdefault(key, Life(0))
        life.hits = min(S3Fifo.MOST_HITS, life.hits + 1)

    def victim(self) -> tuple[int, CachedBlock]:
        while True:
            num_small = sum(not self.lives[entry.key].is_main for _, entry in self.cached)
            leaves = sorted(self.leaves(), key=lambda pair: self.lives[pair[1].key].born)
            small = [pair for pair in leaves if not self.lives[pair[1].key].is_main]
            main = [pair for pair in leaves if self.lives[pair[1].key].is_main]
            first = (small if small and (num_small >= self.num_blocks / 10 or not main) else main)[0]
            life = self.lives[first[1].key]
            if not life.hits:
                return first
            self.tick += 1
            life.born, life.hits, life.is_main = self.tick, life.hits - 1 if life.is_main else 0, True

    def evicted(self, entry: CachedBlock) -> None:
        if not self.lives[entry.key].is_main:
            self.haunt(entry.key, 0)

    def forget(self, key: bytes) -> None:
        del self.lives[key]


class AdaptiveModel(Model):
    """The one of the highest age, where the age of a reused one is divided by 2 ** bias."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.reused: set[bytes] = set()
        self.when: dict[bytes, int] = {}
        self.bias = Adaptive.LOWEST

    def released(self, entry: CachedBlock) -> None:
        self.when[entry.key] = self.tick
        kinds = [kind for key, kind in self.ghosts if key == entry.key]
        if kinds:
            counts = [sum(kind == wanted for _, kind in self.ghosts) for wanted in (0, 1)]
            step = Adaptive.SPEED / self.num_blocks * max(1.0, counts[1 - kinds[0]] / counts[kinds[0]])
            self.bias = min(Adaptive.HIGHEST, max(Adaptive.LOWEST, self.bias + (step if kinds[0] else -step)))
            self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != entry.key]
            self.reused.add(entry.key)

    def was_hit(self, key: bytes) -> None:
        self.reused.add(key)

    def victim(self) -> tuple[int, CachedBlock]:
        def age(pair: tuple[int, CachedBlock]) -> tuple[float, bool]:
            key = pair[1].key
            age = float(self.tick + 1 - self.when[key])
            return (age / 2.0 ** max(0.0, self.bias), False) if key in self.reused else (age, True)

        return max(self.cached, key=age)

    def evicted(self, entry: CachedBlock) -> None:
        self.haunt(entry.key, int(entry.key in self.reused))

    def forget(self, key: bytes) -> None:
        self.reused.discard(key)


MODELS = {"adaptive": AdaptiveModel, "lru": Model, "fifo": FifoModel, "s3fifo": S3FifoModel, "gdsf": GdsfModel}


class Beside:
    """A policy that does what its model does, or fails."""

    def __init__(self, policy: Eviction, model: Model) -> None:
        self.policy, self.model = policy, model
        self.victims: list[tuple[CachedBlock, list[CachedBlock]]] = []
        """Who went, and who stayed."""

    def __len__(self) -> int:
        return len(self.policy)

    def __iter__(self) -> Iterator[int]:
        return iter(self.policy)

    def add(self, block: int, entry: CachedBlock) -> None:
        self.policy.add(block, entry)
        self.model.add(block, entry)
        self.check()

    def hit(self, block: int, key: bytes) -> None:
        self.policy.hit(block, key)
        self.model.hit(block, key)
        self.check()

    def pop(self) -> int:
        before = dict(self.model.cached)
        block = self.policy.pop()
        assert block == self.model.pop()
        self.victims.append((before[block], [entry for _, entry in self.model.cached]))
        self.check()
        return block

    def drop(self, block: int) -> None:
        self.policy.drop(block)
        self.model.drop(block)
        self.check()

    def check(self) -> None:
        order = list(self.policy)
        assert order == list(self.model.order())
        assert len(self.policy) == len(order) == len(set(order))


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
ASK = st.tuples(st.just("ask"), TOKENS)
BLIND = st.tuples(st.just("blind"), TOKENS)
END = st.tuples(st.just("end"), st.integers(0, 3))
DROP = st.tuples(st.just("drop"), st.integers(0, 3))
MOVES = st.lists(st.one_of(ASK, ASK, END, END, END), min_size=30, max_size=60)
WILD_MOVES = st.lists(st.one_of(ASK, BLIND, END, END, DROP), min_size=30, max_size=60)
"""Blocks that are computed twice, and such that are dropped out of turn: then there may be tails without heads."""


class Traffic:
    """Leases that come and go on a small pool; a blind one computes what is cached already, as for prompt logprobs."""

    def __init__(self, name: str, num_blocks: int) -> None:
        def new_eviction(num_blocks: int) -> Beside:
            self.beside = Beside(EVICTIONS[name](num_blocks), MODELS[name](num_blocks))
            return self.beside

        self.pool, self.index = BlockPool(num_blocks, new_eviction), PrefixIndex(GROUPS)
        self.live: list[Lease] = []

    def move(self, what: str, how: list[int] | int) -> None:
        if isinstance(how, list):
            self.ask(how, blind=what == "blind")
        elif what == "end" and self.live:
            self.live.pop(how % len(self.live)).release()
        elif what == "drop" and self.pool.num_cached:
            block = self.pool.cached()[how % self.pool.num_cached]
            self.pool.drop(block)
            self.index.forget(block)

    def ask(self, tokens: list[int], blind: bool) -> None:
        chain = new_chain(HASHES["sha256"], 1)
        chain.extend(tokens)
        hit = () if blind else self.index.match(chain)
        lease = Lease.on_hit(self.pool, self.index, GROUPS, hit, len(hit))
        if lease.append_slots(len(tokens) - len(hit)) is None:
            lease.release()
            return
        lease.publish(chain, len(tokens))
        self.live.append(lease)

    def check(self) -> None:
        cached = [
            block for block in range(self.pool.num_blocks) if self.index.holds(block) and not self.pool.refs[block]
        ]
        assert sorted(self.pool.cached()) == cached
        assert self.pool.num_blank + self.pool.num_cached + self.pool.num_leased == self.pool.num_blocks
        assert len(self.beside.model.ghosts) <= self.pool.num_blocks


def play(name: str, num_blocks: int, moves: list) -> list[tuple[CachedBlock, list[CachedBlock]]]:
    """Checks the policy and the pool after each move; returns who was evicted, each with those who were not."""
    traffic = Traffic(name, num_blocks)
    for what, how in moves:
        traffic.move(what, how)
        traffic.check()
    return traffic.beside.victims


@pytest.mark.parametrize("name", EVICTIONS)
@given(num_blocks=st.integers(2, 8), moves=MOVES)
def test_a_policy_is_its_model_and_takes_tails_before_heads(name: str, num_blocks: int, moves: list) -> None:
    for victim, stayed in play(name, num_blocks, moves):
        assert all(entry.parent is not victim for entry in stayed)


@pytest.mark.parametrize("name", EVICTIONS)
@given(num_blocks=st.integers(2, 8), moves=WILD_MOVES)
def test_and_its_model_it_is_where_blocks_are_computed_twice_or_dropped(
    name: str, num_blocks: int, moves: list
) -> None:
    play(name, num_blocks, moves)


@given(num_blocks=st.integers(2, 8), moves=MOVES, bias=st.floats(0, Adaptive.HIGHEST))
def test_adaptive_is_its_model_wherever_its_bias_begins(num_blocks: int, moves: list, bias: float) -> None:
    with patch.object(Adaptive, "LOWEST", bias):
        for victim, stayed in play("adaptive", num_blocks, moves):
            assert all(entry.parent is not victim for entry in stayed)
