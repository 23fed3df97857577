"""Block keys, hits and eviction, without a scheduler."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.hashing import HASHES, KeyChain, root_key
from octavo.core.lease import Lease
from tests.core.replica import one_bit
from tests.core.test_allocator import Arena

TOKENS = list(range(100, 112))


@pytest.mark.parametrize("name", sorted(HASHES))
def test_a_key_names_all_the_tokens_up_to_the_end_of_its_block(name: str) -> None:
    def keys(tokens: list[int], namespace: bytes = b"", fingerprint: bytes = b"") -> list[bytes]:
        chain = KeyChain(HASHES[name], root_key(HASHES[name], namespace, fingerprint), 4)
        chain.extend(tokens)
        return chain.keys

    assert keys(TOKENS) == keys(list(TOKENS))
    assert len(keys(TOKENS)) == 3 and len(set(keys(TOKENS))) == 3
    for position in range(12):
        other = TOKENS.copy()
        other[position] += 1
        same = [a == b for a, b in zip(keys(TOKENS), keys(other), strict=True)]
        assert same == [block < position // 4 for block in range(3)]
    assert not set(keys(TOKENS)) & set(keys(TOKENS, namespace=b"tenant"))
    assert not set(keys(TOKENS)) & set(keys(TOKENS, fingerprint=b"model"))
    assert root_key(HASHES[name], b"ab", b"c") != root_key(HASHES[name], b"a", b"bc")


def test_a_key_is_what_its_definition_says() -> None:
    """So that another process, or another language, computes the same keys."""
    root = hashlib.sha256((2).to_bytes(8, "little") + b"ns" + b"model").digest()
    chain = KeyChain(HASHES["sha256"], root_key(HASHES["sha256"], b"ns", b"model"), 2)
    chain.extend([1, 258])
    assert chain.keys == [hashlib.sha256(root + bytes([1, 0, 0, 0, 2, 1, 0, 0])).digest()]


@given(tokens=st.lists(st.integers(0, 1), max_size=20), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_a_chain_is_the_same_however_it_grew(tokens: list[int], cuts: list[int]) -> None:
    root = root_key(HASHES["sha256"], b"", b"")
    grown, whole = KeyChain(HASHES["sha256"], root, 3), KeyChain(HASHES["sha256"], root, 3)
    for cut in sorted(cuts):
        grown.extend(tokens[:cut])
    grown.extend(tokens)
    whole.extend(tokens)
    assert grown.keys == whole.keys and len(whole.keys) == len(tokens) // 3
    assert [token for piece in whole.pieces for token in piece] == tokens[: len(tokens) // 3 * 3]


@pytest.mark.parametrize("num_computed", range(13))
def test_only_full_computed_blocks_can_be_hit(num_computed: int) -> None:
    arena = Arena(6, 4)
    lease = arena.lease(12)
    lease.publish(arena.chain(TOKENS), num_computed)
    assert len(arena.index.match(arena.chain(TOKENS))) == num_computed // 4


def test_blocks_are_hit_while_in_use_and_after() -> None:
    arena = Arena(6, 4)
    lease = arena.lease(12)
    lease.publish(arena.chain(TOKENS), 12)
    in_use = [entry.blocks[0] for entry in arena.index.match(arena.chain(TOKENS))]
    assert in_use == list(lease.table)
    lease.release()
    assert [entry.blocks[0] for entry in arena.index.match(arena.chain(TOKENS))] == in_use


@given(
    prefix=st.lists(st.integers(0, 1), max_size=12),
    tails=st.tuples(*[st.lists(st.integers(0, 1), max_size=12)] * 2),
)
def test_the_hit_is_the_common_prefix_in_whole_blocks(prefix: list[int], tails: tuple[list[int], list[int]]) -> None:
    arena = Arena(12, 2)
    first, second = prefix + tails[0], prefix + tails[1]
    arena.cache(first)
    common = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    common = min(common, len(second))
    assert len(arena.index.match(arena.chain(second))) == common // 2


@pytest.mark.parametrize("num_evicted", range(4))
def test_after_n_evictions_there_are_exactly_n_fewer_hits(num_evicted: int) -> None:
    """Of a chain, the end is evicted first."""
    arena = Arena(3, 4)
    arena.cache(TOKENS)
    thief = arena.lease(4 * num_evicted)
    assert len(arena.index.match(arena.chain(TOKENS))) == 3 - num_evicted
    thief.release()
    assert arena.pool.num_cached == 3 - num_evicted


def test_the_oldest_chain_goes_first_and_its_tail_before_its_head() -> None:
    arena = Arena(4, 4)
    old, new = arena.cache(TOKENS[:8]), arena.cache(TOKENS[4:])
    assert arena.pool.cached() == (old[1], old[0], new[1], new[0])
    hit = arena.index.match(arena.chain(TOKENS[:8]))
    Lease.on_hit(arena.pool, arena.index, arena.groups, hit, 8).release()
    assert arena.pool.cached() == (new[1], new[0], old[1], old[0]), "a hit makes a chain young again"


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    arena = Arena(4, 4)
    cached = arena.cache(TOKENS[:8])
    lease = arena.lease(8)
    assert not set(lease.table) & set(cached) and len(arena.index) == 2


def test_a_reused_block_loses_its_old_content() -> None:
    arena = Arena(1, 4)
    arena.cache(TOKENS[:4])
    arena.cache(TOKENS[4:8])
    assert len(arena.index) == 1
    assert not arena.index.match(arena.chain(TOKENS[:4]))
    assert arena.index.match(arena.chain(TOKENS[4:8]))


def test_equal_blocks_computed_twice_are_kept_once() -> None:
    arena = Arena(4, 4)
    first, second = arena.lease(8), arena.lease(8)
    for lease in (first, second):
        lease.publish(arena.chain(TOKENS[:8]), 8)
    second.release()
    assert (arena.pool.num_blank, arena.pool.num_cached) == (2, 0)
    first.release()
    assert (arena.pool.num_blank, arena.pool.num_cached) == (2, 2)


def test_a_child_is_found_again_after_its_parent_was_evicted_and_computed_anew() -> None:
    arena = Arena(5, 4)
    parent, child = arena.lease(4), arena.lease(8)
    parent.publish(arena.chain(TOKENS[:4]), 4)
    child.publish(arena.chain(TOKENS[:8]), 8)
    parent.release()
    thief = arena.lease(12)
    assert not arena.index.match(arena.chain(TOKENS[:8])), "the parent is gone, the child is leased"
    thief.release()
    arena.cache(TOKENS[:4])
    assert len(arena.index.match(arena.chain(TOKENS[:8]))) == 2


def test_match_changes_nothing() -> None:
    arena = Arena(4, 4)
    arena.cache(TOKENS[:8])
    arena.cache(TOKENS[4:])
    before = (arena.pool.cached(), list(arena.pool.refs), len(arena.index))
    for tokens in (TOKENS, TOKENS[:8], TOKENS[4:], [0] * 8):
        arena.index.match(arena.chain(tokens))
    assert (arena.pool.cached(), list(arena.pool.refs), len(arena.index)) == before


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=8), max_size=8))
def test_colliding_keys_never_give_another_sequence_s_blocks(sequences: list[list[int]]) -> None:
    arena = Arena(12, 2)
    contents: dict[int, list[int]] = {}
    for tokens in sequences:
        chain = KeyChain(one_bit, b"", 2)
        chain.extend(tokens)
        hit = arena.index.match(chain)
        for logical, entry in enumerate(hit):
            assert contents[entry.blocks[0]] == tokens[: 2 * logical + 2]
        lease = Lease.on_hit(arena.pool, arena.index, arena.groups, hit, 2 * len(hit))
        assert lease.append_slots(len(tokens) - 2 * len(hit)) is not None
        for logical, block in enumerate(lease.table):
            contents[block] = tokens[: 2 * logical + 2]
        lease.publish(chain, len(tokens))
        lease.release()


def test_a_copied_tail_takes_the_place_of_its_source_once_that_is_evicted() -> None:
    arena = Arena(4, 4)
    (_, source) = arena.cache(TOKENS[:8])
    chain = arena.chain(TOKENS[:8])
    lease = Lease.on_hit(arena.pool, arena.index, arena.groups, arena.index.match(chain), 7)
    assert lease.append_slots(1)
    thief = arena.lease(8)
    assert source in thief.table and len(arena.index.match(chain)) == 1
    lease.publish(chain, 8)
    assert [entry.blocks[0] for entry in arena.index.match(chain)] == list(lease.table)
