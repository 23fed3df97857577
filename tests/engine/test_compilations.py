"""Compilations beside the loop: held requests, and those that do not notice."""

import threading
from collections.abc import Sequence

import pytest

from octavo.core.events import Event, Finished, Generated
from octavo.core.ports import Guide
from octavo.core.structured import StructuredOutput
from octavo.core.types import FinishReason
from octavo.engine.compilations import NUM_THREADS, PATIENCE_S, Compilations
from octavo.engine.loop import EngineLoop, Order, Replica, Withdraw
from tests.core.words import one_of, word_guide
from tests.engine.replicas import LIMITS, Plan, build, request
from tests.engine.script import Script, play


def compile(output: StructuredOutput) -> Guide:
    return word_guide(output, LIMITS.vocab_size)


def replica(compile=compile) -> Replica:
    made = build(Plan().encode(), lambda _: None)
    return Replica(made.scheduler, made.backend, made.facts, compile)


def test_an_answer_is_kept_to_its_form():
    script = play(replica(), [request("a", max_tokens=9, structured_outputs=one_of("3141", "272")), request("b")])
    assert "".join(map(str, script.tokens("a"))) in ("3141", "272")
    assert script.reasons() == {"a": FinishReason.STOP, "b": FinishReason.LENGTH}


class Gate:
    """A compiler that waits until it may."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, output: StructuredOutput) -> Guide:
        assert self.open.wait(PATIENCE_S)
        return compile(output)


class Opening(Script):
    """Opens the gate once a request has ended."""

    def __init__(self, gate: Gate, *turns: Sequence[Order]) -> None:
        super().__init__(*turns)
        self._gate = gate

    def publish(self, events: Sequence[Event]) -> None:
        super().publish(events)
        if any(isinstance(event, Finished) for event in events):
            self._gate.open.set()


def turned(made: Replica, script: Script) -> Script:
    EngineLoop(made).run(script)
    return script


def test_steps_go_on_while_something_compiles():
    gate = Gate()
    orders = [request("held", structured_outputs=one_of("31")), request("b", max_tokens=5)]
    script = turned(replica(gate), Opening(gate, orders))
    order = [event.request_id for event in script.events if isinstance(event, Generated | Finished)]
    assert order == ["b"] * 6 + ["held"] * 3
    assert {event.num_held for event in script.stepped()[:3]} == {1} and script.stepped()[-1].num_held == 0


def test_a_held_request_can_be_withdrawn_and_its_guide_is_dropped():
    gate = Gate()
    script = turned(
        replica(gate), Opening(gate, [request("held", structured_outputs=one_of("31"))], [], [Withdraw("held")])
    )
    assert script.reasons() == {"held": FinishReason.ABORT}
    assert script.stepped()[-1].num_waiting == 0


def test_what_nobody_waits_for_is_not_begun():
    gate, begun = Gate(), list[str]()

    def noted(output: StructuredOutput) -> Guide:
        begun.append(output.text)
        return gate(output)

    waiting = Compilations(noted)
    for name in "123456":
        waiting.start(name, one_of(name))
    for name in "456":
        waiting.drop(name)
    gate.open.set()
    done = set[str]()
    while waiting.pending:
        done |= {name for name, _ in waiting.take(PATIENCE_S)}
    assert done == set(begun) == {"1", "2", "3"}


@pytest.mark.parametrize("wrong", [ValueError("it is no form"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_what_cannot_be_compiled_ends_its_request_alone(wrong: BaseException, caplog: pytest.LogCaptureFixture):
    def failing(output: StructuredOutput) -> Guide:
        raise wrong

    script = play(replica(failing), [request("a", structured_outputs=one_of("1")), request("b", max_tokens=3)])
    assert script.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    (ended,) = (event for event in script.events if isinstance(event, Finished) and event.request_id == "a")
    assert ended.code == "structured_outputs" and ended.message is not None
    assert ("it is no form" in ended.message) == isinstance(wrong, ValueError)
    assert ("Traceback" in caplog.text) == (not isinstance(wrong, ValueError))


def test_an_engine_without_a_compiler_says_so():
    script = play(build(Plan().encode(), lambda _: None), [request("a", structured_outputs=one_of("1"))])
    (ended,) = (event for event in script.events if isinstance(event, Finished))
    assert "no grammar compiler" in (ended.message or "")


def test_a_refused_request_is_not_compiled():
    def never(output: StructuredOutput) -> Guide:
        raise AssertionError("a refused request was compiled")

    play(replica(never), [request("a", length=500, structured_outputs=one_of("1"))])


def test_who_waits_too_long_is_told():
    time_s, gate = 0.0, Gate()
    waiting = Compilations(gate, clock=lambda: time_s)
    waiting.start("a", one_of("1"))
    assert waiting.take() == [] and waiting.pending
    time_s = PATIENCE_S + 1
    [(name, message)] = waiting.take()
    assert name == "a" and isinstance(message, str) and "60 s" in message
    gate.open.set()
    waiting.start("b", one_of("2"))
    told: list[str] = []
    while waiting.pending:  # the outcome that comes too late may come alone, and is dropped
        told += [name for name, _ in waiting.take(PATIENCE_S)]
    assert told == ["b"]


def test_there_are_few_threads_and_all_is_done():
    running, most, lock = 0, 0, threading.Lock()

    def counted(output: StructuredOutput) -> Guide:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        guide = compile(output)
        with lock:
            running -= 1
        return guide

    waiting = Compilations(counted)
    names = {f"r{i}" for i in range(50)}
    for name in names:
        waiting.start(name, one_of("12"))
    done = set[str]()
    while waiting.pending:
        done |= {name for name, _ in waiting.take(PATIENCE_S)}
    assert done == names and 1 <= most <= NUM_THREADS
