"""Quotas against a list of all that was let in: never too much in any span, nothing lost, refusals change nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.tenants import Rules
from octavo.control.quota import MINUTE_S, Account, Bucket

SLACK = 1e-6
pauses = st.floats(0, 90, allow_nan=False)
asks = st.lists(st.tuples(pauses, st.integers(1, 40)), max_size=40)


@given(st.integers(1, 30), asks)
def test_no_span_lets_in_more_than_a_full_bucket_and_what_it_filled_by(
    size: int, asks: list[tuple[float, int]]
) -> None:
    bucket, time_s = Bucket(size, 0.0), 0.0
    taken: list[tuple[float, int]] = []
    for pause, amount in asks:
        time_s += pause
        if not bucket.wait_s(amount, time_s):
            bucket.take(amount, time_s)
            taken.append((time_s, amount))
    for first, (begin, _) in enumerate(taken):
        for last in range(first, len(taken)):
            span = taken[last][0] - begin
            assert sum(amount for _, amount in taken[first : last + 1]) <= size * (1 + span / MINUTE_S) + SLACK


@given(st.integers(1, 1000), asks, st.integers(1, 1000))
def test_what_is_waited_for_is_there_then_and_not_before(size: int, asks: list[tuple[float, int]], amount: int) -> None:
    bucket, time_s = Bucket(size, 0.0), 0.0
    for pause, spent in asks:
        time_s += pause
        bucket.take(spent, time_s)
    wait_s = bucket.wait_s(amount, time_s)
    if wait_s and amount <= size:
        assert bucket.wait_s(amount, time_s + wait_s + SLACK) == 0
        assert bucket.wait_s(amount, time_s + wait_s / 2) > 0


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_a_new_size_keeps_what_was_spent(size: int, spent: int, new: int) -> None:
    bucket = Bucket(size, 0.0)
    bucket.take(spent, 0.0)
    bucket.resize(new, 0.0)
    assert math.isclose(bucket.level(0.0), new - spent)


def test_what_is_given_back_never_overflows() -> None:
    bucket = Bucket(10, 0.0)
    bucket.take(-5, 0.0)
    assert bucket.level(0.0) == 10


RULES = Rules(requests_per_minute=2, tokens_per_minute=100, concurrent_requests=1)


def test_an_account_counts_in_and_out() -> None:
    account = Account(RULES, 0.0)
    assert account.enter(0.0) is None
    second = account.enter(0.0)
    assert second is not None and (second.quota, second.limit, second.wait_s) == ("concurrent_requests", 1, None)
    account.leave()
    assert account.enter(0.0) is None
    account.leave()
    third = account.enter(0.0)
    assert third is not None and third.quota == "requests_per_minute" and third.wait_s == pytest.approx(30)
    assert account.num_inside == 0, "who is refused is not counted in"
    assert account.enter(30.01) is None


def test_tokens_are_charged_given_back_and_may_lead_into_debt() -> None:
    account = Account(RULES, 0.0)
    assert account.charge(90, 0.0) is None
    short = account.charge(20, 0.0)
    assert short is not None and (short.asked, short.left, short.wait_s) == (20, 10, pytest.approx(6))
    account.settle(90, 30, 0.0)
    assert account.standings(0.0)["tokens"].left == 70
    account.settle(0, 170, 0.0)
    assert account.standings(0.0)["tokens"].left == 0
    assert account.charge(1, 59.0) is not None, "a debt is paid first"
    assert account.charge(1, 61.0) is None
    never = account.charge(101, 1000.0)
    assert never is not None and never.wait_s is None


def test_rules_that_change_change_an_account_that_is_in_use() -> None:
    account = Account(RULES, 0.0)
    account.enter(0.0)
    account.charge(60, 0.0)
    account.adopt(Rules(tokens_per_minute=70), 0.0)
    assert set(account.standings(0.0)) == {"tokens"}
    assert account.standings(0.0)["tokens"].left == 10
    assert account.enter(0.0) is None, "nothing limits how many there are at once any more"
    account.adopt(RULES, 0.0)
    assert account.standings(0.0)["requests"].left == 2
    assert account.enter(0.0) is not None, "the two that are inside count"
