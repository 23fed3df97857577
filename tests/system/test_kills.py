"""`kill -9` of the engine under load, with `--on-engine-failure restart`: who is told what, and that service returns.

Time is reported, never asserted: what is asserted is the order of things.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.scrape import Scrape
from tests.system.serving import EXIT_S, Served, serving
from tests.system.wishes import careful_wish

Json = dict[str, Any]
FLAGS = ("--max-model-len", "640", "--max-num-seqs", "4", "--max-num-batched-tokens", "64")
RESTARTING = (*FLAGS, "--on-engine-failure", "restart", "--kv-offload-bytes", "16MiB", "--audit")
WAY = "SIGKILL"

LONG: Json = {"ignore_eos": True, "stream": True, "temperature": 0}
STREAMS: list[tuple[str, Json]] = [
    ("/v1/completions", {**LONG, "prompt": "The sea", "max_tokens": 500}),
    ("/v1/chat/completions", {**LONG, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}),
    ("/v1/responses", {**LONG, "input": "Hi", "max_output_tokens": 500}),
    ("/v1/messages", {**LONG, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}),
]
"""As many as may run at once; each goes on for so long that it is running when the engine is killed."""
QUEUED: list[tuple[str, Json]] = [
    ("/v1/completions", {"prompt": "A ship", "max_tokens": 8}),
    ("/v1/completions", {"prompt": "A ship", "max_tokens": 8, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 8, "n": 2}),
    ("/v1/responses", {"input": "Who?", "max_output_tokens": 8}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 8}),
    ("/v1/embeddings", {"input": "A ship"}),
]
NUM_RUNNING, NUM_WAITING, NUM_HELD = 4, 6, 1
NUM_HIT = NUM_RUNNING + NUM_WAITING + NUM_HELD
"""Choices. Of a request with n, one waits, and the others are held until its prompt is computed."""


@dataclass
class Town:
    """A server, as one client sees it that also holds the knife."""

    server: Served
    http: httpx.AsyncClient
    last: Scrape | None = None
    killed_s: float = 0.0

    async def post(self, path: str, body: Json) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def scrape(self) -> Scrape:
        """The metrics, which keep their laws whatever became of the engine."""
        found = Scrape((await self.http.get("/metrics")).text)
        found.check(self.last)
        self.last = found
        return found

    async def until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        async with asyncio.timeout(EXIT_S):
            while not holds(found := await self.scrape()):
                await asyncio.sleep(0.02)
        return found

    def kill(self) -> None:
        (engine,) = self.server.children(b"engine")
        self.killed_s = time.monotonic()
        os.kill(engine, signal.SIGKILL)

    async def back(self) -> float:
        """Waits for service again; the seconds since the kill. Who asks meanwhile is told to come back."""
        refused = 0
        async with asyncio.timeout(EXIT_S):
            while (ready := await self.http.get("/health/ready")).status_code != 200 or not refused:
                answer = await self.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
                if ready.status_code == 503 and answer.status_code == 503:
                    refused += 1
                    check_refusal("/v1/completions", answer)
                assert answer.status_code in (200, 503), answer.text
                await self.scrape()
                await asyncio.sleep(0.02)  # the new engine needs the processor, too
        took_s = time.monotonic() - self.killed_s
        answer = await self.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert answer.status_code == 200, answer.text
        return took_s


@contextlib.asynccontextmanager
async def town(model: Path, *flags: str) -> AsyncIterator[Town]:
    with serving(str(model), *RESTARTING, *flags) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=EXIT_S, trust_env=False) as http:
            yield Town(server, http)


def check_refusal(path: str, answer: httpx.Response) -> None:
    """A 503 that says what is the matter, and when to come back."""
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    if path == "/v1/messages":
        assert error["type"] == "overloaded_error"
    else:
        assert error["code"] in ("engine_dead", "loading") and error["type"] == "service_unavailable_error"
    assert WAY in error["message"] or "start" in error["message"]


def check_cut(path: str, events: list[str]) -> None:
    """A stream whose last event is the error, as its protocol has it, and which does not seem to be complete."""
    last = json.loads(events[-1].partition("data: ")[2])
    said = "\n".join(events)
    if path == "/v1/messages":
        assert last["type"] == "error" and last["error"]["type"] == "overloaded_error" and "message_stop" not in said
        error = last["error"]
    elif path == "/v1/responses":
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
        assert "response.completed" not in said
        error = last["response"]["error"]
    else:
        error = last["error"]
        assert error["code"] == "engine_dead" and "[DONE]" not in said
        assert '"finish_reason":"' not in said
    assert WAY in error["message"], error


@dataclass
class Stream:
    """One that is read as it comes."""

    path: str
    body: Json
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, http: httpx.AsyncClient) -> list[str]:
        async with http.stream("POST", self.path, json=self.body) as response:
            text = ""
            assert response.status_code == 200, await response.aread()
            async for more in response.aiter_text():
                text += more
                self.began.set()
        return [event for event in text.split("\n\n") if event]


async def answers(at: Town) -> list[Any]:
    """What the same requests get whenever they are asked: texts, and a vector."""
    bodies = [(path, {**body, "temperature": 0, "stream": False}) for path, body in QUEUED if "input" not in body]
    found = [(await at.post(path, body)).json() for path, body in bodies]
    found.append((await at.post(*QUEUED[-1])).json()["data"])
    return [_lasting(each) for each in found]


def _lasting(answer: Any) -> Any:
    return answer if isinstance(answer, list) else answer.get("choices") or answer["content"]


def test_a_kill_under_load_is_told_to_all_whom_it_hits_and_service_returns(default_model: Path) -> None:
    async def story() -> None:
        async with town(default_model, "--num-blocks", "170") as at:
            before = await answers(at)
            streams = [Stream(*each) for each in STREAMS]
            reading = [asyncio.create_task(stream.read(at.http)) for stream in streams]
            await asyncio.gather(*(stream.began.wait() for stream in streams))
            queued = [asyncio.create_task(at.post(path, body)) for path, body in QUEUED]
            full = await at.until(lambda it: it.sum("vllm:num_requests_waiting") == NUM_WAITING)
            assert full.sum("vllm:num_requests_running") == NUM_RUNNING
            at.kill()
            for stream, task in zip(streams, reading, strict=True):
                check_cut(stream.path, await task)
            for (path, _), task in zip(QUEUED, queued, strict=True):
                check_refusal(path, await task)
            print(f"service again after {await at.back():.2f} s")
            assert await answers(at) == before
            after = await at.until(lambda it: it.sum("octavo:http_requests_in_flight") == 0)
            after.check_idle()
            assert after.sum("octavo:engine_losses_total") == after.sum("octavo:engine_restarts_total") == 1
            assert after.sum("vllm:request_success_total", finished_reason="error") == NUM_HIT
            assert at.server.words().count("another one is started") == 1

    asyncio.run(story())


LONG_PROMPT: Json = {"prompt": list(range(1000, 1550)), "max_tokens": 80, "ignore_eos": True}
FIELDS = {f"field{number}": {"type": "string", "pattern": "^[a-z]{3,9}$"} for number in range(60)}
FORMED: Json = {"prompt": "Well:", "max_tokens": 80, "guided_json": {"type": "object", "properties": FIELDS}}
MOMENTS: list[tuple[str, str, Json]] = [
    ("while a prompt is computed in chunks", "computed", LONG_PROMPT),
    ("while a schema is compiled", "queued", FORMED),
    (
        "while blocks go to the tier",
        "tiered",
        {**LONG_PROMPT, "prompt": [list(range(at, at + 550)) for at in (50, 700)]},
    ),
]
"""What happens at the moment of the kill, by which event that is known, and what was asked for."""


async def killed_at(at: Town, kind: str, body: Json) -> tuple[httpx.Response, list[str]]:
    """The answer to a request during which the engine is killed at the first event of that kind; and the lives told."""
    url = f"/octavo/v1/events?kinds={kind},engine_lost,engine_ready"
    async with at.http.stream("GET", url) as events, asyncio.timeout(EXIT_S):
        names, lives, asked = events.aiter_lines(), list[str](), None
        async for line in names:
            name = line.removeprefix("event: ") if line.startswith("event: ") else ""
            if name == "hello":
                asked = asyncio.create_task(at.post("/v1/completions", body))
            elif name == kind and not at.killed_s:
                at.kill()
            elif name.startswith("engine_"):
                lives.append(name)
            if name == "engine_ready":
                break
    assert asked is not None
    return await asked, lives


def test_a_kill_at_any_moment_of_a_request_leaves_nothing_behind(default_model: Path) -> None:
    async def story() -> None:
        async with town(default_model, "--num-blocks", "60") as at:
            before = await answers(at)
            for number, (what, kind, body) in enumerate(MOMENTS, 1):
                at.killed_s = 0.0
                answer, lives = await killed_at(at, kind, body)
                check_refusal("/v1/completions", answer)
                assert lives == ["engine_lost", "engine_ready"], what
                assert await answers(at) == before, what
                rest = await at.until(lambda it: it.sum("octavo:http_requests_in_flight") == 0)
                rest.check_idle()
                assert rest.sum("octavo:engine_losses_total") == rest.sum("octavo:engine_restarts_total") == number
                assert rest.sum("octavo:audit_violations_total") == 0

    asyncio.run(story())


async def crowd(at: Town, rng: random.Random, stop: asyncio.Event) -> int:
    """Asks for one thing after the other, whatever becomes of the engine; how many answers were cut or refused."""
    hit = 0
    while not stop.is_set():
        wish = careful_wish(rng)
        response = await at.http.post(wish.path, content=wish.body, headers={"content-type": "application/json"})
        if response.status_code == 503:
            check_refusal(wish.path, response)
            hit += 1
            await asyncio.sleep(int(response.headers["retry-after"]) * rng.random() / 2)  # as clients do, more or less
        elif '"error":{' in response.text:
            check_cut(wish.path, [event for event in response.text.split("\n\n") if event])
            hit += 1
        else:
            assert response.status_code == 200, response.text
    return hit


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_moments_of_a_random_load(default_model: Path, seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with town(default_model, "--num-blocks", "60") as at:
            before = await answers(at)
            for number in (1, 2, 3):
                stop = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    asking = [tasks.create_task(crowd(at, random.Random(rng.random()), stop)) for _ in range(8)]
                    await asyncio.sleep(2 * rng.random())  # at a random moment
                    at.kill()
                    took_s = await at.back()
                    stop.set()
                hits = [task.result() for task in asking]
                print(f"service again after {took_s:.2f} s, {sum(hits)} answers of {len(hits)} clients cut or refused")
                assert await answers(at) == before
                rest = await at.until(lambda it: it.sum("octavo:http_requests_in_flight") == 0)
                rest.check_idle()
                assert rest.sum("octavo:engine_losses_total") == rest.sum("octavo:engine_restarts_total") == number

    asyncio.run(story())
