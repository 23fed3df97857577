"""What the API server itself costs for each streamed token: CPU time, with an engine that costs nothing.

    python bench/server_overhead.py [--streams 32] [--tokens 400] [--path /v1/messages] [--logprobs]

The messages of an engine that gives each of the streams one token a step are made beforehand. Reported is the CPU time
of the server's thread for a token: the message, events to meters, TextStream, JSON, uvicorn and the socket, which is
some 40 % of it. The clients are in a process of their own. A machine with other work to do only ever slows this down,
so it is the best of many spells of 25 steps, and beside it the median.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Iterable
from typing import Any

import uvloop

from octavo.config.schema import Config, ServerConfig
from octavo.core.events import Admitted, Event, Finished, Generated, Queued, Stepped
from octavo.core.plan import ScoredToken
from octavo.core.ports import Capacity
from octavo.core.request import Request
from octavo.core.types import FinishReason
from octavo.engine.client import EngineFacts
from octavo.engine.remote import RemoteClient
from octavo.engine.wire import Deframer, EventWriter, Ready, Submit, frame, read_command
from octavo.models.checkpoint import Vocabulary
from octavo.server.app import build_app
from octavo.server.lifecycle import listen, listening
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import build_tokenizer

SPELL = 25
"""Steps that are timed together."""
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
    """The far end of a socket: waits for `streams` requests, then gives each a token in every step."""

    def __init__(self, sock: socket.socket, streams: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._deframer = Deframer()
        self._writer = EventWriter()
        self._requests: list[Request] = []
        self.spells_s: list[float] = []
        """CPU time of this thread for each SPELL steps, but for the first of them."""
        sock.send(frame(Ready(FACTS)))
        self._loop.add_reader(sock, self._hear)

    def _hear(self) -> None:
        for body in self._deframer.feed(self._sock.recv(1 << 20)):
            command = read_command(body)
            if isinstance(command, Submit):
                self._writer.open(command.ticket, command.request)
                self._requests.append(command.request)
                if len(self._requests) == self._streams:
                    self._turning = asyncio.ensure_future(self._turn())

    async def _turn(self) -> None:
        count = self._requests[0].params.max_tokens or 0
        messages = [self._begun(), *(self._step(step, last=step == count - 1) for step in range(count))]
        began_s = 0.0
        for number, message in enumerate(messages):
            if number % SPELL == 0:
                self.spells_s.append(time.thread_time() - began_s)
                began_s = time.thread_time()
            self._sock.send(message)
            await asyncio.sleep(0.002)
        del self.spells_s[:2]  # up to the first step, and the first answers' beginnings

    def _begun(self) -> bytes:
        ids = [request.request_id for request in self._requests]
        return self._message([event for name in ids for event in (Queued(name, 0.0, 3), Admitted(name, 0, 0.0, 0))])

    def _step(self, step: int, *, last: bool) -> bytes:
        time_s, count = step * 0.01, len(self._requests)
        events: list[Event] = []
        for request in self._requests:
            token = ScoredToken(65 + step % 26)
            if request.params.logprobs:
                token = ScoredToken(token.token, -0.5, 1, ((70, -0.5), (71, -1.5)))
            events.append(Generated(request.request_id, 0, time_s, (token,)))
            if last:
                events.append(Finished(request.request_id, 0, time_s, FinishReason.LENGTH))
        return self._message([*events, Stepped(time_s, step + 1, count, 0, count, 0, 0, 0, {})])

    def _message(self, events: Iterable[Event]) -> bytes:
        return frame(self._writer.write(events))


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


async def measure(streams: int, tokens: int, path: str, logprobs: bool) -> tuple[float, float]:
    """CPU time for a token, at best and as the median, in microseconds."""
    config = Config(server=ServerConfig(port=0))
    near, far = socket.socketpair()
    client, engine = RemoteClient(near), FakeEngine(far, streams)
    await client.wait_ready()
    app = build_app(client, build_tokenizer(vocabulary()), ChatTemplate("{{ messages[0].content }}", {}), config)
    sock = listen(config.server)
    async with listening(app, config.server, sock):
        port = sock.getsockname()[1]
        about = (port, streams, tokens, path, logprobs)
        clients = multiprocessing.get_context("spawn").Process(target=read_all, args=about)
        clients.start()
        while clients.is_alive():
            await asyncio.sleep(0.05)
        assert clients.exitcode == 0
    await client.close()
    per_token = 1e6 / (SPELL * streams)
    return min(engine.spells_s) * per_token, statistics.median(engine.spells_s) * per_token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--path", choices=BODIES, default="/v1/completions")
    parser.add_argument("--logprobs", action="store_true", help="of completions only")
    options = parser.parse_args()
    best, median = uvloop.run(measure(options.streams, options.tokens, options.path, options.logprobs))
    print(f"{best:.1f} us of CPU for each token at {options.streams} streams (median {median:.1f})")


if __name__ == "__main__":
    main()
