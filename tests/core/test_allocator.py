"""Leases and their pool: growth, content, fork, copy-on-write, exhaustion. Every case is a grid over sizes."""

import pytest

from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, KeyChain, new_chain
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import PrefixIndex


class Arena:
    """A pool, an index, and leases on them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool, self.size, self.groups = BlockPool(num_blocks), block_size, KvGroups(block_size)
        self.index = PrefixIndex(self.groups)

    def lease(self, num_slots: int = 0) -> Lease:
        lease = Lease(self.pool, self.index, self.groups)
        if num_slots:
            assert lease.append_slots(num_slots) == ()
        return lease

    def chain(self, tokens: list[int], namespace: bytes = b"") -> KeyChain:
        chain = new_chain(HASHES["sha256"], self.size, namespace, b"model")
        chain.extend(tokens)
        return chain

    def cache(self, tokens: list[int]) -> tuple[int, ...]:
        """Computes, publishes and frees a sequence; returns its blocks."""
        lease = self.lease(len(tokens))
        lease.publish(self.chain(tokens), len(tokens))
        blocks = lease.table
        lease.release()
        return blocks


def blocks_for(num_tokens: int, size: int) -> int:
    return -(-num_tokens // size)


@pytest.mark.parametrize("size", [1, 8, 16])
@pytest.mark.parametrize("prompt_len", [1, 7, 8])
@pytest.mark.parametrize("appended", [1, 8, 129])
@pytest.mark.parametrize("lookahead", [0, 10])
def test_append_takes_exactly_the_blocks_it_needs(size: int, prompt_len: int, appended: int, lookahead: int) -> None:
    arena = Arena(200, size)
    lease = arena.lease(prompt_len + lookahead)
    assert arena.pool.num_leased == blocks_for(prompt_len + lookahead, size)
    before = lease.table
    due = blocks_for(prompt_len + lookahead + appended, size)
    assert lease.num_missing(appended) == due - len(before)
    assert lease.append_slots(appended) == ()
    assert arena.pool.num_leased == len(lease.table) == due
    assert lease.table[: len(before)] == before, "a block table only grows"


@pytest.mark.parametrize("size", [4, 16])
def test_within_a_block_nothing_is_taken_and_the_table_is_the_same_object(size: int) -> None:
    arena = Arena(4, size)
    lease = arena.lease(1)
    table = lease.table
    for _ in range(size - 1):
        assert lease.append_slots(1) == ()
        assert lease.table is table
    lease.append_slots(1)
    assert len(lease.table) == 2


@pytest.mark.parametrize("num_free", [0, 1, 2])
def test_a_failed_append_leaves_everything_as_it_was(num_free: int) -> None:
    arena = Arena(4, 4)
    holder = arena.lease(4 * (3 - num_free)) if num_free < 3 else None
    lease = arena.lease(3)
    state = (arena.pool.blank(), list(arena.pool.refs), lease.table, lease.num_slots)
    assert lease.append_slots(4 * num_free + 2) is None
    assert (arena.pool.blank(), list(arena.pool.refs), lease.table, lease.num_slots) == state
    if holder:
        holder.release()
        assert lease.append_slots(4 * num_free + 2) == ()


def test_a_pool_of_one_block_is_used_to_its_last_slot() -> None:
    arena = Arena(1, 4)
    lease = arena.lease(3)
    assert lease.append_slots(1) == () and lease.append_slots(1) is None
    lease.release()
    assert arena.lease(4).table == (0,)


def test_free_and_take_reuse_blocks_for_ever() -> None:
    arena = Arena(3, 2)
    for _ in range(100):
        lease = arena.lease(6)
        assert sorted(lease.table) == [0, 1, 2]
        assert lease.append_slots(1) is None, "exhaustion is an answer"
        lease.release()
    assert arena.pool.num_blank == 3


def test_taking_from_an_empty_pool_is_a_caller_s_error() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(IndexError, match="no block is free"):
        pool.take()


def test_giving_back_what_nobody_holds_is_an_error() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="block 0 is given back more often"):
        pool.give(0, None)


def test_release_is_idempotent_and_final() -> None:
    arena = Arena(4, 2)
    lease, other = arena.lease(4), arena.lease(2)
    lease.release()
    lease.release()
    assert (arena.pool.num_blank, arena.pool.num_leased) == (3, 1)
    for use in (lambda: lease.append_slots(1), lease.fork):
        with pytest.raises(RuntimeError, match="released lease"):
            use()
    assert other.table and arena.pool.refs[other.table[0]] == 1


@pytest.mark.parametrize("num_slots", [1, 4, 7, 8])
def test_fork_shares_all_blocks_and_takes_none(num_slots: int) -> None:
    arena = Arena(6, 4)
    original = arena.lease(num_slots)
    num_free = arena.pool.num_free
    fork = original.fork()
    assert fork.table == original.table and arena.pool.num_free == num_free
    original.release()
    assert arena.pool.num_free == num_free and len(fork.table) == blocks_for(num_slots, 4)
    fork.release()
    assert arena.pool.num_blank == 6


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("num_slots", [1, 3, 4, 8])
@pytest.mark.parametrize("appended", [1, 5, 11])
@pytest.mark.parametrize("first", ["original", "fork"])
def test_the_first_writer_of_a_shared_tail_copies_it(size: int, num_slots: int, appended: int, first: str) -> None:
    arena = Arena(40, size)
    original = arena.lease(num_slots)
    fork = original.fork()
    writer, other = (original, fork) if first == "original" else (fork, original)
    shared, partial = other.table, num_slots % size != 0
    num_new = blocks_for(num_slots + appended, size) - len(shared)
    assert writer.num_missing(appended) == num_new + partial
    copies = writer.append_slots(appended)
    assert copies is not None and len(copies) == partial
    assert other.table == shared, "the other side does not move"
    if partial:
        assert (copies[0].source, copies[0].target) == (shared[-1], writer.table[len(shared) - 1])
        assert copies[0].source != copies[0].target
    assert other.append_slots(appended) == (), "the last one left writes in place"
    full = num_slots // size
    assert writer.table[:full] == other.table[:full]
    assert not set(writer.table[full:]) & set(other.table[full:])
    original.release()
    fork.release()
    assert arena.pool.num_blank == 40


def test_among_many_forks_all_but_the_last_copy() -> None:
    arena = Arena(12, 4)
    leases = [arena.lease(6)]
    leases += [leases[0].fork() for _ in range(4)]
    copies = [lease.append_slots(1) for lease in leases]
    assert [len(made or ()) for made in copies] == [1, 1, 1, 1, 0]
    assert len({lease.table[-1] for lease in leases}) == 5


def test_a_copy_that_does_not_fit_leaves_the_share_as_it_was() -> None:
    arena = Arena(1, 4)
    original = arena.lease(2)
    fork = original.fork()
    assert fork.append_slots(1) is None and fork.table == original.table
    original.release()
    assert fork.append_slots(1) == ()


def test_a_published_tail_is_copied_by_its_only_holder() -> None:
    """A whole prompt was hit: its last token is computed again, in a copy, and the cached block stays as it is."""
    arena = Arena(4, 4)
    blocks = arena.cache([1] * 8)
    hit = arena.index.match(arena.chain([1] * 8))
    lease = Lease.on_hit(arena.pool, arena.index, arena.groups, hit, 7)
    copies = lease.append_slots(1)
    assert copies is not None and [copy.source for copy in copies] == [blocks[1]]
    assert lease.table[0] == blocks[0] and lease.table[1] == copies[0].target
    assert arena.index.holds(blocks[1]) and blocks[1] in arena.pool.cached()
