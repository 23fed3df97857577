"""The loop, with the real scheduler over the ledger, through a port that a test writes down."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from octavo.core.audit import audit
from octavo.core.events import Audited, BlockEvicted, Finished, Generated, Refused, Stepped
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend, Capacity
from octavo.core.types import FinishReason
from octavo.engine.asks import Ask, CacheReset, ResetPrefixCache
from octavo.engine.loop import EngineLoop, Order, Question, Replica, Withdraw
from tests.engine.replicas import Plan, build, request
from tests.engine.script import Script, play


def run(plan: Plan, *turns: Sequence[Order]) -> tuple[Script, Replica]:
    replica = build(plan.encode(), lambda _: None)
    return play(replica, *turns), replica


def at_rest(replica: Replica) -> bool:
    return (
        not replica.scheduler.has_work and replica.scheduler.load().blocks_leased == 0 and not audit(replica.scheduler)
    )


def test_company_changes_nothing():
    alone = {name: run(Plan(), [request(name)])[0].tokens(name) for name in "abc"}
    script, replica = run(Plan(), [request("a"), request("b")], [], [request("c")])
    assert {name: script.tokens(name) for name in "abc"} == alone
    assert set(script.reasons().values()) == {FinishReason.LENGTH} and at_rest(replica)


def test_each_step_is_published_once_and_ends_with_the_gauges():
    script, _ = run(Plan(), [request("a", max_tokens=3)])
    steps = [events for events in script.published if any(isinstance(event, Generated) for event in events)]
    assert len(steps) == 3
    assert all(isinstance(events[-1], Stepped) for events in steps)


def test_a_refusal_is_told_at_once_and_hurts_nobody():
    script, _ = run(Plan(), [request("long", length=500), request("a")])
    assert any(isinstance(event, Refused) for event in script.published[0])
    assert script.reasons() == {"a": FinishReason.LENGTH}


def test_questions_are_answered_between_steps_and_after_their_events():
    replies: list[object] = []
    told: list[int] = []
    replica = build(Plan().encode(), lambda _: None)
    play(replica, [request("a")], [Question(ResetPrefixCache(), replies.append)])

    def note(reply: object) -> None:
        replies.append(reply)
        told.append(sum(isinstance(event, BlockEvicted) for event in script.events))

    script = Script([Question(ResetPrefixCache(), note)])
    EngineLoop(replica).run(script)
    assert replies == [CacheReset(0, 2), CacheReset(told[0], 0)] and told[0] > 0 and at_rest(replica)


def audited(replica: Replica, *turns: Sequence[Order]) -> list[Audited]:
    script = Script(*turns)
    EngineLoop(replace(replica, audits=True)).run(script)
    return [event for event in script.events if isinstance(event, Audited)]


def test_the_laws_are_checked_once_after_each_spell_of_work():
    replica = build(Plan().encode(), lambda _: None)
    told = audited(replica, [request("a", max_tokens=2)], [], [], [], [], [request("b", max_tokens=2)], [], [], [])
    assert [event.violations for event in told] == [(), ()]


def test_a_broken_law_is_told_and_logged(caplog):
    replica = build(Plan().encode(), lambda _: None)
    replica.scheduler.cache.pool.take()
    (told,) = audited(replica, [request("a", max_tokens=2)], [], [], [], [])
    assert any("counts 1 holders and has 0" in violation for violation in told.violations)
    assert "a law is broken" in caplog.text


class Odd(Ask[int]):
    reply = int


def test_a_question_that_cannot_be_answered_hurts_nobody_else():
    replies: list[object] = []
    script, replica = run(Plan(), [Question(Odd(), replies.append), request("a")])
    assert isinstance(replies[0], KeyError) and script.reasons() == {"a": FinishReason.LENGTH} and at_rest(replica)


@pytest.mark.parametrize("turns_before", range(6))
def test_a_withdrawn_request_ends_wherever_it_is(turns_before):
    waits = [[]] * turns_before
    script, replica = run(
        Plan(max_num_batched_tokens=3), [request("a", max_tokens=9), request("b")], *waits, [Withdraw("a")]
    )
    assert script.reasons() == {"a": FinishReason.ABORT, "b": FinishReason.LENGTH}
    assert at_rest(replica)


@pytest.mark.parametrize("turns_before", range(6))
@pytest.mark.parametrize("choice", [0, 2])
def test_a_withdrawn_choice_ends_alone(turns_before, choice):
    three = request("a", max_tokens=9, n=3, temperature=1.0)
    due, _ = run(Plan(max_num_batched_tokens=3), [three])
    script, replica = run(Plan(max_num_batched_tokens=3), [three], *[[]] * turns_before, [Withdraw("a", choice)])
    ends = {event.choice: event.reason for event in script.events if isinstance(event, Finished)}
    assert ends.pop(choice) is FinishReason.ABORT and set(ends.values()) == {FinishReason.LENGTH}
    assert all(script.scored("a", other) == due.scored("a", other) for other in ends)
    assert len(script.scored("a", choice)) < 9 and at_rest(replica)


def test_withdrawing_the_unknown_does_nothing():
    script, _ = run(Plan(), [request("a"), Withdraw("nobody"), Withdraw("a", 7)])
    assert script.reasons() == {"a": FinishReason.LENGTH}


def test_the_gauges_are_told_when_the_last_request_is_withdrawn():
    script, _ = run(Plan(), [request("a"), request("b")], [Withdraw("a"), Withdraw("b")])
    last = script.stepped()[-1]
    assert (last.num_running, last.num_waiting, last.blocks_leased) == (0, 0, 0)


def test_a_failing_step_ends_its_requests_and_no_other(caplog):
    script, replica = run(
        Plan(fault="decode-error@3"), [request("a", max_tokens=5)], [], [], [], [], [request("b", max_tokens=2)]
    )
    assert script.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    (ended,) = (event for event in script.events if isinstance(event, Finished) and event.request_id == "a")
    assert "InjectedError" in (ended.message or "")
    assert "Traceback" in caplog.text and at_rest(replica)


class Forgetful:
    """A backend whose results lack what was asked for, from the third step on."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._backend.execute(plan)
        return StepResult(plan.step) if plan.step > 2 else result

    def close(self) -> None:
        self._backend.close()


def test_a_result_that_answers_another_question_is_a_failed_step(caplog):
    replica = build(Plan().encode(), lambda _: None)
    broken = Replica(replica.scheduler, Forgetful(replica.backend), replica.facts)
    script = play(broken, [request("a", max_tokens=2), request("b", max_tokens=5)])
    assert script.reasons() == {"a": FinishReason.LENGTH, "b": FinishReason.ERROR}
    assert "Traceback" in caplog.text and at_rest(replica)


def test_an_interrupt_in_a_step_leaves_nothing_behind():
    class Interrupted(Forgetful):
        def execute(self, plan: StepPlan) -> StepResult:
            raise KeyboardInterrupt

    replica = build(Plan().encode(), lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        play(Replica(replica.scheduler, Interrupted(replica.backend), replica.facts), [request("a"), request("b")])
    assert at_rest(replica)
    assert play(replica, [request("a")]).reasons() == {"a": FinishReason.LENGTH}
