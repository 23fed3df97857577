"""The life of a server: announce, drain, second signal, dead engine, port taken. Real signals, in this process."""

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config.schema import Config, ServerConfig
from octavo.engine.launch import InProcessClient
from octavo.engine.loop import Replica
from octavo.models.catalog import DEFAULT_MODEL
from octavo.models.checkpoint import Checkpoint
from octavo.server.app import App, build_app
from octavo.server.lifecycle import CannotListen, is_public, listen, run, serve, url_of
from tests.server.site import PATIENCE_S, Gate, backend_of, limits_of, parse_events, replica_of, text_of

LONG = {"prompt": "the", "max_tokens": 40, "ignore_eos": True, "stream": True}


class Life:
    """A server that is being served in this very event loop, its gate, and a client."""

    def __init__(self, app: App, gate: Gate, http: httpx.AsyncClient, engine: InProcessClient) -> None:
        self.app = app
        self.gate = gate
        self.http = http
        self.engine = engine

    def start(self, **fields: Any) -> "asyncio.Task[httpx.Response]":
        return asyncio.ensure_future(self.http.post("/v1/completions", json={**LONG, **fields}))

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                await asyncio.sleep(0.005)

    async def streaming(self) -> None:
        """Returns once tokens have come."""
        self.gate.let(3)
        await self.until(lambda: self.app.service.meters.generation_tokens >= 3)


def live(
    checkpoint: Checkpoint,
    story: Callable[[Life], Awaitable[None]],
    load: Callable[[], object] | None = None,
    **settings: Any,
) -> int:
    """Serves while `story` happens, which begins when it is ready, or with `load` at once; the exit status."""

    async def whole() -> int:
        config = Config(server=ServerConfig(port=0, **settings))
        tokenizer, template = text_of(checkpoint)
        gate = Gate(backend_of(checkpoint))

        def build(payload: bytes, report: Callable[[str], None]) -> Replica:
            if load is not None:
                load()
            return replica_of(checkpoint, gate, limits_of(checkpoint, 64))

        engine = InProcessClient(build)
        app = build_app(engine, tokenizer, template, config)
        announced: list[str] = []
        with listen(config.server) as sock:
            url = url_of(config.server, sock)
            serving = asyncio.ensure_future(serve(app, engine, config.server, sock, announced.append))
            try:
                async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as http:
                    life = Life(app, gate, http, engine)
                    if load is None:
                        await life.until(lambda: bool(announced))
                        assert url in announced[0]
                    await story(life)
                    status = await asyncio.wait_for(serving, PATIENCE_S)
            finally:
                gate.open()
                await engine.close()
                serving.cancel()
                await asyncio.wait((serving,))
        return status

    return run(whole())


def test_sigterm_lets_streams_finish_and_takes_no_new_requests(checkpoint: Checkpoint) -> None:
    async def story(life: Life) -> None:
        running = life.start()
        await life.streaming()
        os.kill(os.getpid(), signal.SIGTERM)
        await life.until(lambda: life.app.service.duty.draining)
        assert (await life.http.get("/health/ready")).status_code == 503
        assert (await life.http.get("/health")).status_code == 200
        late = await life.http.post("/v1/completions", json=LONG)
        assert late.status_code == 503 and late.json()["error"]["code"] == "shutting_down"
        assert late.headers["retry-after"]
        life.gate.open()
        response = await running
        streamed = parse_events(response.status_code, response.headers, response.text)
        assert streamed.done and streamed.finish() == [("length", None)]

    assert live(checkpoint, story) == 0


def test_who_asks_for_readiness_leaves_before_anybody_is_refused(checkpoint: Checkpoint) -> None:
    """For --shutdown-delay all is served, on connections that end with it."""

    async def story(life: Life) -> None:
        duty = life.app.service.duty
        before = life.start(stream=False)
        await life.streaming()
        os.kill(os.getpid(), signal.SIGTERM)
        await life.until(lambda: duty.leaving)
        assert not duty.draining
        ready = await life.http.get("/health/ready")
        assert ready.status_code == 503 and ready.headers["connection"] == "close"
        assert (await life.http.get("/health")).status_code == 200
        late = life.start()
        life.gate.open()
        for response in (await before, await late):
            assert response.status_code == 200 and response.headers["connection"] == "close"
        os.kill(os.getpid(), signal.SIGTERM)

    assert live(checkpoint, story, shutdown_delay=3600) == 128 + signal.SIGTERM


def test_a_connection_ends_only_after_an_answer_that_says_so(checkpoint: Checkpoint) -> None:
    """A client that was not told sends its next request on the same connection, which must not be closed then."""

    async def story(life: Life) -> None:
        reader, writer = await asyncio.open_connection(life.http.base_url.host, life.http.base_url.port)
        body = json.dumps(LONG).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        request = head.encode() + b"\r\n\r\n" + body
        try:
            writer.write(request)
            await life.streaming()
            first = await reader.readuntil(b"\r\n\r\n")
            os.kill(os.getpid(), signal.SIGTERM)
            await life.until(lambda: life.app.service.duty.leaving)
            life.gate.open()
            await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            writer.write(request)
            second = await reader.readuntil(b"\r\n\r\n")
            assert b"connection: close" not in first and b"connection: close" in second
            assert b"data: [DONE]" in await reader.read()
        finally:
            writer.close()
        os.kill(os.getpid(), signal.SIGTERM)

    assert live(checkpoint, story, shutdown_delay=3600) == 128 + signal.SIGTERM


def test_after_the_delay_it_drains(checkpoint: Checkpoint) -> None:
    async def story(life: Life) -> None:
        running = life.start()
        await life.streaming()
        os.kill(os.getpid(), signal.SIGTERM)
        await life.until(lambda: life.app.service.duty.draining)
        assert (await life.http.post("/v1/completions", json=LONG)).status_code == 503
        life.gate.open()
        assert parse_events((await running).status_code, (await running).headers, (await running).text).done

    assert live(checkpoint, story, shutdown_delay=0.01) == 0


def test_while_it_loads_it_ends_without_a_delay(checkpoint: Checkpoint) -> None:
    """Nobody was told to come, so nobody has to be told to go elsewhere."""
    loaded = threading.Event()

    async def story(life: Life) -> None:
        assert (await life.http.get("/health/ready")).json()["error"]["code"] == "loading"
        os.kill(os.getpid(), signal.SIGTERM)
        await life.until(lambda: life.app.service.duty.draining)
        loaded.set()

    assert live(checkpoint, story, loaded.wait, shutdown_delay=3600) == 0


def test_sighup_reads_the_tenants_again_and_ends_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: {a: {keys: [old]}}", encoding="utf-8")

    async def status(life: Life, key: str) -> int:
        return (await life.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code

    async def story(life: Life) -> None:
        assert (await status(life, "old"), await status(life, "new")) == (200, 401)
        file.write_text("tenants: {a: {keys: [new]}}", encoding="utf-8")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(PATIENCE_S):
            while await status(life, "new") != 200:
                await asyncio.sleep(0.005)
        assert await status(life, "old") == 401
        os.kill(os.getpid(), signal.SIGTERM)

    assert live(checkpoint, story, tenants=str(file)) == 0


@pytest.mark.parametrize(
    ("settings", "warns"), [({}, True), ({"api_key": ("k",)}, False), ({"tenants": "file"}, False)]
)
def test_an_open_door_to_the_world_is_warned_of(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warns: bool
) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: {a: {keys: [k]}}", encoding="utf-8")
    given = {**settings, "tenants": str(file)} if "tenants" in settings else settings

    async def story(life: Life) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert live(checkpoint, story, host="0.0.0.0", **given) == 0
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any("--api-key" in message for message in warnings) is warns


def test_without_work_sigint_ends_it(checkpoint: Checkpoint) -> None:
    async def story(life: Life) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert live(checkpoint, story) == 0


def test_the_log_says_once_what_clients_send_and_what_to_mind_last(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(life: Life) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with caplog.at_level("INFO", "octavo.server.lifecycle"):
        assert live(checkpoint, story) == 0
    mine = [record for record in caplog.records if record.name == "octavo.server.lifecycle"]
    said = [(record.levelname, record.message) for record in mine]
    named = ("INFO", f"model: clients send the name {DEFAULT_MODEL.name}; its weights are F32")
    assert said[: said.index(named) + 2] == [("INFO", "threads: 1"), named, ("WARNING", "it is tiny")]


@pytest.mark.parametrize("stream", [True, False])
def test_what_takes_longer_than_the_timeout_is_told_so(checkpoint: Checkpoint, stream: bool) -> None:
    async def story(life: Life) -> None:
        running = life.start(stream=stream)
        await life.streaming()
        os.kill(os.getpid(), signal.SIGTERM)
        response = await running
        streamed = parse_events(response.status_code, response.headers, response.text)
        if stream:
            assert not streamed.done and [error["code"] for error in streamed.errors] == ["shutting_down"]
        else:
            assert response.status_code == 503 and response.json()["error"]["code"] == "shutting_down"

    assert live(checkpoint, story, shutdown_timeout=0.05) == 0


def test_a_second_signal_ends_it_at_once(checkpoint: Checkpoint) -> None:
    async def story(life: Life) -> None:
        running = life.start()
        await life.streaming()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            await life.until(lambda: life.app.service.duty.draining)
        response = await running
        streamed = parse_events(response.status_code, response.headers, response.text)
        assert not streamed.done and "at once" in streamed.errors[0]["message"]

    assert live(checkpoint, story, shutdown_timeout=3600) == 128 + signal.SIGTERM


@pytest.mark.parametrize("draining", [False, True])
def test_a_dead_engine_ends_it_with_an_error(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, draining: bool
) -> None:
    async def story(life: Life) -> None:
        running = life.start()
        await life.streaming()
        if draining:
            os.kill(os.getpid(), signal.SIGTERM)
            await life.until(lambda: life.app.service.duty.draining)
        life.gate.open()
        await life.engine.close()
        response = await running
        assert parse_events(response.status_code, response.headers, response.text).errors

    assert live(checkpoint, story) == 1
    assert any("the engine has died" in record.message for record in caplog.records if record.levelname == "CRITICAL")


def test_a_port_in_use_is_said_with_what_to_do() -> None:
    with listen(ServerConfig(port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(CannotListen, match=f"{port} is in use.*--port"):
            listen(ServerConfig(port=port))


def test_an_address_that_is_not_ours_is_said() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1"):
        listen(ServerConfig(host="192.0.2.1", port=0))


def test_the_url_is_one_that_a_browser_can_open() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert url_of(ServerConfig(host="0.0.0.0"), sock) == f"http://127.0.0.1:{port}"
        assert url_of(ServerConfig(host="::"), sock) == f"http://[::1]:{port}"
        assert url_of(ServerConfig(host="::1", root_path="/llm"), sock) == f"http://[::1]:{port}/llm"


def test_public_addresses_are_told_from_private_ones() -> None:
    assert not any(map(is_public, ("127.0.0.1", "::1", "localhost")))
    assert all(map(is_public, ("0.0.0.0", "::", "192.168.1.5", "example.org")))
