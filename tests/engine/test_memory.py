"""The memory plan: laws over all demands, and the words of those that cannot be met."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.memory import Demand, MemoryPlanError, plan_memory

GIB = 1 << 30

demands = st.builds(
    Demand,
    weight_bytes=st.integers(0, 4 * GIB),
    kv_bytes_per_token=st.integers(1, 1 << 18),
    available_bytes=st.integers(0, 16 * GIB),
    available_reason=st.just("MemAvailable"),
    utilization=st.floats(0.05, 1),
    model_len=st.integers(1, 1 << 17),
    max_model_len=st.none() | st.integers(1, 1 << 17),
    max_num_seqs=st.integers(1, 256),
    block_size=st.sampled_from([8, 16, 32, 64, 128]),
    num_blocks=st.none() | st.integers(1, 5000),
    kv_cache_memory_bytes=st.none() | st.integers(1, 8 * GIB),
    windows=st.just((None,)) | st.lists(st.none() | st.integers(1, 4096), min_size=1, max_size=6).map(tuple),
    longest_chunk=st.integers(1, 4096),
)


fitting = demands.map(
    lambda demand: dataclasses.replace(
        demand,
        weight_bytes=demand.weight_bytes // 4,
        available_bytes=demand.available_bytes + 64 * GIB,
        max_model_len=demand.max_model_len and min(demand.max_model_len, demand.model_len, 8),
        num_blocks=demand.num_blocks and demand.num_blocks + 8 * len(demand.windows),
        kv_cache_memory_bytes=demand.kv_cache_memory_bytes
        and demand.kv_cache_memory_bytes + 8 * len(demand.windows) * demand.block_bytes,
    )
)
"""Demands of which each can be met: an explicit context is short, and there is room for a block."""


@given(demands)
def test_a_demand_is_met_or_refused_never_anything_else(demand):
    try:
        plan = plan_memory(demand)
    except MemoryPlanError as error:
        assert str(error)
    else:
        assert demand.blocks_for(plan.max_model_len) <= plan.num_blocks


@given(fitting)
def test_a_plan_holds_its_own_context(demand):
    plan = plan_memory(demand)
    assert 1 <= plan.max_model_len <= demand.model_len
    assert demand.blocks_for(plan.max_model_len) <= plan.num_blocks
    lowered = plan.max_model_len < demand.wanted_len
    assert not lowered or demand.blocks_for(plan.max_model_len + 1) > plan.num_blocks


@given(fitting)
def test_what_was_asked_for_is_given_or_refused(demand):
    plan = plan_memory(demand)
    if demand.max_model_len is not None:
        assert plan.max_model_len == demand.max_model_len
    if demand.num_blocks is not None:
        assert plan.num_blocks == demand.num_blocks
    elif demand.kv_cache_memory_bytes is not None:
        assert 0 <= demand.kv_cache_memory_bytes - plan.num_blocks * demand.block_bytes < demand.block_bytes


@given(fitting.map(lambda demand: dataclasses.replace(demand, num_blocks=None, kv_cache_memory_bytes=None)))
def test_the_default_takes_no_more_than_it_may_or_needs(demand):
    plan = plan_memory(demand)
    needed = demand.blocks_for_all(demand.wanted_len)
    assert plan.num_blocks <= needed
    assert plan.num_blocks * demand.block_bytes + demand.weight_bytes <= demand.available_bytes * demand.utilization


@given(fitting, st.integers(0, 4 * GIB))
def test_more_memory_never_gives_less(demand, more):
    plan = plan_memory(demand)
    richer = plan_memory(dataclasses.replace(demand, available_bytes=demand.available_bytes + more))
    assert richer.num_blocks >= plan.num_blocks and richer.max_model_len >= plan.max_model_len


SMALL = Demand(
    weight_bytes=100 << 20,
    kv_bytes_per_token=23_040,
    available_bytes=8 * GIB,
    available_reason="MemAvailable is 8.00 GiB",
    utilization=0.9,
    model_len=8192,
    max_model_len=None,
    max_num_seqs=4,
    block_size=16,
    num_blocks=None,
    kv_cache_memory_bytes=None,
)


def test_the_report_has_the_arithmetic():
    plan = plan_memory(SMALL)
    text = "\n".join(plan.report)
    assert plan.num_blocks == 4 * 512
    assert all(word in text for word in ("0.10 GiB", "23,040", "2,048 blocks of 16", "32,768 tokens", "8,192", "4.0"))


def test_with_windows_a_request_needs_less_and_more_of_them_fit():
    """6 groups: one holds all 512 blocks of the context, five a window of 512 tokens: 33 blocks, or 65 in a step."""
    windowed = dataclasses.replace(SMALL, windows=(None, *[512] * 5), longest_chunk=512)
    assert windowed.blocks_for(8192) == 512 + 5 * (32 + 32 + 1)
    plan = plan_memory(windowed)
    assert plan.num_blocks == 4 * (512 + 5 * 33) + 5 * 32
    text = "\n".join(plan.report)
    assert "23,040 bytes a token and group" in text and "4.2 requests at full context" in text
    fewer = plan_memory(dataclasses.replace(windowed, num_blocks=600))
    assert fewer.max_model_len == (600 - 5 * 65) * 16
    with pytest.raises(MemoryPlanError, match="for each of the 6 KV groups"):
        plan_memory(dataclasses.replace(windowed, num_blocks=5))


def test_a_context_that_does_not_fit_is_lowered_aloud():
    """Also as somebody would look for it, or type it."""
    plan = plan_memory(dataclasses.replace(SMALL, num_blocks=130))
    assert plan.max_model_len == 2080
    (warning,) = plan.warnings
    assert "lowered from 8,192 to 2,080" in warning and "--max-model-len 2080" in warning


def test_more_than_there_is_is_warned_of():
    plan = plan_memory(dataclasses.replace(SMALL, kv_cache_memory_bytes=100 * GIB))
    (warning,) = plan.warnings
    assert "larger than the memory that is free now" in warning
    assert not plan_memory(SMALL).warnings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_model_len": 9000}, ("9000", "8192 positions")),
        ({"max_model_len": 4096, "num_blocks": 10}, ("4096 tokens", "256 KV blocks", "are 10", "160 or less")),
        ({"kv_cache_memory_bytes": 1000}, ("a single KV block of 0.35 MiB.", "kv_cache_memory_bytes")),
        ({"kv_cache_memory_bytes": 9, "block_size": 1, "kv_bytes_per_token": 64}, ("a single KV block of 64 bytes.",)),
        ({"weight_bytes": 9 * GIB}, ("a single KV block", "90%", "7.20 GiB", "9.00 GiB")),
    ],
)
def test_what_does_not_fit_is_refused_with_the_arithmetic(change, words):
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory(dataclasses.replace(SMALL, **change))
    assert all(word in str(caught.value) for word in words), caught.value
