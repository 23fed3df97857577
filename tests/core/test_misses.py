"""Why a prompt was not found: each reason by name, what it says, and that it says nothing of other tenants."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.misses import LEAST_EVICTED, MOST_EVICTED, History, Miss, MissReason, history_of
from octavo.core.siblings import num_common
from tests.core.replica import Replica, limits, request
from tests.core.test_allocator import Arena

PROMPT = [1, 2, 3, 4, 5, 6, 7, 0, 1, 3]


def missed(replica: Replica, name: str) -> Miss | None:
    return replica.outcomes[name].admissions[0].miss


def ask(replica: Replica, name: str, prompt: list[int], *, tenant: str = "", **params) -> Miss | None:
    replica.submit(replace(request(name, prompt, **{"max_tokens": 1, **params}), tenant=tenant))
    replica.run()
    return missed(replica, name)


def reason(miss: Miss | None) -> MissReason | None:
    return None if miss is None else miss.reason


def test_what_nobody_asked_before_was_never_seen() -> None:
    replica = Replica(limits())
    assert ask(replica, "a", PROMPT) == Miss(MissReason.NEVER_SEEN, 0)
    assert ask(replica, "b", [7, 7, 7, 7, 7]) == Miss(MissReason.NEVER_SEEN, 0), "nothing in common"


def test_a_whole_hit_misses_nothing() -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT[:8])
    assert ask(replica, "b", PROMPT[:8]) is None
    assert ask(replica, "one token", [5]) is None, "the last token is always computed"


@pytest.mark.parametrize("at", range(4, 8))
def test_where_the_tokens_part_is_told_with_both_sides(at: int) -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT)
    other = PROMPT[:8].copy()
    other[at] = (PROMPT[at] + 1) % 8
    expected = Miss(MissReason.TOKENS_DIFFER, at, None, tuple(other[at:8]), tuple(PROMPT[at:8]))
    assert ask(replica, "b", other) == expected


@pytest.mark.parametrize("at", range(1, 4))
def test_a_shared_beginning_shorter_than_a_block_is_explained(at: int) -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT)
    miss = ask(replica, "b", PROMPT[:at] + [(PROMPT[at] + 1) % 8] * 6)
    assert (reason(miss), miss and miss.at) == (MissReason.SHORTER_THAN_BLOCK, at)


def test_what_is_left_behind_the_last_full_block_is_shorter_than_one() -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT)
    assert ask(replica, "b", PROMPT) == Miss(MissReason.SHORTER_THAN_BLOCK, 8)


def test_an_evicted_block_is_told_with_the_time_since() -> None:
    replica = Replica(limits(num_blocks=3))
    ask(replica, "a", PROMPT[:8])
    ask(replica, "thief", [7] * 12)
    gone = next(event.time_s for event in reversed(replica.events) if type(event).__name__ == "BlockEvicted")
    miss = ask(replica, "a again", PROMPT[:8])
    admitted = replica.outcomes["a again"].admissions[0].time_s
    assert miss == Miss(MissReason.EVICTED, 0, admitted - gone) and admitted > gone


def test_after_a_reset_it_is_evicted_too() -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT)
    replica.scheduler.reset_prefix_cache(replica.now)
    assert reason(ask(replica, "b", PROMPT)) is MissReason.EVICTED


def test_a_request_for_prompt_logprobs_does_not_read_the_cache_and_says_so() -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT)
    assert ask(replica, "b", PROMPT, prompt_logprobs=0) == Miss(MissReason.PROMPT_LOGPROBS, 0)


def test_a_cache_that_is_off_says_so() -> None:
    assert ask(Replica(limits(enable_prefix_caching=False)), "a", PROMPT) == Miss(MissReason.DISABLED, 0)


def test_while_another_computes_the_very_block_that_is_the_reason() -> None:
    """Who waits for it hits it in the end; but whoever asks meanwhile is told."""
    replica = Replica(limits(max_num_batched_tokens=4))
    replica.submit(request("leader", PROMPT, max_tokens=1), request("equal", PROMPT, max_tokens=1))
    replica.step()
    cache, (waiting,) = replica.scheduler.cache, replica.scheduler.roster.waiting
    hit = cache.look_up(waiting)
    assert len(hit.whole) == 1 and reason(cache.why_missed(waiting, hit, 0.0)) is MissReason.STILL_COMPUTING
    replica.run()
    assert replica.outcomes["equal"].cached_tokens == 8


def test_no_room_for_the_copy_of_a_whole_hit_s_last_block() -> None:
    replica = Replica(limits(num_blocks=2))
    ask(replica, "a", PROMPT[:8])
    assert ask(replica, "b", PROMPT[:8]) == Miss(MissReason.NO_ROOM_TO_COPY, 4)


def test_another_salt_of_the_same_tenant_is_told_and_another_tenant_s_is_not() -> None:
    replica = Replica(limits())
    ask(replica, "a", PROMPT, tenant="acme", namespace=b"salt 1")
    assert ask(replica, "b", PROMPT, tenant="acme", namespace=b"salt 2") == Miss(MissReason.DIFFERENT_NAMESPACE, 0)
    assert ask(replica, "c", PROMPT, tenant="other", namespace=b"salt 3") == Miss(MissReason.NEVER_SEEN, 0)


def test_who_names_no_tenant_hears_of_no_other_salt() -> None:
    """Requests without a key may come from people who salt against each other."""
    replica = Replica(limits())
    ask(replica, "a", PROMPT, namespace=b"salt 1")
    assert ask(replica, "b", PROMPT, namespace=b"salt 2") == Miss(MissReason.NEVER_SEEN, 0)


def told(prompt: list[int], first: list[list[int]], others: list[list[int]]) -> list[Miss | None]:
    """What a tenant is told of its prompts, where another one asked for `others` before."""
    replica = Replica(limits(num_blocks=40))
    for number, tokens in enumerate(others):
        ask(replica, f"other {number}", tokens, tenant="other", namespace=b"other")
    mine = [*first, prompt]
    return [ask(replica, f"mine {i}", tokens, tenant="me", namespace=b"me") for i, tokens in enumerate(mine)]


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@given(PROMPTS, st.lists(PROMPTS, max_size=2), st.lists(PROMPTS, max_size=3))
def test_a_tenant_is_told_the_same_whatever_another_one_asked(
    prompt: list[int], first: list[list[int]], others: list[list[int]]
) -> None:
    assert told(prompt, first, [*others, prompt]) == told(prompt, first, [])


def test_a_choice_that_comes_back_after_a_preemption_explains_nothing() -> None:
    replica = Replica(limits(num_blocks=5))
    replica.submit(request("a", PROMPT[:8], max_tokens=8), request("b", [7] * 8, max_tokens=8))
    replica.run()
    resumed = [a for name in "ab" for a in replica.outcomes[name].admissions if a.resumed]
    assert resumed and all(admitted.miss is None for admitted in resumed)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=8),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
def test_the_nearest_sibling_is_the_one_with_the_most_in_common(blocks: list[list[int]], tokens: list[int]) -> None:
    arena = Arena(12, 3)
    for block in blocks:
        arena.cache(block)
    found = arena.index.nearest(arena.chain(tokens).under(0), None, tuple(tokens))
    best = max((num_common(block, tokens) for block in blocks), default=None)
    assert (found and found[1]) == best
    assert found is None or num_common(found[0].tokens, tokens) == best


def test_siblings_are_the_index() -> None:
    arena = Arena(3, 2)
    for first in range(8):
        arena.cache([first, first, 5, first])
        assert len(arena.index.siblings) == len(arena.index)


def test_what_is_remembered_is_bounded() -> None:
    history = History(most_evicted=3)
    for number in range(10):
        history.note_evicted(bytes([number]), float(number))
    assert [history.evicted_at(bytes([number])) for number in range(10)] == [None] * 7 + [7.0, 8.0, 9.0]
    for number in range(100):
        history.note_namespace("tenant", bytes([number]))
    assert history.namespaces("tenant") == tuple(bytes([number]) for number in range(68, 100))


@pytest.mark.parametrize(("num_blocks", "most"), [(8, LEAST_EVICTED), (1000, 4000), (10**6, MOST_EVICTED)])
def test_how_much_is_remembered_goes_by_the_pool(num_blocks: int, most: int) -> None:
    history = history_of(num_blocks)
    for number in range(most + 1):
        history.note_evicted(number.to_bytes(4), float(number))
    assert history.evicted_at((0).to_bytes(4)) is None and history.evicted_at((1).to_bytes(4)) == 1.0
