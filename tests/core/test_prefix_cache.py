"""Block keys, hits and eviction, without a scheduler."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.hashing import CBOR, HASHES, BlockHash, KeyChain, new_chain, root_key
from octavo.core.lease import Lease
from tests.core.replica import one_bit
from tests.core.test_allocator import Arena

TOKENS = list(range(100, 112))


ALL_HASHES = {**HASHES, "xxh3_128": BlockHash(xxhash.xxh3_128_digest)}


@pytest.mark.parametrize("name", ALL_HASHES)
def test_a_key_names_all_the_tokens_up_to_the_end_of_its_block(name: str) -> None:
    def keys(tokens: list[int], namespace: bytes = b"", fingerprint: bytes = b"") -> list[bytes]:
        chain = new_chain(ALL_HASHES[name], 4, namespace, fingerprint)
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
    assert root_key(ALL_HASHES[name], b"ab", b"c") != root_key(ALL_HASHES[name], b"a", b"bc")


def keys_of(name: str) -> list[str]:
    """Of the tokens 1, 258, 70000, 23 in blocks of two, for the namespace `ns` and the model `model`."""
    chain = new_chain(ALL_HASHES[name], 2, b"ns", b"model")
    chain.extend([1, 258, 70_000, 23, 5])
    return [key.hex() for key in (chain.under(0), *chain.keys)]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("sha256", lambda data: hashlib.sha256(data).digest()),
        ("blake2b", lambda data: hashlib.blake2b(data, digest_size=32).digest()),
        ("xxh3_128", lambda data: xxhash.xxh3_128(data).digest()),
    ],
)
def test_a_packed_key_is_what_its_definition_says(name: str, digest: Callable[[bytes], bytes]) -> None:
    """So that another process, or another language, computes the same keys."""
    root = digest((2).to_bytes(8, "little") + b"ns" + b"model")
    first = digest(root + bytes([1, 0, 0, 0, 2, 1, 0, 0]))
    second = digest(first + bytes([0x70, 0x11, 1, 0, 23, 0, 0, 0]))
    assert keys_of(name) == [root.hex(), first.hex(), second.hex()]


def test_a_cbor_key_is_what_its_definition_says() -> None:
    """Byte by byte, as in docs/cache.md; the page shows the same three keys."""
    root = hashlib.sha256(bytes.fromhex("83 40 80 82 42 6e73 45 6d6f64656c")).digest()
    first = hashlib.sha256(bytes.fromhex("83 5820") + root + bytes.fromhex("82 01 190102 f6")).digest()
    second = hashlib.sha256(bytes.fromhex("83 5820") + first + bytes.fromhex("82 1a00011170 17 f6")).digest()
    assert keys_of("sha256_cbor") == [root.hex(), first.hex(), second.hex()]
    page = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
    assert [key for key in keys_of("sha256_cbor") if key not in page] == []


@pytest.mark.parametrize(
    ("token", "item"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65_535, "19ffff"),
        (65_536, "1a00010000"),
        (2**32 - 1, "1affffffff"),
        (2**32, "1b0000000100000000"),
    ],
)
def test_cbor_numbers_take_the_fewest_bytes(token: int, item: str) -> None:
    """RFC 8949, appendix A and section 4.2.1."""
    message = CBOR.blocks_of(1)(b"", (token,))
    assert message == bytes.fromhex(f"83 40 81 {item} f6")


def test_cbor_of_a_long_block_and_a_long_namespace() -> None:
    assert CBOR.blocks_of(128)(b"", (7,) * 128) == bytes.fromhex("83 40 9880") + b"\x07" * 128 + b"\xf6"
    assert CBOR.root(b"n" * 300, b"") == bytes.fromhex("83 40 80 82 59012c") + b"n" * 300 + b"\x40"


@pytest.mark.parametrize("name", ALL_HASHES)
def test_tokens_are_compared_on_every_hit_whatever_the_hash(name: str) -> None:
    """An entry that lies under the key of other tokens, as a collision would leave it, is not hit, nor what follows."""
    arena = Arena(4, 4)
    chain = new_chain(ALL_HASHES[name], 4)
    chain.extend(TOKENS[:8])
    lease = arena.lease(8)
    lease.publish(chain, 8)
    assert len(arena.index.match(chain)) == 2
    for changed, num_hit in (((0, 1, 2, 3), 0), (tuple(TOKENS[:4]), 2)):
        chain.pieces[0] = changed
        assert len(arena.index.match(chain)) == num_hit
    chain.pieces[1] = (0, 1, 2, 3)
    assert len(arena.index.match(chain)) == 1


@given(tokens=st.lists(st.integers(0, 1), max_size=20), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_a_chain_is_the_same_however_it_grew(tokens: list[int], cuts: list[int]) -> None:
    grown, whole = new_chain(HASHES["sha256"], 3), new_chain(HASHES["sha256"], 3)
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
        chain = KeyChain(BlockHash(one_bit), b"", 2)
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
