"""A whole server for tests: a tiny random model on the reference backend, behind real HTTP on a loopback port."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from octavo.backends.reference import ReferenceBackend
from octavo.boot import compiler_of
from octavo.config.schema import Config, ModelConfig, ServerConfig
from octavo.core.plan import StepPlan, StepResult
from octavo.core.ports import Backend, Capacity
from octavo.core.scheduler import Scheduler
from octavo.core.types import Limits
from octavo.engine.client import EngineFacts
from octavo.engine.dumps import Dumps
from octavo.engine.launch import InProcessClient
from octavo.engine.loop import Replica
from octavo.engine.recorder import RecordedScheduler
from octavo.loaders import open_checkpoint
from octavo.loaders.dequant import dequantize
from octavo.models.checkpoint import Checkpoint
from octavo.server.app import App, build_app
from octavo.server.lifecycle import listen, listening, url_of
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer, build_tokenizer
from tests.server.described import check_described
from tests.tiny import make_tiny, write_directory

BLOCK_SIZE = 8
NUM_BLOCKS = 256
MAX_MODEL_LEN = 256
PATIENCE_S = 60
NO_TLS = False
"""Nothing here speaks it, and to read certificates takes longer than to start a server."""
T = TypeVar("T")


def tiny_checkpoint(folder: Path) -> Checkpoint:
    return open_checkpoint(write_directory(make_tiny(max_model_len=MAX_MODEL_LEN, seed=7), folder))


def text_of(checkpoint: Checkpoint, *, trusts_texts: bool = False) -> tuple[Tokenizer, ChatTemplate]:
    tokenizer = build_tokenizer(checkpoint.vocabulary, trusts_texts=trusts_texts)
    assert checkpoint.vocabulary.chat_template is not None
    return tokenizer, ChatTemplate(checkpoint.vocabulary.chat_template, tokenizer.special_tokens)


def backend_of(checkpoint: Checkpoint) -> ReferenceBackend:
    return ReferenceBackend(
        checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN, dequantize=dequantize
    )


def limits_of(checkpoint: Checkpoint, max_num_seqs: int) -> Limits:
    return Limits(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        vocab_size=checkpoint.spec.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        eos_token_ids=checkpoint.vocabulary.eos_token_ids,
    )


def replica_of(checkpoint: Checkpoint, backend: Backend, limits: Limits) -> Replica:
    facts = EngineFacts(
        model="tiny",
        fingerprint="tiny-reference",
        capacity=backend.capacity(),
        isa="numpy",
        num_threads=1,
        weight_format="F32",
        kv_cache_dtype="float32",
        report=("threads: 1",),
        warnings=("it is tiny",),
    )
    return Replica(Scheduler(limits), backend, facts, compiler_of(checkpoint.vocabulary, checkpoint.spec.vocab_size))


class Gate:
    """A backend that computes a step only when it is let: so a test can do something in the middle of a request."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._steps = threading.Semaphore(0)
        self._open = False
        self.failure: Exception | None = None
        """Raised by the next step."""

    def let(self, steps: int) -> None:
        """Lets this many more steps happen."""
        self._steps.release(steps)

    def open(self) -> None:
        """From now on nothing is held."""
        self._open = True
        self._steps.release()

    def capacity(self) -> Capacity:
        return self._backend.capacity()

    def execute(self, plan: StepPlan) -> StepResult:
        if not self._open:
            assert self._steps.acquire(timeout=PATIENCE_S), "the test forgot to open the gate"
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return self._backend.execute(plan)

    def close(self) -> None:
        self._backend.close()


@dataclass
class Streamed:
    """What a streamed answer was made of."""

    status: int
    headers: httpx.Headers
    chunks: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    done: bool = False
    body: str = ""

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [chunk["error"] for chunk in self.chunks if "error" in chunk]

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        return [each for chunk in self.chunks for each in chunk.get("choices", ()) if each["index"] == index]

    def text(self, index: int = 0) -> str:
        return "".join(each["text"] if "text" in each else each["delta"]["content"] for each in self.choices(index))

    def finish(self, index: int = 0) -> list[tuple[str, Any]]:
        return [(each["finish_reason"], each["stop_reason"]) for each in self.choices(index) if each["finish_reason"]]


def as_(key: str) -> dict[str, dict[str, str]]:
    """What a request is sent with by whoever has this key."""
    return {"headers": {"authorization": f"Bearer {key}"}}


def parse_events(status: int, headers: httpx.Headers, text: str) -> Streamed:
    streamed = Streamed(status, headers, body=text)
    if not headers["content-type"].startswith("text/event-stream"):
        return streamed
    for block in text.split("\n\n"):
        assert not streamed.done or not block, f"{block!r} after [DONE]"
        if block.startswith(":"):
            streamed.comments.append(block)
        elif block == "data: [DONE]":
            streamed.done = True
        elif block:
            streamed.chunks.append(json.loads(block.removeprefix("data: ")))
    return streamed


class Site:
    """A running server, seen from a client."""

    def __init__(
        self, app: App, url: str, run: Callable[[Coroutine[Any, Any, Any]], Any], tokenizer: Tokenizer
    ) -> None:
        self.app = app
        self.url = url
        self.run = run
        self.tokenizer = tokenizer
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False, verify=NO_TLS)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        """The answer, which is one that the OpenAPI document tells of."""
        response = self.http.post(path, **(kwargs if body is None else {"json": body, **kwargs}))
        check_described(response, path.removeprefix(self.app.service.config.server.root_path).partition("?")[0])
        return response

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def chat(self, content: Any, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})

    def stream(self, response: httpx.Response) -> Streamed:
        return parse_events(response.status_code, response.headers, response.text)

    def forget_pins(self) -> None:
        """Nothing is pinned any more."""
        for pin in self.http.get("/octavo/v1/pins").json()["data"]:
            assert self.http.delete(f"/octavo/v1/pins/{pin['id']}").status_code == 200

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; the sum, where several have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        assert samples, f"no metric {name}"
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    @contextmanager
    def opened(self, path: str, body: dict[str, Any], key: str = "none") -> Iterator[socket.socket]:
        """A request over a bare socket, whose answer nobody reads; the connection ends with the block."""
        data = json.dumps(body).encode()
        about = {"Host": "x", "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        lines = [f"{name}: {value}" for name, value in {**about, "Content-Length": len(data)}.items()]
        head = "\r\n".join((f"POST {path} HTTP/1.1", *lines))
        with socket.create_connection((self.http.base_url.host, self.http.base_url.port or 0), PATIENCE_S) as sock:
            sock.sendall(head.encode() + b"\r\n\r\n" + data)
            yield sock

    @contextmanager
    def within(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """`context` on the server's own loop, for the time of the block."""
        entered = self.run(context.__aenter__())
        try:
            yield entered
        finally:
            self.run(context.__aexit__(None, None, None))

    def until(self, happened: Callable[[], bool]) -> None:
        """Returns once it has happened; fails where it does not."""
        for _ in range(PATIENCE_S * 100):
            if happened():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it did not happen")


@contextmanager
def running(
    checkpoint: Checkpoint,
    config: Config | None = None,
    *,
    backend: Backend | None = None,
    max_num_seqs: int = 64,
    narrowed: Callable[[Limits], Limits] = lambda limits: limits,
    load: Callable[[Callable[[str], None]], None] | None = None,
) -> Iterator[Site]:
    """A server with an engine of its own, in another thread, until the end of the block.

    It is ready, unless `load` is given: that is called in the engine, with its way to report, before it is.
    """
    config = config or Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0))
    limits = narrowed(limits_of(checkpoint, max_num_seqs))
    replica = replica_of(checkpoint, backend or backend_of(checkpoint), limits)
    if config.engine.crash_dump_dir is not None and config.engine.crash_dump_dir != "off":
        dumps = Dumps(Path(config.engine.crash_dump_dir), replica.facts.fingerprint)
        replica = replace(replica, scheduler=RecordedScheduler(limits), dumps=dumps)
    tokenizer, template = text_of(checkpoint, trusts_texts=config.model.allow_special_tokens_in_text)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    sock = listen(config.server)

    def build(payload: bytes, report: Callable[[str], None]) -> Replica:
        if load is not None:
            load(report)
        return replica

    client = InProcessClient(build)
    app = build_app(client, tokenizer, template, config)
    site = Site(app, url_of(config.server, sock), run, tokenizer)
    stop = asyncio.Event()

    async def live() -> None:
        async with listening(app, config.server, sock):
            await client.wait_ready()
            await stop.wait()
        await client.close()

    living = asyncio.run_coroutine_threadsafe(live(), loop)
    try:
        path = "/health/ready" if load is None else "/health"
        site.until(lambda: living.done() or site.http.get(path).status_code == 200)
        yield site
    finally:
        site.http.close()
        loop.call_soon_threadsafe(stop.set)
        living.result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
