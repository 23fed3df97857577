"""The engine's end of the socket: slow readers, early and broken messages, beats, and the other end closing."""

import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from octavo.core.events import BlockEvicted
from octavo.engine import process, wire
from octavo.engine.channel import Channel
from octavo.engine.loop import Withdraw
from octavo.engine.process import SocketPort, serve_channel
from tests.engine.replicas import Plan, build, request

BACKLOG = 100_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        yield ours, theirs


def messages(sock: socket.socket) -> Iterator[wire.News]:
    """What comes, until the other end closes."""
    deframer = wire.Deframer()
    while data := sock.recv(1 << 16):
        yield from map(wire.read_news, deframer.feed(data))


def read(sock: socket.socket, count: int) -> list[wire.News]:
    """The next `count` messages, or as many as come."""
    return list(islice(messages(sock), count))


def overfill(port: SocketPort, channel: Channel) -> list[BlockEvicted]:
    """Publishes, without anyone reading, until the port must not let a step start."""
    sent: list[BlockEvicted] = []
    while channel.backlog_bytes <= BACKLOG:
        sent.append(BlockEvicted(float(len(sent)), bytes(1000)))
        port.publish([sent[-1]])
    return sent


def waiting(port: SocketPort) -> tuple[threading.Thread, list[object]]:
    """A thread in which the port receives, and where its answer will be."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(port.receive(idle=False)))
    thread.start()
    return thread, answers


def test_a_slow_reader_holds_up_the_engine_and_loses_nothing(pair):
    ours, theirs = pair
    channel = Channel(theirs)
    port = SocketPort(channel, backlog_bytes=BACKLOG)
    sent = overfill(port, channel)
    thread, answers = waiting(port)
    assert not answers
    got = read(ours, len(sent))
    thread.join(30)
    assert answers == [[]]
    assert [event for message in got for event in wire.read_events(message, {})] == sent


def test_a_slow_reader_that_dies_ends_the_wait(pair):
    ours, theirs = pair
    channel = Channel(theirs)
    port = SocketPort(channel, backlog_bytes=BACKLOG)
    overfill(port, channel)
    thread, answers = waiting(port)
    ours.close()
    thread.join(30)
    assert answers == [None]


def test_orders_that_come_with_the_setup_are_not_lost(pair):
    ours, theirs = pair
    a = request("a")
    commands = (wire.Setup(b"x"), wire.Submit(1, a), wire.Cancel(1), wire.Cancel(2))
    ours.sendall(b"".join(map(wire.frame, commands)))
    port = SocketPort(Channel(theirs))
    assert port.setup() == b"x"
    assert port.receive(idle=True) == [a, Withdraw("a")]


def test_a_loader_beats_and_reports_and_an_idle_loop_beats(pair):
    ours, theirs = pair
    loaded = threading.Event()

    def slow(payload, report):
        report("reading")
        assert loaded.wait(30)
        return build(payload, report)

    ours.sendall(wire.frame(wire.Setup(Plan().encode())))
    thread = threading.Thread(target=serve_channel, args=(theirs, slow))
    thread.start()
    news = messages(ours)
    assert wire.Progress("reading") in news  # `in` reads on until it finds it
    assert wire.Beat() in news
    loaded.set()
    assert any(isinstance(message, wire.Ready) for message in news)
    assert wire.Beat() in news
    ours.close()
    thread.join(30)
    assert not thread.is_alive()


@contextmanager
def computing() -> Iterator[None]:
    """Another thread of the process computes as long as the block runs."""
    done = threading.Event()
    zeros = bytes(1 << 20)

    def compute() -> None:
        while not done.is_set():
            zlib.crc32(zeros)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)


def test_a_stuck_step_shows_no_life_whatever_else_the_process_computes(
    pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "BEAT_S", 0.02)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    ours, theirs = pair
    ours.sendall(wire.frame(wire.Setup(Plan(gate=str(gate)).encode())))
    thread = threading.Thread(target=serve_channel, args=(theirs, build))
    thread.start()
    with gate.open("wb", buffering=0) as release, computing():
        news = messages(ours)
        assert any(isinstance(message, wire.Ready) for message in news)
        ours.sendall(wire.frame(wire.Submit(1, request("a"))))
        ours.settimeout(0.5)
        with pytest.raises(TimeoutError):
            stop_s = time.monotonic() + 30
            while time.monotonic() < stop_s:  # until half a second, which is 25 beats, passes without one
                next(news)
        release.write(b".")
        ours.settimeout(30)
        assert wire.Beat() in messages(ours)
    ours.close()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "data",
    [wire.frame(wire.Cancel(1)), b"\x01\x00\x00\x00\xc1", (2**32 - 1).to_bytes(4, "little")],
    ids=["no setup", "no message", "impossible length"],
)
def test_a_peer_that_talks_nonsense_is_told_so(pair, caplog, data):
    ours, theirs = pair
    ours.sendall(data)
    assert serve_channel(theirs, build) == 1
    (failed,) = read(ours, 2)
    assert isinstance(failed, wire.Failed) and failed.message.startswith("WireError")


def test_an_end_before_the_setup_is_no_failure(pair):
    ours, theirs = pair
    ours.close()
    assert serve_channel(theirs, build) == 0
