"""The clients: the same promises whether the engine is a thread or a child process; and what only processes can do."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octavo.core.events import Event, Finished, Generated, Refused, Stepped
from octavo.core.types import FinishReason
from octavo.engine.asks import CacheReset, ResetPrefixCache
from octavo.engine.client import CannotStart, EngineDead, EngineState
from octavo.engine.launch import InProcessClient, ProcessClient
from octavo.engine.process import BEAT_S
from octavo.engine.remote import RemoteClient
from tests.engine.replicas import ROOT, Plan, build, command, request

Client = RemoteClient
LIMIT_S = 60


def in_thread(plan: Plan) -> Client:
    return InProcessClient(build, plan.encode())


def in_child(plan: Plan) -> Client:
    client = ProcessClient(command)
    client.setup(plan.encode())
    return client


RUNNERS: dict[Any, Callable[[Coroutine[Any, Any, None]], None]] = {in_thread: asyncio.run, in_child: uvloop.run}
"""Both event loops that the client must work on; the server uses uvloop."""
both = pytest.mark.parametrize("start", [in_thread, in_child])


def with_engine(
    start: Callable[[Plan], Client], test: Callable[[Any], Coroutine[Any, Any, None]], plan: Plan | None = None
) -> None:
    """Runs `test` with a ready client, within a time that only a hang exceeds."""

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            client = start(plan or Plan())
            try:
                await client.wait_ready()
                await test(client)
            finally:
                await client.close()

    RUNNERS[start](run())


class Gate:
    """Where an engine waits before it draws a second token, in whatever process it is; see `Plan.gate`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.fd = os.open(path, os.O_RDWR)

    async def open(self) -> None:
        """Lets the engine go on, which by then can read all that it was sent."""
        await asyncio.sleep(0)
        os.write(self.fd, b"x")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    os.close(gate.fd)


async def collect(stream: AsyncIterator[tuple[Event, ...]]) -> list[Event]:
    return [event async for events in stream for event in events]


def tokens(events: list[Event]) -> list[int]:
    return [token.token for event in events if isinstance(event, Generated) for token in event.tokens]


def reasons(events: list[Event]) -> list[FinishReason]:
    return [event.reason for event in events if isinstance(event, Finished)]


async def rest(client: Client) -> None:
    """Returns once the engine holds nothing: a request of ours comes and goes, and leaves the gauges at zero."""
    gauges: list[Stepped] = []
    client.listen(lambda events: gauges.extend(event for event in events if isinstance(event, Stepped)))
    for number in range(100):
        await collect(client.submit(request(f"probe {number}", max_tokens=1)))
        if gauges[-1].num_running == gauges[-1].num_waiting == gauges[-1].blocks_leased == 0:
            return
    raise AssertionError(f"the engine does not come to rest: {gauges[-1]}")


@both
def test_each_stream_has_its_own_tokens(start):
    async def test(client: Client) -> None:
        alone = {name: tokens(await collect(client.submit(request(name)))) for name in ("a", "b")}
        together = await asyncio.gather(*(collect(client.submit(request(name))) for name in ("a", "b")))
        assert {name: tokens(events) for name, events in zip(("a", "b"), together, strict=True)} == alone
        assert alone["a"] != alone["b"] and len(alone["a"]) == 6

    with_engine(start, test)


@both
def test_two_hundred_streams_at_once(start):
    async def test(client: Client) -> None:
        names = [f"r{number}" for number in range(200)]
        got = await asyncio.gather(*(collect(client.submit(request(name, max_tokens=4))) for name in names))
        assert [reasons(events) for events in got] == [[FinishReason.LENGTH]] * 200
        assert {event.request_id for events in got for event in events} == set(names)
        assert all({event.request_id for event in events} == {name} for name, events in zip(names, got, strict=True))

    with_engine(start, test)


@both
def test_a_stream_ends_after_the_last_choice(start):
    async def test(client: Client) -> None:
        events = await collect(client.submit(request("a", n=3)))
        assert sorted(event.choice for event in events if isinstance(event, Finished)) == [0, 1, 2]

    with_engine(start, test)


@both
def test_a_refusal_is_the_whole_stream(start):
    async def test(client: Client) -> None:
        (refused,) = await collect(client.submit(request("a", length=1000)))
        assert isinstance(refused, Refused) and refused.code == "context_length_exceeded"

    with_engine(start, test)


@both
def test_a_second_request_of_the_same_id_is_refused_and_the_first_goes_on(start):
    async def test(client: Client) -> None:
        first = client.submit(request("a", max_tokens=20))
        (refused,) = await collect(client.submit(request("a", length=3)))
        assert isinstance(refused, Refused) and refused.code == "duplicate_id"
        events = await collect(first)
        assert reasons(events) == [FinishReason.LENGTH] and len(tokens(events)) == 20

    with_engine(start, test)


@both
def test_questions_have_their_answers(start):
    async def test(client: Client) -> None:
        await collect(client.submit(request("a")))
        first, second = await asyncio.gather(client.ask(ResetPrefixCache()), client.ask(ResetPrefixCache()))
        assert first.num_dropped > 0 and second == CacheReset(0, 0)

    with_engine(start, test)


def test_a_question_to_an_engine_that_dies_or_is_dead_fails():
    async def test(client: ProcessClient) -> None:
        os.kill(client.pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(client.ask(ResetPrefixCache()))
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        for question in (waiting, client.ask(ResetPrefixCache())):
            with pytest.raises(EngineDead):
                await question

    with_engine(in_child, test)


@both
def test_cancel_ends_the_stream(start, gate):
    async def test(client: Client) -> None:
        stream = client.submit(request("a", max_tokens=100))
        await anext(stream)
        client.cancel("a")
        client.cancel("nobody")
        await gate.open()
        events = await collect(stream)
        assert reasons(events) == [FinishReason.ABORT] and len(tokens(events)) <= 2

    with_engine(start, test, Plan(gate=gate.path))


@both
def test_cancelling_a_choice_ends_it_alone(start, gate):
    async def test(client: Client) -> None:
        stream = client.submit(request("a", max_tokens=20, n=3, temperature=1.0))
        await anext(stream)
        client.cancel("a", 7)
        client.cancel("a", 1)
        await gate.open()
        events = await collect(stream)
        of_choice = [[event for event in events if getattr(event, "choice", None) == choice] for choice in range(3)]
        assert len(tokens(of_choice[0])) == len(tokens(of_choice[2])) == 20 and len(tokens(of_choice[1])) <= 2
        assert [reasons(own) for own in of_choice] == [[FinishReason(end)] for end in ("length", "abort", "length")]
        await rest(client)

    with_engine(start, test, Plan(gate=gate.path))


@both
def test_cancelling_every_choice_ends_the_stream(start, gate):
    async def test(client: Client) -> None:
        stream = client.submit(request("a", max_tokens=20, n=2))
        await anext(stream)
        client.cancel("a", 1)
        client.cancel("a", 0)
        await gate.open()
        assert reasons(await collect(stream)) == [FinishReason.ABORT] * 2

    with_engine(start, test, Plan(gate=gate.path))


def takes(steps: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def take(stream: Any) -> None:
        for _ in range(steps):
            await anext(stream)

    return take


@both
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["drop", "aclose", "task"])
def test_a_dropped_stream_frees_its_blocks(start, steps, how):
    """Queued, half prefilled, decoding: behind another request, with three tokens a step."""

    async def test(client: Client) -> None:
        other = client.submit(request("other", max_tokens=30))
        stream = client.submit(request("a", length=20, max_tokens=100))
        await takes(steps)(stream)
        if how == "aclose":
            await stream.aclose()
            assert await collect(stream) == []
        elif how == "task":
            task = asyncio.create_task(collect(stream))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            del task
        del stream
        assert reasons(await collect(other)) == [FinishReason.LENGTH]
        await rest(client)

    with_engine(start, test, Plan(max_num_batched_tokens=3, max_num_seqs=3))


@both
def test_a_failing_step_hurts_only_its_requests(start):
    async def test(client: Client) -> None:
        assert reasons(await collect(client.submit(request("a", max_tokens=5)))) == [FinishReason.ERROR]
        assert reasons(await collect(client.submit(request("b", max_tokens=2)))) == [FinishReason.LENGTH]
        assert client.state is EngineState.READY

    with_engine(start, test, Plan(fault="decode-error@3"))


async def heard(client: Client, times: int) -> None:
    """Returns once the engine has given so many signs of life."""
    age_s = 0.0
    while times:
        await asyncio.sleep(0.005)
        age_s, before_s = client.heartbeat_age_s, age_s
        times -= age_s < before_s


async def silent(client: Client) -> None:
    """Returns once several beats in a row have not come."""
    while client.heartbeat_age_s < 4 * BEAT_S:
        await asyncio.sleep(0.005)


@both
def test_an_idle_engine_keeps_being_heard(start):
    with_engine(start, lambda client: heard(client, 2))


@both
def test_a_step_that_computes_for_long_keeps_being_heard(start, gate):
    async def test(client: Client) -> None:
        stream = client.submit(request("a"))
        await anext(stream)
        await heard(client, 4)
        await gate.open()
        assert reasons(await collect(stream)) == [FinishReason.LENGTH]

    with_engine(start, test, Plan(gate=gate.path, busy=True))


def test_a_step_that_waits_for_ever_falls_silent():
    async def test(client: ProcessClient) -> None:
        stream = client.submit(request("a"))
        await anext(stream)
        await silent(client)

    with_engine(in_child, test, Plan(fault="engine-freeze@2"))


def test_a_stopped_process_falls_silent_until_it_goes_on():
    async def test(client: ProcessClient) -> None:
        os.kill(client.pid, signal.SIGSTOP)
        await silent(client)
        os.kill(client.pid, signal.SIGCONT)
        await heard(client, 1)

    with_engine(in_child, test)


@both
def test_a_listener_hears_everything_and_cannot_break_anything(start, caplog):
    async def test(client: Client) -> None:
        heard: list[Event] = []

        def broken(_: Sequence[Event]) -> None:
            raise ZeroDivisionError

        client.listen(broken)
        client.listen(heard.extend)
        events = await collect(client.submit(request("a")))
        assert [event for event in heard if getattr(event, "request_id", "") == "a"] == events
        assert any(isinstance(event, Stepped) for event in heard)

    with_engine(start, test)
    assert "a listener failed" in caplog.text


async def is_dead(client: Client, error: type[EngineDead], words: str) -> None:
    with pytest.raises(EngineDead, match=words) as dead:
        await client.wait_ready()
    assert type(dead.value) is error and client.state is EngineState.DEAD
    with pytest.raises(error, match=words):
        await collect(client.submit(request("a")))
    with pytest.raises(error, match=words):
        _ = client.facts


@both
@pytest.mark.parametrize("crash", [False, True])
def test_an_engine_that_cannot_load_says_why(start, crash, capfd, caplog):
    """What was asked for and cannot be is a sentence; a crash has a traceback in the log as well."""

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            words = "broken at byte 7"
            client = start(Plan(broken=words) if crash else Plan(refused=words))
            if crash:
                await is_dead(client, EngineDead, f"^RuntimeError: {words}")
            else:
                await is_dead(client, CannotStart, f"^{words}$")
            await client.close()

    RUNNERS[start](run())
    assert ("Traceback" in capfd.readouterr().err + caplog.text) == crash


@both
def test_closing_ends_every_stream(start, gate):
    async def test(client: Client) -> None:
        stream = client.submit(request("a"))
        await anext(stream)
        closing = asyncio.ensure_future(client.close())
        await gate.open()  # by now it is closed on our side; a thread must end before `close` returns
        with pytest.raises(EngineDead):
            await collect(stream)
        assert isinstance(await client.wait_dead(), EngineDead)
        await closing
        await client.close()

    with_engine(start, test, Plan(gate=gate.path))


def test_death_by_signal_ends_all_streams_at_once(gate):
    async def test(client: ProcessClient) -> None:
        streams = [client.submit(request(f"r{number}", max_tokens=100)) for number in range(8)]
        await anext(streams[0])
        os.kill(client.pid, signal.SIGKILL)
        ends = await asyncio.gather(*map(collect, streams), return_exceptions=True)
        assert all(isinstance(end, EngineDead) and "SIGKILL" in str(end) for end in ends)
        assert client.state is EngineState.DEAD and "SIGKILL" in str(await client.wait_dead())

    with_engine(in_child, test, Plan(max_num_seqs=8, gate=gate.path))


def test_the_last_words_of_a_dying_child_are_told(capfd):
    async def run() -> None:
        code = "import sys; print('before', file=sys.stderr); sys.exit('something is missing')"
        client = ProcessClient(lambda fd: [sys.executable, "-c", code, "engine", str(fd)])
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(EngineDead, match=r"exit status 1.*\n.*before\nsomething is missing"):
                await client.wait_ready()
            await client.close()

    asyncio.run(run())
    assert "something is missing" in capfd.readouterr().err


def test_signals_to_the_group_do_not_end_the_child():
    async def test(client: ProcessClient) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.pid, number)
        assert reasons(await collect(client.submit(request("a")))) == [FinishReason.LENGTH]

    with_engine(in_child, test)


def gone(pid: int) -> Callable[[], bool]:
    """A function that waits for the process to end; True where it did."""
    fd = os.pidfd_open(pid)

    def wait() -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        ended = bool(poll.poll(LIMIT_S * 1000))
        os.close(fd)
        return ended

    return wait


PARENT = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from octavo.engine.launch import ProcessClient
from tests.engine.replicas import Plan, command, request

async def main():
    client = ProcessClient(command)
    client.setup(Plan(fault=sys.argv[1] or None).encode())
    await client.wait_ready()
    stream = client.submit(request("a", max_tokens=100))
    await anext(stream)
    print(client.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for a process that is no child needs Linux")
@pytest.mark.parametrize("fault", ["", "engine-freeze@2"])
def test_no_child_outlives_its_parent(fault):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, fault], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = gone(int(parent.stdout.readline()))
        parent.kill()
        assert child()


def test_a_frozen_engine_can_be_closed():
    async def test(client: ProcessClient) -> None:
        stream = client.submit(request("a"))
        await anext(stream)
        child = gone(client.pid)
        await client.close()
        assert child()

    with_engine(in_child, test, Plan(fault="engine-freeze@2"))
