"""Leases, pool and index against a naive model: lists, linear searches, and cells that know their whole past."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from octavo.core.hashing import HASHES, KeyChain, root_key
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import PrefixIndex
from tests.core.replica import one_bit

Prefix = tuple[int, ...]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@dataclass(eq=False)
class Sequence:
    """A lease, and what it should hold."""

    lease: Lease
    chain: KeyChain
    tokens: list[int] = field(default_factory=list)


class LeaseMachine(RuleBasedStateMachine):
    """The order of eviction, every count and every table are predicted; only block ids are not."""

    sequences = Bundle("sequences")

    @initialize(num_blocks=st.integers(1, 12), size=st.sampled_from([1, 2, 4]), collide=st.booleans())
    def start(self, num_blocks: int, size: int, collide: bool) -> None:
        self.pool, self.index, self.size = BlockPool(num_blocks), PrefixIndex(), size
        self.digest = one_bit if collide else HASHES["sha256"]
        self.collide = collide
        self.live: list[Sequence] = []
        self.memory: dict[tuple[int, int], Prefix] = {}
        self.published: dict[Prefix, int] = {}
        self.queue: list[int] = []

    # ---- moves ----

    @rule(target=sequences, tokens=TOKENS, again=st.booleans())
    def open(self, tokens: list[int], again: bool) -> Sequence:
        """A sequence that starts on what is cached of `tokens`, and computes the last cached token `again` or not."""
        chain = KeyChain(self.digest, root_key(self.digest, b"", b""), self.size)
        chain.extend(tokens)
        before = self._state()
        hit = self.index.match(chain)
        assert self._state() == before
        num_cached = len(hit) * self.size
        self._check_hit(tokens, [entry.block for entry in hit])
        num_slots = num_cached - (again and num_cached > 0)
        lease = Lease.on_hit(self.pool, self.index, self.size, hit, num_slots)
        self.queue = [block for block in self.queue if block not in lease.table]
        sequence = Sequence(lease, chain, tokens[:num_slots])
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
            for slot in range(self.size):
                self.memory[copy.target, slot] = self.memory.get((copy.source, slot), ())
        for position, token in enumerate(tokens, start):
            sequence.tokens.append(token)
            place = lease.table[position // self.size], position % self.size
            self.memory[place] = tuple(sequence.tokens)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        if sequence not in self.live:
            return sequence
        before = self._free()
        twin = Sequence(sequence.lease.fork(), sequence.chain.fork(), list(sequence.tokens))
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
        for end in range(self.size, len(sequence.tokens) + 1, self.size):
            block = sequence.lease.table[end // self.size - 1]
            self.published.setdefault(tuple(sequence.tokens[:end]), block)

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        if sequence not in self.live:
            return
        self.live.remove(sequence)
        for block in reversed(sequence.lease.table):
            held = any(block in other.lease.table for other in self.live)
            if not held and block in self.published.values():
                self.queue.append(block)
        sequence.lease.release()
        free = self._free()
        sequence.lease.release()
        assert self._free() == free and sequence.lease.table == ()

    # ---- laws ----

    @invariant()
    def tables_spell_the_tokens(self) -> None:
        for sequence in getattr(self, "live", ()):
            assert sequence.lease.num_slots == len(sequence.tokens)
            assert len(sequence.lease.table) in self._table_lens(sequence)
            for position in range(len(sequence.tokens)):
                place = sequence.lease.table[position // self.size], position % self.size
                assert self.memory[place] == tuple(sequence.tokens[: position + 1])

    @invariant()
    def counts_are_holders(self) -> None:
        if hasattr(self, "live"):
            holders = Counter(block for sequence in self.live for block in sequence.lease.table)
            assert self.pool.refs == [holders[block] for block in range(self.pool.num_blocks)]
            assert self.pool.num_leased == len(holders)
            assert self.pool.num_blank + self.pool.num_cached + self.pool.num_leased == self.pool.num_blocks

    @invariant()
    def eviction_goes_as_predicted(self) -> None:
        if hasattr(self, "live") and not self.collide:
            assert list(self.pool.cached()) == self.queue
            assert {entry.block for entry in self.index.entries()} == set(self.published.values())

    def teardown(self) -> None:
        for sequence in getattr(self, "live", ()):
            sequence.lease.release()
        if hasattr(self, "pool"):
            assert self.pool.num_leased == 0

    # ---- the model ----

    def _check_hit(self, tokens: list[int], blocks: list[int]) -> None:
        """Whatever the hash, what is hit holds these very tokens; with a good one, all that could be hit is."""
        for logical, block in enumerate(blocks):
            assert self.memory[block, self.size - 1] == tuple(tokens[: (logical + 1) * self.size])
        longest = 0
        while tuple(tokens[: (longest + 1) * self.size]) in self.published and (longest + 1) * self.size <= len(tokens):
            longest += 1
        assert self.collide or len(blocks) == longest

    def _table_lens(self, sequence: Sequence) -> tuple[int, ...]:
        """Just enough blocks; with one-token blocks, one more where a hit's last token is to be computed again."""
        enough = -(-len(sequence.tokens) // self.size)
        return (enough, enough + 1) if self.size == 1 else (enough,)

    def _num_missing(self, sequence: Sequence, n: int) -> int:
        start, table = len(sequence.tokens), sequence.lease.table
        needed = -(-(start + n) // self.size) - len(table)
        if start // self.size == len(table):
            return needed
        tail = table[start // self.size]
        shared = sum(tail in other.lease.table for other in self.live) > 1
        return needed + (shared or self.index.holds(tail))

    def _num_given_back(self, copies: tuple) -> int:
        return sum(not self.pool.refs[copy.source] for copy in copies)

    def _forget_taken(self, taken: set[int], copies: tuple) -> None:
        """Whoever takes a block gets a blank one while there is any, else the one that was freed first."""
        order = [block for block in self.queue if block in taken]
        assert self.collide or order == self.queue[: len(order)]
        self.queue = [block for block in self.queue if block not in taken]
        self.queue += [copy.source for copy in copies if not self.pool.refs[copy.source]]
        self.published = {prefix: block for prefix, block in self.published.items() if block not in taken}

    def _correct_chain(self, sequence: Sequence) -> None:
        """A chain hashes the tokens that were planned; only those that were written may be published."""
        sequence.chain = KeyChain(self.digest, root_key(self.digest, b"", b""), self.size)
        sequence.chain.extend(sequence.tokens)

    def _free(self) -> tuple[int, int]:
        return self.pool.num_blank, self.pool.num_cached

    def _state(self) -> object:
        entries = frozenset((entry.key, entry.block) for entry in self.index.entries())
        return list(self.pool.refs), self.pool.blank(), self.pool.cached(), entries


TestLeases = LeaseMachine.TestCase
