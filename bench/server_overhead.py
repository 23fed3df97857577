"""What the API server itself costs for each streamed token: CPU time, with an engine that costs nothing.

    python bench/server_overhead.py [--streams 32] [--tokens 400] [--path /v1/messages] [--logprobs]

A fake engine gives each of the streams one token a step. Reported is the CPU time of the server's process for a token:
events to meters, TextStream, JSON, ASGI, uvicorn and the socket. The clients are in a process of their own.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvloop

from octavo.config.schema import Config, ServerConfig
from octavo.core.events import Admitted, Event, Finished, Generated, Queued, Stepped
from octavo.core.plan import ScoredToken
from octavo.core.ports import Capacity
from octavo.core.request import Request
from octavo.core.types import FinishReason
from octavo.engine.client import EngineDead, EngineFacts, EngineState
from octavo.engine.streams import EventStream, Mailbox
from octavo.models.checkpoint import Vocabulary
from octavo.server.app import build_app
from octavo.server.lifecycle import listen, listening
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import build_tokenizer

FACTS = EngineFacts(
    model="fake",
    fingerprint="fake",
    capacity=Capacity(num_blocks=4096, block_size=16, vocab_size=256, max_model_len=65536, hidden_size=64),
    isa="none",
    num_threads=1,
    weight_format="none",
    kv_cache_dtype="none",
)


class FakeEngine:
    """An EngineClient that begins once `streams` requests are there, and gives each a token in every step."""

    state = EngineState.READY
    facts = FACTS
    progress = "ready"
    heartbeat_age_s = 0.0

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._live: dict[str, tuple[Request, Mailbox]] = {}
        self._sinks: list[Callable[[Event], None]] = []
        self.cpu_s = 0.0

    async def wait_ready(self) -> EngineFacts:
        return FACTS

    async def wait_dead(self) -> EngineDead:
        return await asyncio.get_running_loop().create_future()

    def listen(self, sink: Callable[[Event], None]) -> None:
        self._sinks.append(sink)

    def submit(self, request: Request) -> AsyncIterator[tuple[Event, ...]]:
        mailbox = Mailbox(request)
        self._live[request.request_id] = (request, mailbox)
        if len(self._live) == self._streams:
            self._turning = asyncio.ensure_future(self._turn())
        return EventStream(mailbox, lambda: None)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        pass

    async def close(self) -> None:
        pass

    def _tell(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)

    async def _turn(self) -> None:
        for name, (request, mailbox) in self._live.items():
            self._give(mailbox, (Queued(name, 0.0, len(request.prompt)), Admitted(name, 0, 0.0, 0)))
        count = next(iter(self._live.values()))[0].params.max_tokens or 0
        for step in range(count):
            if step == count // 4:
                self.cpu_s -= time.process_time()
            if step == count - 1:
                self.cpu_s += time.process_time()
            self._step(step, step == count - 1)
            await asyncio.sleep(0.002)

    def _step(self, step: int, last: bool) -> None:
        for name, (request, mailbox) in self._live.items():
            alternatives = ((70, -0.5), (71, -1.5)) if request.params.logprobs else ()
            events: tuple[Event, ...] = (
                Generated(name, 0, step * 0.01, (ScoredToken(65 + step % 26, -0.5, 1, alternatives),)),
            )
            if last:
                events = (*events, Finished(name, 0, step * 0.01, FinishReason.LENGTH))
            self._give(mailbox, events)
        self._tell(Stepped(step * 0.01, step + 1, len(self._live), 0, len(self._live), 0, 0, 0, {}))

    def _give(self, mailbox: Mailbox, events: tuple[Event, ...]) -> None:
        for event in events:
            self._tell(event)
        mailbox.put(events)


def vocabulary() -> Vocabulary:
    """The 256 bytes as SentencePiece writes them."""
    tokens = tuple(f"<0x{byte:02X}>" for byte in range(256))
    return Vocabulary(kind="llama", tokens=tokens, token_types=(6,) * 256, scores=(0.0,) * 256, add_space_prefix=False)


TURNS = [{"role": "user", "content": "ABC"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [65, 66, 67]},
    "/v1/chat/completions": {"messages": TURNS},
    "/v1/responses": {"input": "ABC"},
    "/v1/messages": {"messages": TURNS},
}


def body_of(path: str, tokens: int, logprobs: bool) -> bytes:
    length = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    extra = {"logprobs": 2} if logprobs else {}
    return json.dumps({**BODIES[path], length: tokens, "stream": True, **extra}).encode()


def read_all(port: int, streams: int, tokens: int, path: str, logprobs: bool) -> None:
    """The clients: send all requests, then read until each stream has ended."""
    body = body_of(path, tokens, logprobs)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(streams)]
    for sock in socks:
        sock.sendall(head.encode() + body)
    for sock in socks:
        answer = bytearray()
        while data := sock.recv(1 << 16):
            answer += data
        seen = answer.count(b"data: {")
        assert seen >= tokens, f"{seen} events for {tokens} tokens: {answer[:400]!r}"


async def measure(streams: int, tokens: int, path: str, logprobs: bool) -> float:
    config = Config(server=ServerConfig(port=0))
    engine = FakeEngine(streams)
    app = build_app(engine, build_tokenizer(vocabulary()), ChatTemplate("{{ messages[0].content }}", {}), config)
    sock = listen(config.server)
    async with listening(app, config.server, sock):
        port = sock.getsockname()[1]
        about = (port, streams, tokens, path, logprobs)
        clients = multiprocessing.get_context("spawn").Process(target=read_all, args=about)
        clients.start()
        while clients.is_alive():
            await asyncio.sleep(0.05)
        assert clients.exitcode == 0
    steps = tokens - 1 - tokens // 4
    return engine.cpu_s / (steps * streams) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--path", choices=BODIES, default="/v1/completions")
    parser.add_argument("--logprobs", action="store_true", help="of completions only")
    options = parser.parse_args()
    cost = uvloop.run(measure(options.streams, options.tokens, options.path, options.logprobs))
    print(f"{cost:.1f} us of CPU for each token at {options.streams} streams")


if __name__ == "__main__":
    main()
