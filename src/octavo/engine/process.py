"""The engine's side of the boundary: load, say so, turn the loop, and never outlive whoever started it."""

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from octavo.core.events import Event
from octavo.engine.channel import Channel
from octavo.engine.clock import now
from octavo.engine.heap import settle
from octavo.engine.loop import EngineLoop, Order, Question, Replica, Withdraw
from octavo.engine.wire import (
    Asked,
    Beat,
    Cancel,
    EventWriter,
    Failed,
    Progress,
    Ready,
    Setup,
    Submit,
    WireError,
    read_ask,
    read_command,
    replied,
)

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""An engine shows that it is alive this often."""
LONGEST_STEP_S = 600.0
"""A step that computes for longer is taken for one that will never end. A large model's prompt takes minutes."""
_LEAST_CPU_S = 0.01
"""What counts as having computed: a thread that waits with a time limit takes a little, too."""
BACKLOG_BYTES = 16 << 20
"""With more than this unsent, the engine starts no further step until the reader has caught up."""
LAST_WORDS_S = 2.0
"""How long a dying engine waits for its last message to be read."""
SETTLE_S = 3.0
"""How long an engine whose work is done may go on storing KV blocks for the next one."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to a whole process group; what they mean is the parent's business."""

Report = Callable[[str], None]
Build = Callable[[bytes, Report], Replica]
"""Loads an engine from a Setup's payload, reporting what it does.

Raises ValueError, with words for people, for what is asked and cannot be. Anything else that it raises is a crash.
"""


class SocketPort:
    """The port of a loop whose orders come over a channel."""

    def __init__(self, channel: Channel, *, beat_s: float = BEAT_S, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self._channel = channel
        self._writer = EventWriter()
        self._beat_s = beat_s
        self._backlog_bytes = backlog_bytes
        self._early: list[bytes] = []
        self.turns = 0
        """How often the loop has come back for orders."""

    def setup(self) -> bytes | None:
        """Waits for the payload of the first message, or None for a channel that closes first."""
        while not self._early:
            bodies = self._channel.receive(self._beat_s)
            if bodies is None:
                return None
            self._early += bodies
        command = read_command(self._early.pop(0))
        if not isinstance(command, Setup):
            raise WireError(f"the first message is a {type(command).__name__}, not a Setup")
        return command.payload

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        self.turns += 1
        bodies = self._channel.receive(self._beat_s if idle and not self._early else 0.0)
        while bodies is not None and self._channel.backlog_bytes > self._backlog_bytes:
            more = self._channel.receive(self._beat_s)
            bodies = None if more is None else bodies + more
        if bodies is None:
            return None
        if self._early:
            bodies, self._early = self._early + bodies, []
        return [order for order in map(self._order, bodies) if order is not None]

    def publish(self, events: Sequence[Event]) -> None:
        if events:
            self._channel.send(self._writer.write(events))

    def _order(self, body: bytes) -> Order | None:
        command = read_command(body)
        if isinstance(command, Submit):
            self._writer.open(command.ticket, command.request)
            return command.request
        if isinstance(command, Cancel) and (name := self._writer.name(command.ticket)) is not None:
            return Withdraw(name, command.choice)
        if isinstance(command, Asked):
            return Question(read_ask(command), lambda reply: self._channel.send(replied(command.number, reply)))
        return None


def serve_channel(sock: socket.socket, build: Build) -> int:
    """Loads an engine and turns its loop until the other end of `sock` closes. Returns an exit status."""
    channel = Channel(sock)
    try:
        port = SocketPort(channel)
        payload = port.setup()
        return 0 if payload is None else _load_and_run(channel, port, payload, build)
    except Exception as error:
        log.exception("the engine ends")
        return _give_up(channel, Failed(f"{type(error).__name__}: {error}"))
    finally:
        channel.close()


def _load_and_run(channel: Channel, port: SocketPort, payload: bytes, build: Build) -> int:
    try:
        with _beating(channel, lambda: True):
            replica = build(payload, lambda what: channel.send(Progress(what)))
    except ValueError as error:
        log.debug("the engine cannot start", exc_info=True)
        return _give_up(channel, Failed(str(error), refused=True))
    loop = EngineLoop(replica)
    port.publish(loop.begun())
    channel.send(Ready(replica.facts))
    pulse = Pulse()
    clock = time.pthread_getcpuclockid(threading.get_ident())  # of this thread, whatever others of the process compute
    try:
        with _beating(channel, lambda: pulse.alive(port.turns, now(), time.clock_gettime(clock))):
            loop.run(port)
            loop.settle(SETTLE_S)
    finally:
        replica.backend.close()
    return 0


def _give_up(channel: Channel, failed: Failed) -> int:
    channel.send(failed)
    channel.flush(LAST_WORDS_S)
    return 1


class Pulse:
    """Tells a loop that works from one that is stuck, whatever the length of its steps: it turns, or it computes."""

    def __init__(self, longest_step_s: float = LONGEST_STEP_S) -> None:
        self._longest_step_s = longest_step_s
        self._turns = -1
        self._turned_s = 0.0
        self._cpu_s = 0.0

    def alive(self, turns: int, time_s: float, cpu_s: float) -> bool:
        """Did the loop turn since the last call, or does it compute, and not for longer than any step may take?"""
        turned, computed = turns != self._turns, cpu_s - self._cpu_s >= _LEAST_CPU_S
        if turned:
            self._turns, self._turned_s = turns, time_s
        if turned or computed:
            self._cpu_s = cpu_s
        return turned or (computed and time_s - self._turned_s <= self._longest_step_s)


@contextlib.contextmanager
def _beating(channel: Channel, alive: Callable[[], bool]) -> Iterator[None]:
    """Beats from a thread of its own while the block runs, whenever `alive` says so and nothing else is being said.

    A process that is stopped as a whole is silent by itself.
    """
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S):
            if alive() and not channel.backlog_bytes:
                channel.send(Beat())

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_child(fd: int, build: Build) -> int:
    """The whole life of an engine process whose end of the socket is `fd`. Returns its exit status."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the parent blocks them across the start
    sock = socket.socket(fileno=fd)
    threading.Thread(target=_end_with, args=(fd,), name="parent watch", daemon=True).start()
    return serve_channel(sock, lambda payload, report: _kept(build(payload, report)))


def _kept(replica: Replica) -> Replica:
    """For a process that is an engine and nothing else: another one's garbage is not an engine's business."""
    settle()
    return replica


def _end_with(fd: int) -> None:
    """Ends this process as soon as the other end of the socket `fd` is gone, whatever its main thread does."""
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll()):
        pass
    os._exit(0)
