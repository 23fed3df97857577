"""The server's life: listen, say when it is ready, drain on a signal, and end when the engine does.

starting     listens and answers probes, while the engine loads
serving      the URL has been printed
leaving      after SIGTERM or SIGINT: not ready, so that balancers go elsewhere; for `shutdown_delay` still serving
draining     new requests get 503, running ones go on for `shutdown_timeout`
ended        0 after a drain; 1 where the engine died; 128 + signal after a second signal, at once
"""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from octavo.config.address import near_url
from octavo.config.schema import ServerConfig
from octavo.engine.client import CannotStart, EngineClient, EngineDead, EngineState
from octavo.server.app import App
from octavo.server.connection import Connection, patient
from octavo.server.openai.errors import ApiError, engine_dead, shutting_down

log = logging.getLogger(__name__)

LAST_WORDS_S = 2.0
"""How long answers may take to leave once they are complete, or have to end."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotListen(OSError):
    """The address cannot be listened on; the message says why and what to do."""


def listen(config: ServerConfig) -> socket.socket:
    """A listening socket on the configured address: to be made before the model is loaded. Raises CannotListen."""
    sock = bound(config.host, config.port, "--port")
    sock.listen(2048)
    sock.setblocking(False)
    return sock


def bound(host: str, port: int, flag: str) -> socket.socket:
    """A socket with this address, which nobody else listens on; `flag` chooses another. Raises CannotListen."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except (OSError, UnicodeError) as error:
        sock.close()
        raise CannotListen(_why(f"{host} port {port}", flag, error)) from error
    return sock


def _why(where: str, flag: str, error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"{where} is in use: stop the server that has it, or choose another with {flag} (0: any that is free)"
    if code == errno.EACCES:
        return f"{where} is not allowed to this user: choose a port from 1024 with {flag}"
    return f"cannot listen on {where}: {error}"


def url_of(config: ServerConfig, sock: socket.socket) -> str:
    """Where a browser on this machine finds the server."""
    return near_url(config.host, sock.getsockname()[1]) + config.root_path


def is_public(host: str) -> bool:
    """Can other machines reach this address?"""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def run(main: Coroutine[Any, Any, int]) -> int:
    """Runs a coroutine on the fastest event loop that the machine has; returns its exit status."""
    gc.freeze()  # what was loaded stays: a collection that looked at all of it would hold up every stream
    try:
        if sys.platform == "win32":
            return asyncio.run(main)
        import uvloop

        return uvloop.run(main)
    finally:
        gc.unfreeze()


async def serve(
    app: App, client: EngineClient, config: ServerConfig, sock: socket.socket, announce: Callable[[str], None] = print
) -> int:
    """Serves until told to stop, or until the engine is dead; returns the exit status. The caller closes the client.

    Raises CannotStart where the engine cannot be what it was asked to be.
    """
    async with listening(app, config, sock) as http:
        with _signals() as heard, _rereading(app, config):
            return await _Life(app, client, config, http, heard).live(lambda: _announce(config, sock, announce))


@dataclass(frozen=True, slots=True)
class _Life:
    app: App
    client: EngineClient
    config: ServerConfig
    http: "_Http"
    heard: "asyncio.Queue[int]"
    """The signals, as they come."""

    async def live(self, announce: Callable[[], None]) -> int:
        """Returns the exit status, when it is time to end."""
        dead = asyncio.ensure_future(self.client.wait_dead())
        signalled = asyncio.ensure_future(self.heard.get())
        ready = asyncio.ensure_future(_when_ready(self.client, self.app.service.names, announce))
        try:
            await asyncio.wait((dead, signalled, self.http.ended), return_when=asyncio.FIRST_COMPLETED)
            if signalled.done():
                return await self._leave(dead)
            return await self._bury(dead.result()) if dead.done() else 1
        finally:
            for task in (dead, signalled, ready):
                task.cancel()

    async def _leave(self, dead: "asyncio.Future[EngineDead]") -> int:
        """Lets those who ask for readiness go elsewhere first, then drains; a second signal ends it at once."""
        again = asyncio.ensure_future(self.heard.get())
        try:
            self.app.service.duty.leave()
            self.http.part()
            delay_s = self.config.shutdown_delay
            if delay_s and self.client.state is EngineState.READY:  # else nobody was told to come
                log.info("shutting down: not ready any more; in %g s no more requests are taken", delay_s)
                await asyncio.wait((again, dead), timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            return await self._drain(dead, again)
        finally:
            again.cancel()

    async def _drain(self, dead: "asyncio.Future[EngineDead]", again: "asyncio.Future[int]") -> int:
        """Lets what runs come to its end, within limits."""
        duty, limit_s = self.app.service.duty, self.config.shutdown_timeout
        duty.drain()
        log.info("shutting down: running requests (%d) have %g s; a second signal ends them", duty.in_flight, limit_s)
        idle = asyncio.ensure_future(duty.idle())
        try:
            await asyncio.wait((idle, again, dead), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                await _stop_all(self.app, shutting_down("the server was told to end at once"))
                self.http.force_exit = True
                return 128 + again.result()
            if dead.done():
                return await self._bury(dead.result())
            if not idle.done():
                log.warning("requests that did not end in time and are cut off: %d", duty.in_flight)
                why = f"the server is shutting down and waits no longer than {limit_s:g} s (--shutdown-timeout)"
                await _stop_all(self.app, shutting_down(why))
            return 0
        finally:
            idle.cancel()

    async def _bury(self, error: EngineDead) -> int:
        """The engine is dead: those who wait are told, and the server ends with an error. Raises CannotStart."""
        if isinstance(error, CannotStart):
            raise error
        log.critical("the engine has died, so the server ends: %s", error)
        self.app.service.duty.drain()
        await _stop_all(self.app, engine_dead(error))
        return 1


async def _when_ready(client: EngineClient, names: Sequence[str], announce: Callable[[], None]) -> None:
    with contextlib.suppress(EngineDead):  # whoever waits for its death reports it
        facts = await client.wait_ready()
        for line in facts.report:
            log.info("%s", line)
        log.info("model: clients send the name %s; its weights are %s", " or ".join(names), facts.weight_format)
        for line in facts.warnings:
            log.warning("%s", line)
        announce()


def _announce(config: ServerConfig, sock: socket.socket, announce: Callable[[str], None]) -> None:
    url = url_of(config, sock)
    if is_public(config.host) and not config.api_key and config.tenants is None:
        log.warning("%s can be reached from other machines and asks for no key: set --api-key or --tenants", url)
    announce(f"Octavo is ready on {url} (API: {url}/v1, documentation: {url}/docs)")


async def _stop_all(app: App, why: ApiError) -> None:
    app.service.duty.stop_all(why)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(app.service.duty.idle(), LAST_WORDS_S)


class _Http(uvicorn.Server):
    """uvicorn, with the signals left to us."""

    ended: "asyncio.Task[None]"

    def part(self) -> None:
        """Answers that have not begun are the last of their connections, and say so."""
        for connection in self.server_state.connections:
            if isinstance(connection, Connection):
                connection.part()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: App, config: ServerConfig, sock: socket.socket) -> AsyncIterator[_Http]:
    """The HTTP server, from now until the end of the block."""
    settings = uvicorn.Config(
        app,
        loop="none",
        http=patient(config.header_timeout, config.body_timeout, config.keep_alive_timeout, app.service.visits.failed),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=config.uvicorn_log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody here asks where a request came from
        timeout_graceful_shutdown=int(LAST_WORDS_S),
    )
    server = _Http(settings)
    server.ended = asyncio.ensure_future(server.serve(sockets=[sock]))
    try:
        yield server
    finally:
        app.service.feed.close()
        server.should_exit = True
        await server.ended


@contextmanager
def _rereading(app: App, config: ServerConfig) -> Iterator[None]:
    """SIGHUP reads the tenants' file again. Without one it ends the server, as the end of a terminal should."""
    if config.tenants is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, app.service.tenancy.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextmanager
def _signals() -> Iterator["asyncio.Queue[int]"]:
    """SIGTERM and SIGINT, as they come, instead of what they would do."""
    heard: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, heard.put_nowait, int(number))
    try:
        yield heard
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
