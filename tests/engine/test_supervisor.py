"""One engine after the other: real children that are killed, frozen, and cannot start, behind one client."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from octavo.core.events import EngineLost, Event
from octavo.engine.asks import ResetPrefixCache
from octavo.engine.client import CannotStart, EngineDead, EngineState
from octavo.engine.launch import ProcessClient
from octavo.engine.supervisor import Patience, Supervisor
from tests.engine.replicas import Plan, command, request
from tests.engine.test_clients import LIMIT_S, collect, tokens

EAGER = Patience(pauses_s=(0.0, 0.0, 0.01), failed_starts=2)


def child(plan: Plan) -> ProcessClient:
    client = ProcessClient(command)
    client.setup(plan.encode())
    return client


class Row:
    """A supervisor, and the engines that it started. The first plan is for the first engine, the last for all after."""

    def __init__(self, plans: tuple[Plan, ...], patience: Patience) -> None:
        self.engines = [child(plans[0])]
        self.events: list[Event] = []
        self._plans = plans
        self.client = Supervisor(self.engines[0], self._another, patience)
        self.client.listen(self.events.extend)

    def _another(self) -> ProcessClient:
        plan = self._plans[min(len(self.engines), len(self._plans) - 1)]
        self.engines.append(child(plan))
        return self.engines[-1]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.engines[-1].pid, how)

    async def absent(self) -> None:
        while self.client.state is EngineState.READY:
            await asyncio.sleep(0.001)


def with_row(story: Callable[[Row], Awaitable[None]], *plans: Plan, patience: Patience = EAGER) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            row = Row(plans or (Plan(),), patience)
            try:
                await story(row)
            finally:
                await row.client.close()
            assert all(engine._process.poll() is not None for engine in row.engines), "an engine outlived its client"

    uvloop.run(run())


@pytest.mark.parametrize("settle_s", [0.0, 1.0])
def test_after_each_death_there_is_another_engine_that_answers_the_same(settle_s: float) -> None:
    async def story(row: Row) -> None:
        await row.client.wait_ready()
        before = tokens(await collect(row.client.submit(request("a"))))
        for number in (1, 2, 3):
            stream = row.client.submit(request("long", max_tokens=100))
            await anext(stream)
            row.kill()
            with pytest.raises(EngineDead, match="SIGKILL"):
                await collect(stream)
            await row.absent()
            with pytest.raises(EngineDead):
                await collect(row.client.submit(request("between")))
            with pytest.raises(EngineDead):
                await row.client.ask(ResetPrefixCache())
            assert row.client.progress == "the engine has died"
            while row.client.state is not EngineState.READY and "SIGKILL" not in row.client.progress:
                await asyncio.sleep(0.001)
            await row.client.wait_ready()
            assert len(row.engines) == number + 1
            assert tokens(await collect(row.client.submit(request("a")))) == before
            assert sum(isinstance(event, EngineLost) for event in row.events) == number

    with_row(story, Plan(settle_s=settle_s))


def test_an_engine_that_is_frozen_is_replaced() -> None:
    async def story(row: Row) -> None:
        await row.client.wait_ready()
        stream = row.client.submit(request("a", max_tokens=100))
        row.kill(signal.SIGSTOP)
        with pytest.raises(EngineDead, match="no sign of life"):
            await collect(stream)
        await row.absent()
        await row.client.wait_ready()
        assert await collect(row.client.submit(request("b")))

    with_row(story, patience=Patience(silence_s=1.2, pauses_s=(0.0,)))


def test_a_first_engine_that_cannot_start_is_the_last() -> None:
    async def story(row: Row) -> None:
        with pytest.raises(CannotStart, match="too large"):
            await row.client.wait_ready()
        assert isinstance(await row.client.wait_dead(), CannotStart)
        assert len(row.engines) == 1 and row.client.state is EngineState.DEAD

    with_row(story, Plan(refused="too large"))


@pytest.mark.parametrize(
    "plan", [Plan(refused="no memory left"), Plan(broken="no memory left")], ids=["refused", "broken"]
)
def test_several_in_a_row_that_do_not_start_end_it(plan: Plan) -> None:
    async def story(row: Row) -> None:
        await row.client.wait_ready()
        row.kill()
        error = await row.client.wait_dead()
        assert not isinstance(error, CannotStart) and "2 engines in a row" in str(error) and "no memory" in str(error)
        assert len(row.engines) == 3
        with pytest.raises(EngineDead, match="in a row"):
            await row.client.wait_ready()
        with pytest.raises(EngineDead, match="in a row"):
            await collect(row.client.submit(request("a")))

    with_row(story, Plan(), plan)


def test_pauses_grow_in_a_row_of_deaths_and_a_steady_engine_ends_the_row(caplog: pytest.LogCaptureFixture) -> None:
    pauses_s = (0.0, 0.001, 0.002)

    async def deaths(row: Row, number: int) -> None:
        for _ in range(number):
            await row.client.wait_ready()
            row.kill()
            while row.client.state is EngineState.READY:
                await asyncio.sleep(0.001)
        await row.client.wait_ready()

    def announced() -> list[float]:
        told = [record.args for record in caplog.records if "another one is started in" in record.msg]
        caplog.clear()
        return [args[0] for args in told if isinstance(args, tuple)]

    with_row(lambda row: deaths(row, 4), patience=Patience(pauses_s=pauses_s))
    assert announced() == [0.0, 0.001, 0.002, 0.002]
    with_row(lambda row: deaths(row, 3), patience=Patience(pauses_s=pauses_s, steady_s=0))
    assert announced() == [0.0, 0.0, 0.0]


def test_closing_it_while_an_engine_starts_leaves_none() -> None:
    async def story(row: Row) -> None:
        await row.client.wait_ready()
        row.kill()
        await row.absent()

    with_row(story)


def test_where_no_process_can_be_started_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(row: Row) -> None:
        await row.client.wait_ready()
        another, failures = row._another, [OSError("no more processes")]

        def sometimes() -> ProcessClient:
            if failures:
                raise failures.pop()
            return another()

        monkeypatch.setattr(row.client, "_another", sometimes)
        row.kill()
        await row.absent()
        await row.client.wait_ready()
        assert not failures and await collect(row.client.submit(request("a")))

    with_row(story)
