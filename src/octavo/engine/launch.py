"""Two ways to have an engine at the other end of a RemoteClient: a child process, and a thread (for tests)."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from octavo.config.logs import plain, relay
from octavo.engine.client import EngineDead
from octavo.engine.process import SIGNALS, Build, serve_channel
from octavo.engine.remote import RemoteClient

CLOSE_S = 5.0
"""How long an engine may take to end by itself once its parent has let go of it."""
_EXIT_S = 0.5
"""How long a process may take to be gone once its socket has closed."""
_LAST_LINES = 20


class ProcessClient(RemoteClient):
    """An engine in a child process, started by the constructor: it loads while the parent does other things."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        """`command(fd)` is the child's command line; the child finds its end of the socket at `fd`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start(command(theirs.fileno()), theirs.fileno())
        self._words = _LastWords(self._process.stdout)
        super().__init__(ours)

    def kill(self) -> None:
        """Ends the child at once: for those who give up before there is an event loop to `close` in."""
        self._process.kill()
        self._process.wait()
        self._words.join()
        self._sock.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def describe_end(self) -> str | None:
        """Waits for the child, which has let go of its socket; one that lives on cannot be reached and is killed."""
        try:
            status = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"the engine process (pid {self.pid}) closed its connection without ending; it was killed"
        return f"the engine process (pid {self.pid}) {_how(status)}{self._words.quote()}"

    async def close(self, why: EngineDead | None = None) -> None:
        await super().close(why)
        if why is not None:
            self._process.kill()  # whoever has a reason does not wait for it
        await asyncio.get_running_loop().run_in_executor(None, self._reap, CLOSE_S + self._settle_s)
        self._hang_up()

    def _reap(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.join()


def _start(command: Sequence[str], fd: int) -> "subprocess.Popen[bytes]":
    """Starts the child with SIGINT and SIGTERM blocked until it has said what it does with them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            command,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


class _LastWords:
    """Passes on what a child prints to our standard error, and remembers the last lines of it."""

    def __init__(self, pipe: "IO[bytes] | None") -> None:
        assert pipe is not None
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._read, name="engine output", daemon=True)
        self._thread.start()

    def quote(self) -> str:
        """The last lines as an appendix to a sentence; empty where there are none."""
        self._thread.join(_EXIT_S)
        return "; its last lines:\n" + "".join(map(plain, self._lines)).rstrip() if self._lines else ""

    def join(self) -> None:
        self._thread.join(_EXIT_S)

    def _read(self) -> None:
        with self._pipe:
            for raw in self._pipe:
                line = raw.decode(errors="replace")
                self._lines.append(line)
                with contextlib.suppress(OSError, ValueError):
                    relay(line)


class InProcessClient(RemoteClient):
    """An engine in a thread of this process, behind the same socket and messages as one in a child."""

    def __init__(self, build: Build, setup: bytes = b"") -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.setup(setup)
        self._thread = threading.Thread(target=serve_channel, args=(theirs, build), name="engine", daemon=True)
        self._thread.start()

    async def close(self, why: EngineDead | None = None) -> None:
        await super().close(why)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_S)
