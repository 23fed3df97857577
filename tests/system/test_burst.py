"""A burst of 500 long prompts on a small pool: what was taken in is answered, the rest is told when to come back."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.serving import MODEL, Served, serving

COUNT, PROMPT_LEN, MAX_TOKENS = 500, 600, 24
SEQS, QUEUED = 4, 12
NUM_BLOCKS = 120
"""For three of them at a time."""
GROWTH_BYTES = 32 << 20
LATEST_S = 20
"""Of those who were told the same second one comes back, up to this: all would be more than a minute has room for."""


@dataclass(frozen=True)
class Reply:
    number: int
    status: int
    headers: dict[str, str]
    body: dict

    @property
    def text(self) -> str:
        return self.body["choices"][0]["text"]


async def ask(server: Served, number: int, salt: str = "") -> Reply:
    """One request over a connection of its own: 500 of them cost this process little."""
    ids = [100 + (number * 7919 + at * 104_729) % 40_000 for at in range(PROMPT_LEN)]
    fields = {"model": MODEL, "prompt": ids, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    body = json.dumps({**fields, "cache_salt": salt} if salt else fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
    writer.write("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *fields_of = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in fields_of)}
    return Reply(number, int(first.split()[1]), headers, json.loads(answer))


async def burst(server: Served) -> list[Reply]:
    """The replies to all of them, sent at once, in the order in which they came."""
    return [await reply for reply in asyncio.as_completed([ask(server, number) for number in range(COUNT)])]


async def come_back(server: Served, refused: list[Reply]) -> list[Reply]:
    """What those are told who come back when they were told to."""

    async def again(reply: Reply) -> Reply:
        await asyncio.sleep(int(reply.headers["retry-after"]))  # as a client does that heeds it
        return await ask(server, reply.number)

    return list(await asyncio.gather(*map(again, refused)))


async def alone(server: Served, numbers: list[int]) -> list[str]:
    """Each by itself, with nothing of it in the cache."""
    return [(await ask(server, number, salt=f"alone{number}")).text for number in numbers]


def forget_peak(pid: int) -> int:
    """What a process takes now, from where its next peak is looked for."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_bytes(pid)


def peak_bytes(pid: int) -> int:
    """The most that a process took since its peak was forgotten."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
@pytest.mark.alone  # when to come back is told from how fast it goes
def test_a_burst_is_answered_or_told_when_to_come_back(default_model: Path) -> None:
    limits = {"num-blocks": NUM_BLOCKS, "max-model-len": 1024, "max-num-seqs": SEQS, "max-num-queued-reqs": QUEUED}
    arguments = [text for name, value in limits.items() for text in (f"--{name}", str(value))]
    with serving(str(default_model), *arguments) as server:
        pids = [server.process.pid, *server.children(b"engine")]
        assert len(pids) == 2 and os.getpid() not in pids
        asyncio.run(alone(server, list(range(1000, 1000 + SEQS))))
        before = [forget_peak(pid) for pid in pids]
        replies = asyncio.run(burst(server))
        taken = [reply for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status == 503]
        assert len(taken) + len(refused) == COUNT and len(taken) >= SEQS + QUEUED
        assert all(reply.body["usage"]["completion_tokens"] == MAX_TOKENS for reply in taken)
        assert {reply.body["error"]["code"] for reply in refused} == {"queue_full"}
        last_refusal = max(place for place, reply in enumerate(replies) if reply.status == 503)
        answered_before = sum(reply.status == 200 for reply in replies[:last_refusal])
        assert answered_before <= len(taken) / 2, "who is refused does not wait for those who are served"
        growth = [peak_bytes(pid) - was for pid, was in zip(pids, before, strict=True)]
        assert max(growth) < GROWTH_BYTES, growth

        soon = list({int(reply.headers["retry-after"]): reply for reply in refused}.values())
        soon = [reply for reply in soon if int(reply.headers["retry-after"]) <= LATEST_S]
        back = asyncio.run(come_back(server, soon))
        again = sum(reply.status == 503 for reply in back)
        print(
            f"{len(taken)} taken, {len(refused)} refused, {len(soon)} came back, {again} refused again, grew {growth}"
        )
        assert soon and again < len(soon) / 2

        texts = asyncio.run(alone(server, [reply.number for reply in taken]))
        assert [reply.text for reply in taken] == texts
