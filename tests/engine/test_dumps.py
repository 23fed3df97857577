"""When an engine writes its record down: a step that fails, a broken law, a stall, its end, and when it is asked."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core.plan import StepPlan
from octavo.core.scheduler import Scheduler
from octavo.engine import dump, dumps
from octavo.engine.asks import DumpWritten, WriteDump
from octavo.engine.dumps import Dumps
from octavo.engine.loop import MAX_STALLED, Question, Replica
from octavo.engine.recorder import RecordedScheduler
from octavo.engine.replaying import replay
from tests.engine.replicas import LIMITS, Plan, build, request
from tests.engine.script import play


def recorded(folder: Path, plan: Plan | None = None, **changes: object) -> Replica:
    replica = build((plan or Plan()).encode(), lambda _: None)
    return replace(replica, scheduler=RecordedScheduler(LIMITS), dumps=Dumps(folder, "ledger-1"), **changes)


def written(folder: Path) -> list[dump.Dump]:
    for thread in threading.enumerate():
        if thread.name == "dump":
            thread.join(60)
    return [dump.read(path) for path in sorted(folder.glob("*"))]


def test_a_step_that_fails_is_written_down_and_replayed_to_its_end(tmp_path: Path) -> None:
    replica = recorded(tmp_path, Plan(fault="decode-error@3"))
    play(replica, [request("a", max_tokens=5)], [], [], [], [], [request("b", max_tokens=2)])
    (told,) = written(tmp_path)
    assert (told.reason, told.fingerprint) == ("step failed", "ledger-1") and "InjectedError" in told.message
    assert isinstance(told.record.entries[-1], dump.Failed) and told.snapshot is not None
    found = replay(told.record)
    assert found.difference is None and found.raised is None and found.num_plans == 3


def test_of_many_failures_one_is_written_down_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = recorded(tmp_path)
    writer = replica.dumps
    assert writer is not None
    for _ in range(3):
        writer.soon(replica.scheduler, "step failed", "")
    assert len(written(tmp_path)) == 1
    monkeypatch.setattr(dumps, "PAUSE_S", -1.0)
    writer._next_s = 0.0
    for _ in range(2):
        writer.soon(replica.scheduler, "step failed", "")
    assert len(written(tmp_path)) == 3


def test_a_broken_law_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.loop.audit", lambda scheduler: ("blocks_add_up: they do not",))
    play(recorded(tmp_path, audits=True), [request("a", max_tokens=2)], [], [], [])
    (told,) = written(tmp_path)
    assert (told.reason, told.message) == ("law broken", "blocks_add_up: they do not")
    assert replay(told.record).difference is None


def test_a_stall_and_the_end_that_follows_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Scheduler, now: float) -> StepPlan:
        return StepPlan(self.step + 1)

    monkeypatch.setattr(Scheduler, "plan", nothing)
    with pytest.raises(RuntimeError, match=f"{MAX_STALLED} plans in a row"):
        play(recorded(tmp_path), [request("a")], *[[]] * MAX_STALLED)
    told = {each.reason: each for each in written(tmp_path)}
    assert told.keys() == {"stalled", "engine died"} and "RuntimeError" in told["engine died"].message
    monkeypatch.undo()
    found = replay(told["engine died"].record)
    assert found.difference is not None and found.difference.step == 1 and found.difference.replayed


def test_policy_that_breaks_ends_the_engine_and_is_written_down_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("policy is broken")

    monkeypatch.setattr("octavo.core.endings.Endings.drop", explode)
    with pytest.raises(ZeroDivisionError):
        play(recorded(tmp_path), [request("a", max_tokens=2)])
    (told,) = written(tmp_path)
    assert told.reason == "engine died"
    found = replay(told.record)
    assert (found.raised, found.broke) == ("ZeroDivisionError: policy is broken", True), "it breaks again, as then"


def ask(replica: Replica) -> object:
    replies: list[object] = []
    done = threading.Event()

    def note(reply: object) -> None:
        replies.append(reply)
        done.set()

    play(replica, [request("a")], [Question(WriteDump(), note)])
    assert done.wait(60)
    return replies[0]


def test_who_asks_is_told_the_file(tmp_path: Path) -> None:
    reply = ask(recorded(tmp_path))
    assert isinstance(reply, DumpWritten)
    told = dump.read(Path(reply.path))
    assert told.reason == "asked for" and told.snapshot is not None and told.snapshot.num_requests == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda replica, folder: replace(replica, dumps=None), "--crash-dump-dir is off"),
        (lambda replica, folder: replace(replica, dumps=Dumps(folder / "file" / "x", "")), "Not a directory"),
    ],
)
def test_who_asks_in_vain_is_told_why(tmp_path: Path, spoil: Callable[[Replica, Path], Replica], words: str) -> None:
    (tmp_path / "file").write_text("")
    reply = ask(spoil(recorded(tmp_path), tmp_path))
    assert isinstance(reply, Exception) and words in str(reply)
