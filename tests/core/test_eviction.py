"""Eviction by name: what each policy is for, on traffic small enough to follow. The definitions are in property/."""

import pytest

from octavo.core.eviction import EVICTIONS, Adaptive, Ghosts, Leaves, S3Fifo
from octavo.core.groups import KvGroups
from octavo.core.hashing import HASHES, new_chain
from octavo.core.lease import Lease
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from tests.core.replica import Replica, limits, request

GROUPS = KvGroups(block_size=1)


class Shop:
    """A pool with blocks of one token, asked for one prompt after the other."""

    def __init__(self, policy: str, num_blocks: int) -> None:
        self.pool, self.index = BlockPool(num_blocks, EVICTIONS[policy]), PrefixIndex(GROUPS)

    def ask(self, *tokens: int) -> int:
        """Computes a prompt on top of what is cached of it; returns how many blocks that was."""
        lease, num_hit = self.open(*tokens)
        lease.release()
        return num_hit

    def open(self, *tokens: int) -> tuple[Lease, int]:
        chain = new_chain(HASHES["sha256"], 1)
        chain.extend(tokens)
        hit = self.index.match(chain)
        lease = Lease.on_hit(self.pool, self.index, GROUPS, hit, len(hit))
        assert lease.append_slots(len(tokens) - len(hit)) == ()
        lease.publish(chain, len(tokens))
        return lease, len(hit)

    def cached(self) -> list[tuple[int, ...]]:
        """The prefixes that end in each cached block, in order of eviction."""
        entries = [self.index.entry_of(block) for block in self.pool.cached()]
        return [tokens_up_to(entry) for entry in entries]


def tokens_up_to(entry: CachedBlock | None) -> tuple[int, ...]:
    return () if entry is None else (*tokens_up_to(entry.parent), *entry.tokens)


HOT = tuple(range(900, 908))


def hits_of_a_hot_prompt_under_a_scan(policy: str) -> float:
    """One in ten prompts begins with the hot prefix; between two of them more blocks go by than the pool has."""
    shop, num_hit = Shop(policy, 64), 0
    for number in range(600):
        one_off = range(10_000 + 8 * number, 10_008 + 8 * number)
        num_hit += shop.ask(*HOT, *one_off) if number % 10 == 0 else shop.ask(*one_off)
    return num_hit / (60 * len(HOT))


def test_a_hot_system_prompt_keeps_hitting_under_a_scan_of_one_off_prompts() -> None:
    assert hits_of_a_hot_prompt_under_a_scan("lru") == 0, "the scan is longer than the pool"
    assert hits_of_a_hot_prompt_under_a_scan("adaptive") > 0.9


def test_the_default_is_the_adaptive_one() -> None:
    assert limits().eviction_policy == "adaptive"
    assert isinstance(Replica(limits()).scheduler.cache.pool._cached, Adaptive)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_the_tail_of_a_chain_goes_before_its_head(policy: str) -> None:
    """Also where the head is older, less used, or cheaper to compute: two chats that went on from one prompt."""
    shop = Shop(policy, 12)
    shop.ask(1, 2, 3)
    shop.ask(1, 2, 3, 4, 5)
    shop.ask(1, 2, 6)
    shop.ask(7)
    shop.ask(1, 2, 3, 4)
    order = shop.cached()
    assert len(order) == 7
    assert all(order.index(prefix) < order.index(prefix[:-1]) for prefix in order if len(prefix) > 1)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_blank_blocks_are_reused_before_any_cached_one(policy: str) -> None:
    shop = Shop(policy, 6)
    shop.ask(1, 2, 3)
    shop.ask(4, 5, 6)
    assert shop.ask(1, 2, 3) == 3 and shop.pool.num_blank == 0


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_hit_block_is_not_evicted_for_the_request_that_hits_it(policy: str) -> None:
    shop = Shop(policy, 4)
    shop.ask(1, 2)
    shop.ask(3, 4)
    lease, num_hit = shop.open(1, 2, 5, 6)
    assert num_hit == 2 and shop.pool.num_cached == 0
    lease.release()
    assert shop.ask(1, 2, 5, 6) == 4


@pytest.mark.parametrize("policy", EVICTIONS)
@pytest.mark.parametrize("num_evicted", range(5))
def test_after_n_evictions_there_are_exactly_n_fewer_hits(policy: str, num_evicted: int) -> None:
    shop = Shop(policy, 4)
    shop.ask(1, 2, 3, 4)
    thief, _ = shop.open(*range(50, 50 + num_evicted))
    thief.release()
    assert shop.ask(1, 2, 3, 4) == 4 - num_evicted


@pytest.mark.parametrize("policy", EVICTIONS)
def test_blocks_are_reused_for_ever(policy: str) -> None:
    shop = Shop(policy, 3)
    for number in range(200):
        lease, _ = shop.open(*range(number, number + 3))
        assert sorted(lease.table) == [0, 1, 2]
        assert lease.append_slots(1) is None, "exhaustion is an answer"
        lease.release()
    assert (shop.pool.num_blank, shop.pool.num_cached, shop.pool.num_leased) == (0, 3, 0)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_reset_forgets_what_was_hot(policy: str) -> None:
    def after(shop: Shop) -> list[tuple[int, ...]]:
        for prompt in ((1, 2), (3,), (1, 2), (4, 5), (3,), (6, 7, 8), (9,)):
            shop.ask(*prompt)
        return shop.cached()

    fresh, reset = Shop(policy, 6), Shop(policy, 6)
    for number in range(60):
        reset.ask(number % 7, number % 5, number % 3)
    for block in reset.pool.drop_cached():
        reset.index.forget(block)
    assert reset.pool.num_blank == 6 and not len(reset.index)
    assert after(reset) == after(fresh)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_dropped_block_is_blank_and_what_takes_its_place_begins_anew(policy: str) -> None:
    shop = Shop(policy, 2)
    shop.ask(1)
    assert shop.ask(1) == 1
    block = shop.pool.cached()[0]
    shop.pool.drop(block)
    shop.index.forget(block)
    assert (shop.pool.num_blank, shop.pool.num_cached) == (2, 0)
    shop.ask(2)
    shop.ask(3)
    assert shop.cached() == [(2,), (3,)]


# ---- what tells them apart ----


def test_lru_goes_by_the_last_release() -> None:
    shop = Shop("lru", 6)
    for prompt in ((1, 2), (3,), (4, 5), (1, 2)):
        shop.ask(*prompt)
    assert shop.cached() == [(3,), (4, 5), (4,), (1, 2), (1,)]


def test_fifo_goes_by_the_first_release_but_never_a_head_before_its_tail() -> None:
    shop = Shop("fifo", 6)
    for prompt in ((1, 2), (3,), (4, 5), (1, 2), (3, 6)):
        shop.ask(*prompt)
    assert shop.cached() == [(1, 2), (1,), (4, 5), (4,), (3, 6), (3,)]


def test_s3fifo_lets_go_of_what_is_not_hit_and_takes_back_what_it_missed() -> None:
    shop = Shop("s3fifo", 10)
    for number in range(10):
        shop.ask(number)
    shop.ask(0)
    shop.ask(10)
    assert shop.ask(0) == 1, "it was hit, so it moved to the main queue when its turn came"
    assert shop.ask(1) == 0, "it was not, so it went in its place"
    for number in range(20, 28):
        shop.ask(number)
    assert shop.ask(1) == 1, "it came back soon, so it is in the main queue now"


def test_gdsf_keeps_what_was_hit_often_and_what_costs_much() -> None:
    shop = Shop("gdsf", 4)
    for prompt in ((1,), (1,), (1,), (2,), (3,), (4,), (5,), (6,)):
        shop.ask(*prompt)
    assert shop.cached() == [(4,), (5,), (6,), (1,)]
    far = Shop("gdsf", 600)
    far.ask(*range(1000, 1256))
    far.ask(7)
    assert far.cached()[0] == (7,), "the end of a long chain is older, but costs twice as much to compute"


def test_gdsf_lets_go_of_what_was_hot_long_ago() -> None:
    shop = Shop("gdsf", 3)
    for _ in range(5):
        shop.ask(1)
    for number in range(10, 40):
        shop.ask(number)
    assert shop.ask(1) == 0


def test_adaptive_is_lru_until_reused_blocks_are_missed() -> None:
    """A working set a little larger than the pool, and nothing hot: patience would not help, and there is none."""
    lru, adaptive = Shop("lru", 8), Shop("adaptive", 8)
    for number in range(200):
        for shop in (lru, adaptive):
            shop.ask(number // 3 % 5, number % 3)
        assert lru.cached() == adaptive.cached()


def test_adaptive_gives_a_hot_set_up_when_the_work_changes() -> None:
    """Patience is unlearned: a phase that LRU likes best, after one with a hot prefix."""
    lru, adaptive = Shop("lru", 64), Shop("adaptive", 64)
    for shop in (lru, adaptive):
        for number in range(300):
            one_off = range(10_000 + 8 * number, 10_008 + 8 * number)
            shop.ask(*HOT, *one_off) if number % 10 == 0 else shop.ask(*one_off)
    hits = [0, 0]
    for number in range(3000):
        for which, shop in enumerate((lru, adaptive)):
            hits[which] += shop.ask(number // 100, (number * number) % 71, number % 2)
    assert hits[1] >= 0.98 * hits[0]


# ---- what they are made of ----


def test_ghosts_are_bounded_and_counted_by_kind() -> None:
    ghosts = Ghosts(3)
    for number, kind in enumerate((0, 0, 1, 1, 0)):
        ghosts.add(b"%d" % number, kind)
    assert ghosts.counts == [1, 2] and list(ghosts.kinds) == [b"2", b"3", b"4"]
    ghosts.add(b"2", 0)
    assert ghosts.counts == [2, 1], "the same key is one ghost"
    assert (ghosts.take(b"2"), ghosts.take(b"2")) == (0, None)
    assert ghosts.counts == [1, 1]


@pytest.mark.parametrize("policy", EVICTIONS)
def test_what_a_policy_remembers_is_bounded_by_the_pool(policy: str) -> None:
    """However long the same blocks are hit, and whatever comes and goes."""
    shop = Shop(policy, 8)
    for number in range(2000):
        shop.ask(1, 2)
        shop.ask(number, number)
    assert size_of(shop.pool._cached) <= 1000


def size_of(what: object) -> int:
    """Items of all the containers that an object of ours is made of."""
    if isinstance(what, dict | list | tuple):
        inner = what.values() if isinstance(what, dict) else what
        return len(what) + sum(size_of(item) for item in inner)
    if isinstance(what, CachedBlock):
        return 0
    named = getattr(what, "__dict__", {})
    slots = [getattr(what, name) for kind in type(what).__mro__ for name in getattr(kind, "__slots__", ())]
    return sum(size_of(item) for item in (*named.values(), *slots))


def test_a_leaf_comes_up_when_its_last_child_is_gone() -> None:
    head = CachedBlock(b"h", (1,), None, [0])
    left, right = CachedBlock(b"l", (2,), head, [1]), CachedBlock(b"r", (3,), head, [2])
    leaves = Leaves()
    for entry, rank in ((head, 1.0), (left, 2.0), (right, 3.0)):
        leaves.add(entry.blocks[0], entry, (rank, 0))
    assert leaves.first() == 1
    leaves.remove(1)
    assert leaves.first() == 2, "the head has the lowest rank, but the right one continues it"
    leaves.remove(2)
    assert leaves.first() == 0
    leaves.remove(0)
    assert leaves.first() is None


@pytest.mark.parametrize("policy", EVICTIONS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_was_forgotten_while_it_was_held_is_not_mistaken_for_what_takes_its_place(
    policy: str, order: tuple
) -> None:
    """Its block is blank then, and no policy was told."""
    one = EVICTIONS[policy](4)
    if isinstance(one, Adaptive):
        one._bias = Adaptive.HIGHEST
    one.add(0, CachedBlock(b"forgotten", (1,), None, [0]))
    one.hit(0, b"forgotten")
    for block in order:
        one.add(block, CachedBlock(b"%d" % block, (block,), None, [block]))
    assert tuple(one) == order


def test_s3fifo_counts_hits_up_to_three() -> None:
    one = S3Fifo(4)
    for _ in range(5):
        one.hit(0, b"hot")
    one.add(0, CachedBlock(b"hot", (1,), None, [0]))
    assert one._lives[0].hits == 3


# ---- through the scheduler ----


@pytest.mark.parametrize("policy", EVICTIONS)
def test_answers_are_the_same_under_every_policy(policy: str) -> None:
    """Eviction decides what is computed again, never what comes out."""
    prompts = [[1, 2, 3, 4] * 2 + [number % 8] * (number % 5) for number in range(24)]
    answers = []
    for num_blocks in (12, 200):
        replica = Replica(limits(num_blocks=num_blocks, max_num_seqs=3, eviction_policy=policy))
        for number, prompt in enumerate(prompts):
            replica.submit(request(f"r{number}", prompt))
            replica.step()
        replica.run()
        answers.append([replica.outcomes[f"r{number}"].ids() for number in range(24)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("policy", EVICTIONS)
def test_hit_rates_go_from_nothing_towards_one(policy: str) -> None:
    replica = Replica(limits(eviction_policy=policy))
    rates = []
    for number in range(40):
        replica.submit(request(f"r{number}", [1, 2, 3, 4, 5, 6, 7, 0, 5], max_tokens=1))
        replica.run()
        load = replica.scheduler.load()
        rates.append(load.prefix_hits / load.prefix_queries)
    assert rates[0] == 0 and rates[1] == pytest.approx(4 / 9) and rates[-1] == pytest.approx(8 / 9 * 39 / 40)
    assert rates == sorted(rates)
