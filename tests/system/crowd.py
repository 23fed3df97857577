"""Clients of several tenants who ask a server for all kinds of things, until they are told to stop."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.system.serving import MODEL

PAUSE_S = 0.1
"""A client that was sent away comes back after this, however it was told."""
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
STEM = "The keeper of the lighthouse wrote in his book each evening what the sea had brought. " * 3


def wishes(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and a body."""
    story = {"prompt": STEM, "max_tokens": 24, "ignore_eos": True}
    return draw.choice(
        [
            ("/v1/completions", story),
            ("/v1/completions", {**story, "prompt": f"{draw.random()} {STEM}", "max_tokens": 60}),
            ("/v1/completions", {**story, "prompt": "1 2 3 4 1 2 3 4 1 2 3 4", "n": 2, "temperature": 0.5}),
            ("/v1/completions", {**story, "prompt": "wrong", "temperature": -1}),
            (
                "/v1/chat/completions",
                {
                    "messages": [{"role": "user", "content": "Who are you?"}],
                    "max_tokens": 24,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}},
                },
            ),
        ]
    )


async def _client(url: str, key: str, number: int, stopping: threading.Event, told: Counter[int]) -> None:
    draw = random.Random(number)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as http:
        while not stopping.is_set():
            path, body = wishes(draw)
            status = (await http.post(path, json={"model": MODEL, "temperature": 0, **body})).status_code
            told[status] += 1
            if status != 200:
                await asyncio.sleep(PAUSE_S)


async def _all(url: str, keys: list[str], stopping: threading.Event, told: Counter[int]) -> None:
    await asyncio.gather(*(_client(url, key, number, stopping, told) for number, key in enumerate(keys)))


@contextmanager
def crowd(url: str, keys: list[str]) -> Iterator[Counter[int]]:
    """A client for each of these keys, in a thread of their own; the statuses that they got, as they get them."""
    stopping, told = threading.Event(), Counter[int]()
    thread = threading.Thread(target=lambda: asyncio.run(_all(url, keys, stopping, told)))
    thread.start()
    try:
        yield told
    finally:
        stopping.set()
        thread.join()
