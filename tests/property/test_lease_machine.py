"""Leases, pool and index against a naive model: lists, linear searches, and cells that know their whole past."""

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, BlockHash, KeyChain, new_chain
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.types import NO_BLOCK
from tests.core.replica import one_bit

Prefix = tuple[int, ...]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


WINDOWS = st.lists(st.one_of(st.none(), st.integers(1, 8)), min_size=1, max_size=3).map(tuple)


@dataclass(eq=False)
class Sequence:
    """A lease, and what it should hold."""

    lease: Lease
    chain: KeyChain
    tokens: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    """Of each group, the first block that was not given back."""
    num_published: int = 0
    """Blocks that it hit or published. One that stayed its own, as others had the same, stays so without theirs."""


class LeaseMachine(RuleBasedStateMachine):
    """The order of eviction, every count and every table are predicted; only block ids are not."""

    sequences = Bundle("sequences")

    @initialize(num_blocks=st.integers(1, 12), size=st.sampled_from([1, 2, 4]), collide=st.booleans(), windows=WINDOWS)
    def start(self, num_blocks: int, size: int, collide: bool, windows: tuple[int | None, ...]) -> None:
        self.size, self.groups = size, KvGroups(size, windows)
        self.pool, self.index = BlockPool(num_blocks * len(windows)), PrefixIndex(self.groups)
        self.block_hash = BlockHash(one_bit) if collide else HASHES["sha256"]
        self.collide = collide
        self.live: list[Sequence] = []
        self.memory: dict[tuple[int, int], tuple[int, Prefix]] = {}
        self.published: dict[tuple[Prefix, int], int] = {}
        self.queue: list[int] = []

    # ---- moves ----

    @rule(target=sequences, tokens=TOKENS, again=st.booleans())
    def open(self, tokens: list[int], again: bool) -> Sequence:
        """A sequence that starts on what is cached of `tokens`, and computes the last cached token `again` or not."""
        chain = new_chain(self.block_hash, self.size)
        chain.extend(tokens)
        before = self._state()
        hit = self.index.match(chain)
        assert self._state() == before
        num_cached = len(hit) * self.size
        num_slots = num_cached - (again and num_cached > 0)
        first = [self.groups.first_read(window, num_slots) for window in self.groups.windows]
        self._check_hit(tokens, hit)
        lease = Lease.on_hit(self.pool, self.index, self.groups, hit, num_slots)
        self.queue = [block for block in self.queue if block not in lease.table]
        sequence = Sequence(lease, chain, tokens[:num_slots], first, len(hit))
        self.live.append(sequence)
        return sequence

    @rule(sequence=sequences, tokens=TOKENS)
    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        lease = sequence.lease
        if sequence not in self.live:
            return
        start, before = len(sequence.tokens), self._state()
        num_missing = self._num_missing(sequence, len(tokens))
        assert lease.num_missing(len(tokens)) == num_missing
        num_free, table = self.pool.num_free, lease.table
        copies = lease.append_slots(len(tokens))
        if num_missing > num_free:
            assert copies is None and self._state() == before
            return
        assert copies is not None and self.pool.num_free == num_free - num_missing + self._num_given_back(copies)
        assert (lease.table is table) == (num_missing == 0)
        self._forget_taken(set(lease.table) - set(table), copies)
        for copy in copies:
            sequence.num_published = min(sequence.num_published, start // self.size)
            for slot in range(self.size):
                self.memory[copy.target, slot] = self.memory.get((copy.source, slot), (0, ()))
        for position, token in enumerate(tokens, start):
            sequence.tokens.append(token)
            for group, blocks in enumerate(self._tables(sequence)):
                place = blocks[position // self.size], position % self.size
                self.memory[place] = group, tuple(sequence.tokens)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        if sequence not in self.live:
            return sequence
        before = self._free()
        twin = replace(
            sequence,
            lease=sequence.lease.fork(),
            chain=sequence.chain.fork(),
            tokens=list(sequence.tokens),
            first=list(sequence.first),
        )
        assert twin.lease.table == sequence.lease.table
        assert self._free() == before
        self.live.append(twin)
        return twin

    @rule(sequence=sequences)
    def publish(self, sequence: Sequence) -> None:
        if sequence not in self.live:
            return
        self._correct_chain(sequence)
        sequence.lease.publish(sequence.chain, len(sequence.tokens))
        for end in range((sequence.num_published + 1) * self.size, len(sequence.tokens) + 1, self.size):
            sequence.num_published += 1
            for group, blocks in enumerate(self._tables(sequence)):
                if blocks[end // self.size - 1] != NO_BLOCK:
                    self.published.setdefault((tuple(sequence.tokens[:end]), group), blocks[end // self.size - 1])

    @rule(sequence=sequences)
    def slide(self, sequence: Sequence) -> None:
        """What no later token reads is given back, and stays cached where it was published."""
        if sequence not in self.live:
            return
        self.publish(sequence)
        tables = self._tables(sequence)
        sequence.lease.slide(len(sequence.tokens))
        for group, window in enumerate(self.groups.windows):
            due = self.groups.first_read(window, len(sequence.tokens))
            for block in tables[group][sequence.first[group] : due]:
                self._expect_free(block)
            sequence.first[group] = max(due, sequence.first[group])

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        if sequence not in self.live:
            return
        self.live.remove(sequence)
        blocks = [block for column in zip(*self._tables(sequence), strict=True) for block in reversed(column)]
        sequence.lease.release()
        for block in reversed(blocks):
            if block != NO_BLOCK:
                self._expect_free(block)
        free = self._free()
        sequence.lease.release()
        assert self._free() == free and sequence.lease.table == ()

    # ---- laws ----

    @invariant()
    def tables_spell_the_tokens(self) -> None:
        for sequence in getattr(self, "live", ()):
            assert sequence.lease.num_slots == len(sequence.tokens)
            for group, blocks in enumerate(self._tables(sequence)):
                first = sequence.first[group]
                assert len(blocks) in self._table_lens(sequence)
                assert all((block == NO_BLOCK) == (i < first) for i, block in enumerate(blocks))
                for position in range(first * self.size, len(sequence.tokens)):
                    place = blocks[position // self.size], position % self.size
                    assert self.memory[place] == (group, tuple(sequence.tokens[: position + 1]))

    @invariant()
    def counts_are_holders(self) -> None:
        if hasattr(self, "live"):
            holders = Counter(block for sequence in self.live for block in self._held(sequence))
            assert self.pool.refs == [holders[block] for block in range(self.pool.num_blocks)]
            assert self.pool.num_leased == len(holders)
            assert self.pool.num_blank + self.pool.num_cached + self.pool.num_leased == self.pool.num_blocks
            assert all(sequence.lease.num_blocks == len(self._held(sequence)) for sequence in self.live)

    @invariant()
    def eviction_goes_as_predicted(self) -> None:
        if hasattr(self, "live") and not self.collide:
            assert list(self.pool.cached()) == self.queue
            findable = [block for entry in self.index.entries() for block in entry.blocks if block != NO_BLOCK]
            assert sorted(findable) == sorted(self.published.values())

    def teardown(self) -> None:
        for sequence in getattr(self, "live", ()):
            sequence.lease.release()
        if hasattr(self, "pool"):
            assert self.pool.num_leased == 0

    # ---- the model ----

    def _tables(self, sequence: Sequence) -> list[tuple[int, ...]]:
        table, num_groups = sequence.lease.table, self.groups.num_groups
        table_len = len(table) // num_groups
        return [table[group * table_len : (group + 1) * table_len] for group in range(num_groups)]

    def _held(self, sequence: Sequence) -> list[int]:
        return [block for block in sequence.lease.table if block != NO_BLOCK]

    def _check_hit(self, tokens: list[int], hit: tuple[CachedBlock, ...]) -> None:
        """Whatever the hash, what is hit holds these very tokens; with a good one, all that could be hit is."""
        for group, logical in self._needed(len(hit)):
            prefix = tuple(tokens[: (logical + 1) * self.size])
            assert self.memory[hit[logical].blocks[group], self.size - 1] == (group, prefix)
        longest = 0
        for length in range(len(tokens) // self.size + 1):
            ends = [(tuple(tokens[: (i + 1) * self.size]), group) for group, i in self._needed(length)]
            if all(end in self.published for end in ends):
                longest = length
        assert self.collide or len(hit) == longest

    def _needed(self, length: int) -> list[tuple[int, int]]:
        """(group, block) of all that a hit of so many blocks needs: with a window, of its last tokens only."""
        pairs: list[tuple[int, int]] = []
        for group, window in enumerate(self.groups.windows):
            first = 0 if window is None else max(0, length * self.size - window) // self.size
            pairs += [(group, logical) for logical in range(first, length)]
        return pairs

    def _table_lens(self, sequence: Sequence) -> tuple[int, ...]:
        """Just enough blocks; with one-token blocks, one more where a hit's last token is to be computed again."""
        enough = -(-len(sequence.tokens) // self.size)
        return (enough, enough + 1) if self.size == 1 else (enough,)

    def _num_missing(self, sequence: Sequence, n: int) -> int:
        start, missing = len(sequence.tokens), 0
        for table in self._tables(sequence):
            missing += max(0, -(-(start + n) // self.size) - len(table))
            if start // self.size < len(table):
                tail = table[start // self.size]
                shared = sum(tail in other.lease.table for other in self.live) > 1
                missing += shared or self.index.holds(tail)
        return missing

    def _expect_free(self, block: int) -> None:
        """A holder gave it back: it is cached if nobody else holds it and it can be hit."""
        if not any(block in other.lease.table for other in self.live) and block in self.published.values():
            self.queue.append(block)

    def _num_given_back(self, copies: tuple) -> int:
        return sum(not self.pool.refs[copy.source] for copy in copies)

    def _forget_taken(self, taken: set[int], copies: tuple) -> None:
        """Whoever takes a block gets a blank one while there is any, else the one that was freed first.

        A copied block is free, and last in the queue, before the next one is taken.
        """
        freed = [copy.source for copy in copies if not self.pool.refs[copy.source]]
        order = [block for block in (*self.queue, *freed) if block in taken]
        assert self.collide or order == [*self.queue, *freed][: len(order)]
        self.queue = [block for block in (*self.queue, *freed) if block not in taken]
        self.published = {end: block for end, block in self.published.items() if block not in taken}

    def _correct_chain(self, sequence: Sequence) -> None:
        """A chain hashes the tokens that were planned; only those that were written may be published."""
        sequence.chain = new_chain(self.block_hash, self.size)
        sequence.chain.extend(sequence.tokens)

    def _free(self) -> tuple[int, int]:
        return self.pool.num_blank, self.pool.num_cached

    def _state(self) -> object:
        entries = frozenset((entry.key, *entry.blocks) for entry in self.index.entries())
        return list(self.pool.refs), self.pool.blank(), self.pool.cached(), entries


TestLeases = LeaseMachine.TestCase
