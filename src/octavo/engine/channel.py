"""A socket between two processes that frames messages and never makes its owner wait longer than it asked to."""

import select
import socket
import threading

from octavo.engine.wire import Command, Deframer, News, frame

_READ_BYTES = 1 << 18


class Channel:
    """One end of a stream socket. Reading and waiting are for one thread; `send` may be called by any."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._deframer = Deframer()
        self._unsent = bytearray()
        self._lock = threading.Lock()
        self._open = True

    @property
    def backlog_bytes(self) -> int:
        """What the other end has not taken yet."""
        return len(self._unsent)

    def send(self, message: Command | News) -> None:
        """Sends what the socket takes now and keeps the rest for `receive` to send. Never waits."""
        data = frame(message)
        with self._lock:
            if self._unsent:
                self._unsent += data
                return
            sent = self._send(data)
            self._unsent += memoryview(data)[sent:]

    def receive(self, wait_s: float = 0.0) -> list[bytes] | None:
        """The message bodies that have come; None where the other end is gone.

        Waits at most `wait_s` for one to come, sending what is unsent meanwhile.
        """
        if wait_s > 0:
            self._wait(wait_s)
        self._flush()
        return list(self._deframer.feed(self._read())) if self._open else None

    def flush(self, wait_s: float) -> bool:
        """Waits at most about `wait_s` for the other end to take everything. True where it did."""
        while self._unsent and self._open:
            if not self._wait(wait_s, select.POLLOUT):
                return False
            self._flush()
        return self._open

    def close(self) -> None:
        self._open = False
        self._sock.close()

    def _wait(self, wait_s: float, events: int = select.POLLIN) -> bool:
        poll = select.poll()
        poll.register(self._sock, events | (select.POLLOUT if self._unsent else 0))
        return bool(poll.poll(wait_s * 1000))

    def _flush(self) -> None:
        if self._unsent:
            with self._lock:
                del self._unsent[: self._send(self._unsent)]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._open = False
            return len(data)

    def _read(self) -> bytes:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._open = False
        return data
