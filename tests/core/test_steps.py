"""What goes into a step: decodes first, budgets, caps, chunks, order, backfill, and that something always advances."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest

from octavo.core.events import Admitted, Generated, Stepped
from octavo.core.plan import StepPlan, StepResult
from octavo.core.policies import FOR_EACH_DECODE, MOST_BESIDE, PATIENCE_S, beside_decodes
from octavo.core.scheduler import MAX_PASSED
from octavo.core.types import FinishReason
from tests.core.replica import Replica, alone, limits, request


def shape(plan: StepPlan) -> list[tuple[str, int]]:
    return [(work.request_id, len(work.tokens)) for work in plan.work]


def test_nothing_to_do_is_a_plan_without_work_and_nothing_in_flight() -> None:
    replica = Replica(limits())
    for _ in range(2):
        plan = replica.plan()
        assert plan.work == () and plan.step == 1
    assert not replica.scheduler.has_work and replica.scheduler.in_flight is None


def test_decodes_come_first_and_prefills_get_the_rest() -> None:
    replica = Replica(limits(max_num_batched_tokens=8))
    replica.submit(request("a", [1] * 4, max_tokens=9))
    replica.step()
    replica.submit(request("b", [2] * 20))
    assert shape(replica.step()) == [("a", 1), ("b", 7)]
    assert shape(replica.step()) == [("a", 1), ("b", 7)]
    assert shape(replica.step()) == [("a", 1), ("b", 6)]
    assert shape(replica.step()) == [("a", 1), ("b", 1)]
    replica.run()


def test_prompts_take_a_part_of_the_steps_in_which_others_wait_for_a_next_token() -> None:
    replica = Replica(limits(max_num_batched_tokens=16, prefill_tokens_beside_decodes=5))
    replica.submit(request("a", [1] * 12, max_tokens=3))
    assert shape(replica.step()) == [("a", 12)], "nobody decodes"
    replica.submit(request("b", [2] * 12), request("c", [3] * 5))
    assert shape(replica.step()) == [("a", 1), ("b", 5)], "c fits no more"
    assert shape(replica.step()) == [("a", 1), ("b", 5)]
    assert shape(replica.step()) == [("b", 2), ("c", 5)], "nobody decodes any more"
    replica.run()


def test_a_part_that_grows_with_the_decodes_in_the_step() -> None:
    replica = Replica(limits(num_blocks=40, max_num_batched_tokens=16, prefill_tokens_beside_decodes=3))
    replica.submit(*[request(f"d{i}", [i], max_tokens=9) for i in range(2)])
    replica.step()
    replica.submit(request("p", [3] * 30))
    assert shape(replica.step()) == [("d0", 1), ("d1", 1), ("p", 2 * FOR_EACH_DECODE)]
    replica.run()


def test_what_prompts_get_beside_decodes() -> None:
    assert beside_decodes(2048, 3, 64, 0.0, 2048) == 64
    assert beside_decodes(2048, 30, 64, 0.0, 2048) == 30 * FOR_EACH_DECODE
    assert beside_decodes(2048, 3, 64, PATIENCE_S, 2048) == 128, "once more for those who have waited so long"
    assert beside_decodes(2048, 3, 64, 1e9, 2048) == 2048 // MOST_BESIDE, "within bounds"
    assert beside_decodes(2048, 300, 64, 1e9, 2048) == 300 * FOR_EACH_DECODE, "which take nothing away"
    assert beside_decodes(6, 2, 64, 1e9, 2048) == 6, "never more than the step has"
    assert beside_decodes(600, 200, 0, 0.0, 2048) == 600, "nor less, without a limit"


@pytest.mark.parametrize(("slots", "token", "grows"), [(3, 3, True), (3, 2, True), (2, 3, False)])
def test_the_longer_others_wait_for_tokens_the_more_prompts_get(slots: int, token: int, grows: bool) -> None:
    """Of two prompts the second waits: for tokens, for a block of the first, or for a slot, which no tokens give."""
    replica = Replica(
        limits(num_blocks=60, max_num_batched_tokens=64, prefill_tokens_beside_decodes=1, max_num_seqs=slots)
    )
    replica.submit(request("d", [1], max_tokens=20))
    replica.step()
    replica.submit(request("p", [2] * 60, max_tokens=1), request("q", [token] * 60, max_tokens=1))
    parts = [replica.step().num_tokens - 1 for _ in range(5)]
    assert parts[0] == FOR_EACH_DECODE
    assert parts == sorted(parts)
    assert parts[-1] == (64 // MOST_BESIDE if grows else FOR_EACH_DECODE)
    replica.run()


def test_nobody_inherits_what_others_have_waited() -> None:
    replica = Replica(limits(num_blocks=60, max_num_batched_tokens=64, prefill_tokens_beside_decodes=1))
    replica.submit(request("d", [1], max_tokens=20))
    replica.step()
    replica.submit(request("p", [2] * 60), request("q", [3] * 60))
    for _ in range(3):
        replica.step()
    for name in ("d", "p", "q"):
        replica.cancel(name)
    replica.now += 3600
    replica.submit(request("e", [4], max_tokens=20))
    replica.step()
    replica.submit(request("r", [5] * 60), request("s", [6] * 60))
    assert replica.step().num_tokens - 1 == FOR_EACH_DECODE
    replica.run()


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
@pytest.mark.parametrize("caching", [True, False])
def test_the_longest_prompt_passes_through_the_smallest_budget(budget: int, caching: bool) -> None:
    replica = Replica(limits(max_num_batched_tokens=budget, max_model_len=40, enable_prefix_caching=caching))
    replica.submit(request("r", [i % 8 for i in range(39)], max_tokens=1))
    assert replica.run() == -(-39 // budget)
    assert replica.outcomes["r"].reasons() == [FinishReason.LENGTH]


def test_no_more_choices_run_than_the_cap() -> None:
    replica = Replica(limits(max_num_seqs=2))
    replica.submit(*[request(f"r{i}", [i], max_tokens=3) for i in range(5)])
    while replica.scheduler.has_work:
        assert len(replica.step().work) <= 2
    assert all(outcome.reasons() for outcome in replica.outcomes.values())


def test_choices_to_come_are_counted_when_their_prompt_starts() -> None:
    replica = Replica(limits(max_num_seqs=3))
    replica.submit(request("a", [1], max_tokens=4), request("three", [2], n=3, max_tokens=2), request("b", [3]))
    assert [name for name, _ in shape(replica.step())] == ["a", "b"], "three choices do not fit beside one"
    replica.run()


def test_a_long_prompt_does_not_block_short_ones() -> None:
    replica = Replica(limits(num_blocks=40, max_model_len=100, max_num_batched_tokens=16))
    replica.submit(request("long", [1] * 80), *[request(f"s{i}", [i + 2] * 4, max_tokens=1) for i in range(3)])
    assert shape(replica.step()) == [("long", 8), ("s0", 4), ("s1", 4)]
    assert shape(replica.step()) == [("long", 12), ("s2", 4)], "what short ones leave goes to the long one"
    assert shape(replica.step()) == [("long", 16)]
    replica.run()


def test_nor_do_many_long_prompts_or_many_equal_ones() -> None:
    roomy = limits(num_blocks=400, max_model_len=100, max_num_batched_tokens=16, max_num_seqs=60)
    replica = Replica(roomy)
    replica.submit(*[request(f"long{i}", [i % 8] * 9 + [i // 8] * 60) for i in range(15)])
    replica.submit(*[request(f"equal{i}", [5, 6] * 12) for i in range(15)], request("short", [7] * 3))
    assert [name for name, _ in shape(replica.step())] == ["long0", "short"]


def test_fill_gives_the_first_in_order_all_it_can_take() -> None:
    replica = Replica(limits(num_blocks=40, max_model_len=100, max_num_batched_tokens=16), chunk="fill")
    replica.submit(request("long", [1] * 40), request("short", [2] * 4, max_tokens=1))
    assert [shape(replica.step()) for _ in range(3)] == [[("long", 16)], [("long", 16)], [("long", 8), ("short", 4)]]


@pytest.mark.parametrize("threshold", [1, 3, 5])
def test_a_chunk_is_never_longer_than_the_threshold(threshold: int) -> None:
    replica = Replica(limits(long_prefill_token_threshold=threshold))
    replica.submit(request("r", [1] * 13, max_tokens=1))
    assert replica.run() == -(-13 // threshold)
    assert max(len(work.tokens) for plan in replica.plans for work in plan.work) == threshold


@pytest.mark.parametrize("partials", [1, 2, 3])
def test_at_most_so_many_prompts_are_half_computed(partials: int) -> None:
    replica = Replica(limits(num_blocks=40, max_num_partial_prefills=partials, long_prefill_token_threshold=4))
    replica.submit(*[request(f"r{i}", [i] * 8, max_tokens=1) for i in range(4)])
    assert shape(replica.step()) == [(f"r{i}", 4) for i in range(partials)]
    replica.run()


def test_first_come_first_served() -> None:
    replica = Replica(limits(max_num_seqs=1))
    replica.submit(*[request(f"r{i}", [1, 2], max_tokens=2, priority=-i) for i in range(4)])
    replica.run()
    assert [e.request_id for e in replica.events if isinstance(e, Admitted)] == ["r0", "r1", "r2", "r3"]


def test_priority_goes_before_arrival() -> None:
    replica = Replica(limits(max_num_seqs=1, scheduling_policy="priority"))
    for i, priority in enumerate([2, 1, 0, 1]):
        replica.submit(request(f"r{i}", [1, 2], max_tokens=2, priority=priority))
    replica.run()
    assert [e.request_id for e in replica.events if isinstance(e, Admitted)] == ["r2", "r1", "r3", "r0"]


def test_smaller_ones_pass_a_head_that_waits_for_blocks() -> None:
    replica = Replica(limits(num_blocks=6, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("holder", [1] * 12, max_tokens=4))
    replica.step()
    replica.submit(request("large", [2] * 20, max_tokens=1), request("small", [3] * 4, max_tokens=1))
    assert [name for name, _ in shape(replica.step())] == ["holder", "small"]
    replica.run()
    assert not replica.preemptions()


def test_a_head_lets_only_so_many_pass() -> None:
    """With an endless stream of small requests, the large one still gets its turn."""
    replica = Replica(limits(num_blocks=6, enable_prefix_caching=False), watermark=0.0)
    replica.submit(request("first", [1] * 8, max_tokens=5), request("large", [2] * 20, max_tokens=2))
    for i in range(2 * MAX_PASSED):
        replica.submit(request(f"small{i}", [3] * 4, max_tokens=5))
        replica.step()
    admitted = [event.request_id for event in replica.events if isinstance(event, Admitted)]
    assert "large" in admitted
    assert MAX_PASSED <= admitted.index("large") <= MAX_PASSED + 4
    replica.run(max_steps=2000)


def test_every_step_advances_something_while_there_is_work() -> None:
    """`Replica.step` asserts it; here with everything scarce at once."""
    scarce = limits(num_blocks=6, block_size=2, max_num_seqs=3, max_num_batched_tokens=2, max_model_len=10)
    replica = Replica(scarce)
    replica.submit(*[request(f"r{i}", [i % 3] * (1 + i % 5), max_tokens=4, n=1 + i % 2) for i in range(12)])
    replica.run(max_steps=400)
    assert all(set(outcome.reasons()) == {FinishReason.LENGTH} for outcome in replica.outcomes.values())


def test_a_table_is_the_same_object_while_it_does_not_grow() -> None:
    replica = Replica(limits(block_size=4))
    replica.submit(request("r", [1] * 5, max_tokens=8))
    replica.run()
    tables = [work.block_ids for plan in replica.plans for work in plan.work]
    assert len(tables) == 8
    for before, after in pairwise(tables):
        assert after is before or (len(after) == len(before) + 1 and after[: len(before)] == before)
    assert len({id(table) for table in tables}) == 2


def test_a_plan_is_plain_data() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1] * 5, n=2, temperature=1.0, repetition_penalty=1.1, prompt_logprobs=1))
    replica.run()
    for plan in replica.plans:
        assert json.loads(json.dumps(asdict(plan)))["step"] == plan.step
        assert hash(plan) == hash(plan), "frozen all the way down"


def test_time_is_an_argument_and_gauges_add_up() -> None:
    replica = Replica(limits())
    replica.scheduler.submit(request("r", [1] * 6, max_tokens=3), 5.0)
    plan = replica.scheduler.plan(6.0)
    events = replica.scheduler.commit(plan, replica.ledger.execute(plan), 7.5)
    assert [event.time_s for event in events if isinstance(event, Admitted | Generated)] == [6.0, 7.5]
    stepped = events[-1]
    assert isinstance(stepped, Stepped) and stepped.time_s == 7.5 and stepped.step == 1 and stepped.num_tokens == 6
    assert stepped.blocks_blank + stepped.blocks_cached + stepped.blocks_leased == 12
    assert stepped.timings_s == {"execute": 0.0}


def test_one_plan_at_a_time() -> None:
    replica = Replica(limits())
    replica.submit(request("r", [1]))
    plan = replica.plan()
    with pytest.raises(RuntimeError, match="step 1 is in flight"):
        replica.plan()
    with pytest.raises(ValueError, match="not in flight"):
        replica.scheduler.commit(StepPlan(1), StepResult(1), 0.0)
    replica.commit(plan)
    with pytest.raises(ValueError, match="not in flight: no step is"):
        replica.scheduler.fail(plan, "late", 0.0)


def test_a_result_that_is_no_answer_changes_nothing() -> None:
    replica = Replica(limits())
    replica.submit(request("a", [1]), request("b", [2]))
    plan = replica.plan()
    good = replica.ledger.execute(plan)
    a, b = good.results
    bad = [(a,), (b, a), (a, type(b)("b", 0)), (a, type(b)("b", 1, b.sampled))]
    for results in bad:
        with pytest.raises(ValueError, match=r"answer|result"):
            replica.scheduler.commit(plan, StepResult(plan.step, results), 0.0)
        replica.check()
    with pytest.raises(ValueError, match="no answer"):
        replica.scheduler.commit(plan, StepResult(plan.step + 1, good.results), 0.0)
    replica.commit_result(plan, good)
    replica.run()
    assert replica.outcomes["a"].ids() == alone(request("a", [1]), limits()).ids()
