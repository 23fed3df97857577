"""Other programs: each in a process group of its own, so that nothing of it is left, however a measurement ends."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

LIMIT_S = 900.0
"""A program that prints lines is ended after that: something in it hangs."""
PATIENCE_S = 20.0
"""For a program that was told to end."""


@contextmanager
def started(
    command: Sequence[str], env: dict[str, str], stdout: int = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A program, and what it writes to standard error. Afterwards it has ended, with all that it started."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, env=env, stdout=stdout, stderr=log, text=True, start_new_session=True)
        try:
            yield process, log
        finally:
            _end(process)
            if process.stdout is not None:
                process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    _tell(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
    _tell(process.pid, signal.SIGKILL)
    process.wait()


def _tell(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def lines_of(command: Sequence[str], env: dict[str, str], limit_s: float = LIMIT_S) -> Iterator[str]:
    """What a program prints, line by line. Raises CalledProcessError at its end where it failed, or ran too long."""
    with started(command, env, subprocess.PIPE) as (process, log):
        timer = threading.Timer(limit_s, _tell, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            assert process.stdout is not None
            yield from process.stdout
            status = process.wait()
        finally:
            timer.cancel()
        if status:
            raise subprocess.CalledProcessError(status, list(command), stderr=said(log))


def said(log: IO[str]) -> str:
    log.seek(0)
    return log.read()
