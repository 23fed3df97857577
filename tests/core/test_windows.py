"""KV groups by example: what a window keeps, what can be hit after it has moved on, and how much it takes at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.budget import most_tokens, worst_case_blocks
from octavo.core.events import Admitted, Stepped
from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, KeyChain, new_chain
from octavo.core.lease import Lease
from octavo.core.misses import MissReason
from octavo.core.pool import BlockPool
from octavo.core.prefix import PrefixIndex
from octavo.core.types import NO_BLOCK, FinishReason
from tests.core.replica import Replica, limits, request

WINDOWS = [(3,), (None, 5), (9, None, 9)]


class Arena:
    """Blocks of 2 tokens, one group with full attention and one with a window of 4 tokens."""

    def __init__(self, num_blocks: int = 40, windows: tuple[int | None, ...] = (None, 4)) -> None:
        self.groups = KvGroups(2, windows)
        self.pool, self.index = BlockPool(num_blocks), PrefixIndex(self.groups)

    def chain(self, tokens: list[int]) -> KeyChain:
        chain = new_chain(HASHES["sha256"], 2)
        chain.extend(tokens)
        return chain

    def compute(self, tokens: list[int], steps: int = 1) -> Lease:
        """A lease on tokens that were computed in steps of so many."""
        lease = Lease(self.pool, self.index, self.groups)
        for end in range(steps, len(tokens) + steps, steps):
            end = min(end, len(tokens))
            assert lease.append_slots(end - lease.num_slots) == ()
            lease.publish(self.chain(tokens), end)
            lease.slide(end)
        return lease

    def num_hit(self, tokens: list[int]) -> int:
        return len(self.index.match(self.chain(tokens)))

    def lose(self, tokens: list[int], logical: int, group: int) -> None:
        """Evicts one block."""
        self.index.forget(self.index.match(self.chain(tokens[: 2 * logical + 2]))[logical].blocks[group])


TOKENS = list(range(20))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20])
def test_a_window_keeps_what_the_next_token_reads_and_the_other_group_keeps_all(steps: int) -> None:
    arena = Arena()
    lease = arena.compute(TOKENS, steps)
    full, windowed = lease.table[:10], lease.table[10:]
    assert NO_BLOCK not in full
    assert [block == NO_BLOCK for block in windowed] == [True] * 8 + [False] * 2
    assert lease.num_blocks == arena.pool.num_leased == 12


def test_a_long_chunk_holds_all_of_it_until_it_is_computed() -> None:
    arena = Arena()
    lease = Lease(arena.pool, arena.index, arena.groups)
    assert lease.append_slots(20) == () and NO_BLOCK not in lease.table
    lease.slide(20)
    assert lease.num_blocks == 12


def test_appending_takes_a_block_for_each_group_or_none_at_all() -> None:
    arena = Arena(num_blocks=5)
    lease = arena.compute(TOKENS[:4])
    assert lease.num_missing(1) == 2
    state = (arena.pool.blank(), list(arena.pool.refs), lease.table)
    assert lease.append_slots(1) is None
    assert (arena.pool.blank(), list(arena.pool.refs), lease.table) == state


def test_a_fork_shares_the_window_and_copies_its_tail_in_each_group() -> None:
    arena = Arena()
    lease = arena.compute(TOKENS[:11])
    twin = lease.fork()
    assert twin.table == lease.table and twin.num_missing(1) == 2
    copies = twin.append_slots(1)
    assert copies is not None and [copy.source for copy in copies] == [lease.table[5], lease.table[11]]
    lease.release()
    twin.release()
    assert arena.pool.num_leased == 0


def test_a_sequence_is_hit_at_its_end_and_earlier_where_what_slid_out_is_still_there() -> None:
    arena = Arena()
    arena.compute(TOKENS).release()
    for length in range(len(TOKENS) + 1):
        assert arena.num_hit(TOKENS[:length]) == length // 2


def test_a_hit_holds_only_the_window_of_what_comes_next() -> None:
    arena = Arena()
    arena.compute(TOKENS).release()
    hit = arena.index.match(arena.chain(TOKENS[:12]))
    lease = Lease.on_hit(arena.pool, arena.index, arena.groups, hit, 12)
    assert [block == NO_BLOCK for block in lease.table] == [False] * 6 + [True] * 4 + [False] * 2
    assert arena.pool.num_leased == 8


def test_what_a_window_lost_makes_hits_shorter_and_later_ones_are_not_touched() -> None:
    """Block 4 of the window: a hit that ends within two blocks after it needs it, one further on does not."""
    arena = Arena()
    arena.compute(TOKENS).release()
    arena.lose(TOKENS, 4, group=1)
    assert [arena.num_hit(TOKENS[: 2 * blocks]) for blocks in range(4, 9)] == [4, 4, 4, 7, 8]
    arena.lose(TOKENS, 7, group=0)
    assert arena.num_hit(TOKENS) == 7, "a block of full attention is needed by all that come after it"


def test_a_gap_is_filled_by_whoever_computes_it_again() -> None:
    arena = Arena()
    arena.compute(TOKENS).release()
    arena.lose(TOKENS, 4, group=1)
    arena.compute(TOKENS[:12]).release()
    assert [arena.num_hit(TOKENS[: 2 * blocks]) for blocks in range(4, 9)] == [4, 5, 6, 7, 8]


def test_without_full_attention_the_beginning_may_be_gone() -> None:
    arena = Arena(windows=(4, 4))
    arena.compute(TOKENS).release()
    for logical in range(5):
        for group in range(2):
            arena.index.forget(arena.index.match(arena.chain(TOKENS))[logical].blocks[group])
    assert [arena.num_hit(TOKENS[: 2 * blocks]) for blocks in range(11)] == [0] * 7 + [7, 8, 9, 10]
    other = [99, *TOKENS[1:]]
    assert arena.num_hit(other) == 0


def test_the_next_turn_of_a_long_chat_hits_and_the_reason_of_a_shorter_hit_is_told() -> None:
    replica = Replica(limits(num_blocks=30, max_model_len=100, windows=(None, 6)))
    replica.submit(request("first", [1, 2, 3] * 6, max_tokens=20))
    replica.run()
    whole = [1, 2, 3] * 6 + replica.outcomes["first"].ids()
    replica.submit(request("next", [*whole, 4, 5]))
    replica.run()
    assert replica.outcomes["next"].cached_tokens == (len(whole) - 1) // 4 * 4
    cache = replica.scheduler.cache
    lost = cache.index.entries()[-1].blocks[1]
    cache.index.forget(lost)
    cache.pool.drop(lost)
    replica.submit(request("again", [*whole, 4, 5, *replica.outcomes["next"].ids()]))
    replica.run()
    (admitted,) = [e for e in replica.events if isinstance(e, Admitted) and e.request_id == "again"]
    assert admitted.miss is not None and admitted.miss.reason is MissReason.EVICTED


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_an_answer_without_end_holds_a_bounded_number_of_blocks(windows: tuple[int | None, ...], chunk: int) -> None:
    few = limits(num_blocks=200, max_model_len=200, max_num_batched_tokens=chunk, windows=windows)
    replica = Replica(few)
    replica.submit(request("r", [1] * 70, max_tokens=100))
    replica.run()
    groups = KvGroups.of(few)
    num_full = windows.count(None)
    for step in [event for event in replica.events if isinstance(event, Stepped)]:
        most = sum(-(-window // 4) + 2 + -(-chunk // 4) for window in windows if window is not None)
        assert step.blocks_leased <= num_full * groups.blocks_for(170) + most


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("prompt_len", [1, 8, 13])
@pytest.mark.parametrize("max_tokens", [1, 2, 20])
@pytest.mark.parametrize("n", [1, 3])
def test_whoever_fits_the_worst_case_is_served_without_preemption_and_one_block_less_is_refused(
    windows: tuple[int | None, ...], chunk: int, prompt_len: int, max_tokens: int, n: int
) -> None:
    size = {"block_size": 4, "max_num_batched_tokens": max(chunk, n), "windows": windows}
    need = worst_case_blocks(prompt_len, max_tokens, n, KvGroups(4, windows, size["max_num_batched_tokens"]))
    replica = Replica(limits(num_blocks=need, **size))
    replica.submit(request("r", [i % 8 for i in range(prompt_len)], n=n, max_tokens=max_tokens, temperature=1.0))
    replica.run()
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH] * n
    assert not replica.preemptions()
    if need > 1:
        fewer = Replica(limits(num_blocks=need - 1, **size))
        fewer.submit(request("r", [1] * prompt_len, n=n, max_tokens=max_tokens))
        assert fewer.outcomes["r"].refused is not None


@given(
    prompt_len=st.integers(1, 40),
    n=st.integers(1, 6),
    num_blocks=st.integers(1, 80),
    groups=st.builds(
        KvGroups,
        st.sampled_from([1, 4, 8]),
        st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=3).map(tuple),
        st.integers(1, 20),
    ),
)
def test_the_clamp_is_the_inverse_of_the_worst_case(prompt_len: int, n: int, num_blocks: int, groups: KvGroups) -> None:
    most = most_tokens(prompt_len, n, num_blocks, groups, 100)
    assert not most or worst_case_blocks(prompt_len, most, n, groups) <= num_blocks
    assert most == 100 or worst_case_blocks(prompt_len, most + 1, n, groups) > num_blocks


@pytest.mark.parametrize("windows", [(None, 4, 4), (None, 6, 6), (None, 1, 1)])
@pytest.mark.parametrize("chunk", [4, 64])
def test_a_reservation_is_for_what_a_window_will_hold_and_lasts_to_the_end(
    windows: tuple[int | None, ...], chunk: int
) -> None:
    """One block for each window, for as long as it slides, beside all that full attention still needs."""
    manager = {"block_manager": "v2", "max_num_seqs": 4}
    replica = Replica(limits(num_blocks=150, windows=windows, max_num_batched_tokens=chunk, **manager))
    replica.submit(request("r", [1] * 22, max_tokens=40))
    decoding: list[int] = []
    while replica.scheduler.has_work:
        replica.step()
        for choice in replica.scheduler.roster.running:
            lease = choice.lease
            full = max(0, -(-(choice.expected_len - 1) // 4) - len(lease.table) // 3)
            if choice.num_left == 1 and full:
                decoding.append(lease.num_reserved - full)
    assert len(decoding) > 30
    assert min(decoding) == 0 and max(decoding) <= 2


def test_a_short_window_needs_no_room_for_a_chunk_that_it_does_not_have() -> None:
    """A long answer to a short prompt: a step may be long, but none of this request is."""
    replica = Replica(limits(num_blocks=40, windows=(8,), max_model_len=150, block_manager="v2"))
    replica.submit(*[request(f"r{i}", [i] * 6, max_tokens=100) for i in range(8)])
    replica.step()
    assert replica.scheduler.load().num_running == 8, "each holds 3 blocks at most"
    replica.run()
    assert not replica.preemptions()
