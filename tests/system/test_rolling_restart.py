"""Replicas that are restarted one after the other, under load, behind a balancer that only follows /health/ready."""

import asyncio
import itertools
import json
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx

from tests.system.serving import EXIT_S, Served, serving

PROBE_S = 0.1
DELAY_S = 4
"""Much longer than it takes to ask all: the balancer has seen that a replica leaves before that refuses anything."""
FLAGS = ("--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64MiB", "--num-threads", "1")
NUM_CLIENTS = 4
ASKED = {"prompt": "The sea", "max_tokens": 24, "temperature": 0, "stream": True, "ignore_eos": True}


class Balancer:
    """Sends each request to a replica that says it is ready. The only failure that it forgives is a 503."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.ready: dict[str, bool] = {}
        """By URL: what the replica said when it was last asked."""
        self.served: Counter[str] = Counter()
        self._turns = itertools.count()

    async def probe(self) -> None:
        """For ever: asks all replicas, every now and then."""
        while True:
            for url in list(self.ready):
                is_ready = await self._is_ready(url)
                if url in self.ready:
                    self.ready[url] = is_ready
            await asyncio.sleep(PROBE_S)

    async def _is_ready(self, url: str) -> bool:
        try:
            return (await self.http.get(f"{url}/health/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def ask(self, stop: asyncio.Event) -> set[str]:
        """One request after the other; the texts that came. What goes wrong with any of them is raised."""
        texts: set[str] = set()
        while not stop.is_set():
            ready = [url for url, is_ready in self.ready.items() if is_ready]
            url = ready[next(self._turns) % len(ready)]
            response = await self.http.post(f"{url}/v1/completions", json=ASKED)
            if response.status_code != 503:
                texts.add(whole_text(response))
                self.served[url] += 1
        return texts


def whole_text(response: httpx.Response) -> str:
    """The text of a stream that came to its end."""
    assert response.status_code == 200, response.text
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], response.text
    return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2])


def replica(model: Path) -> AbstractContextManager[Served]:
    return serving(str(model), *FLAGS, "--shutdown-delay", str(DELAY_S))


async def restarted_in_turn(model: Path) -> tuple[set[str], Counter[str]]:
    """The texts that clients got while two replicas were restarted, and how many answers each of the four gave."""
    stop = asyncio.Event()
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(model)) for _ in range(2)]
        async with httpx.AsyncClient(timeout=EXIT_S, trust_env=False) as http, asyncio.TaskGroup() as tasks:
            balancer = Balancer(http)
            balancer.ready.update({each.url: True for each in replicas})
            probing = tasks.create_task(balancer.probe())
            clients = [tasks.create_task(balancer.ask(stop)) for _ in range(NUM_CLIENTS)]
            for old in tuple(replicas):
                await serves(balancer, *balancer.ready)
                old.process.terminate()
                assert await asyncio.to_thread(old.process.wait, EXIT_S) == 0
                new = await asyncio.to_thread(stack.enter_context, replica(model))
                replicas.append(new)
                del balancer.ready[old.url]
                balancer.ready[new.url] = False
            await serves(balancer, *balancer.ready)
            stop.set()
            probing.cancel()
        for each in replicas:
            each.process.terminate()  # a first time: the second ends it without a delay
        return set().union(*(client.result() for client in clients)), balancer.served


async def serves(balancer: Balancer, *urls: str) -> None:
    """Returns once each of these has served something."""
    async with asyncio.timeout(EXIT_S):
        while not all(balancer.served[url] for url in urls):
            await asyncio.sleep(0.01)


def test_a_rolling_restart_fails_no_request(default_model: Path) -> None:
    texts, served = asyncio.run(restarted_in_turn(default_model))
    assert len(texts) == 1 and len(served) == 4 and all(served.values())
