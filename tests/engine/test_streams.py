"""One request's events on their way to whoever iterates: in order, each once, whoever takes them at once."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.events import Event, Finished, Generated
from octavo.core.plan import ScoredToken
from octavo.core.types import FinishReason
from octavo.engine.client import EngineDead, Events
from octavo.engine.streams import EventStream, Mailbox
from tests.engine.replicas import request

TURN, TAKE, LEAVE, TOUCH, FAIL = "turn", "take", "leave", "touch", "fail"
"""The iterator gets a turn; or a step comes, which who takes at once takes, leaves, takes to the end, or fails on."""
END = Finished("a", 0, 0.0, FinishReason.LENGTH)


def step(number: int) -> Events:
    return (Generated("a", 0, 0.0, (ScoredToken(number),)),)


@dataclass
class Reader:
    """Iterates, and takes at once as the story says; what it saw, in order, and by which way."""

    stream: EventStream
    seen: list[Event] = field(default_factory=list)
    turns: int = 0
    how: str = TAKE

    def at_once(self, events: Events) -> Events | None:
        if self.how == FAIL:
            raise ZeroDivisionError
        if self.how == LEAVE or events == (END,):
            return events
        self.seen += events
        return () if self.how == TOUCH else None

    async def run(self) -> None:
        self.stream.at_once(self.at_once)
        async for events in self.stream:
            self.turns += 1
            self.seen += events
            await asyncio.sleep(0)  # something that takes its time: steps that come meanwhile must wait


@given(st.lists(st.sampled_from([TURN, TURN, TAKE, LEAVE, TOUCH, FAIL]), max_size=30))
def test_each_step_is_seen_once_and_in_order(story: list[str]) -> None:
    async def run() -> None:
        mailbox = Mailbox(request("a"))
        reader = Reader(EventStream(mailbox, lambda: None))
        task = asyncio.ensure_future(reader.run())
        sent: list[Event] = []
        for number, what in enumerate(story):
            if what == TURN:
                await asyncio.sleep(0)
            else:
                reader.how = what
                mailbox.put(step(number))
                sent += step(number)
        reader.how = LEAVE
        mailbox.put((END,))
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if outcome is None:
            assert reader.seen == [*sent, END]
        else:
            assert isinstance(outcome, ZeroDivisionError) and FAIL in story
            assert reader.seen == sent[: len(reader.seen)]

    asyncio.run(run())


def test_a_step_that_is_taken_at_once_wakes_nobody() -> None:
    async def run() -> None:
        mailbox = Mailbox(request("a"))
        reader = Reader(EventStream(mailbox, lambda: None))
        task = asyncio.ensure_future(reader.run())
        await asyncio.sleep(0)
        for number in range(100):
            mailbox.put(step(number))
            await asyncio.sleep(0)
        assert reader.turns == 0 and len(reader.seen) == 100
        reader.how = TOUCH
        mailbox.put(step(100))
        await asyncio.sleep(0)
        assert reader.turns == 1 and len(reader.seen) == 101
        mailbox.fail(EngineDead("gone"))
        with pytest.raises(EngineDead):
            await task

    asyncio.run(run())


def test_nobody_takes_at_once_what_comes_after_the_stream_was_closed() -> None:
    async def run() -> None:
        abandoned: list[str] = []
        mailbox = Mailbox(request("a"))
        reader = Reader(EventStream(mailbox, lambda: abandoned.append("a")))
        task = asyncio.ensure_future(reader.run())
        await asyncio.sleep(0)
        await reader.stream.aclose()
        mailbox.put(step(0))
        await task
        assert abandoned == ["a"] and reader.turns == 1

    asyncio.run(run())
