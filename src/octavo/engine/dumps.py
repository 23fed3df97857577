"""Dumps: writes the record of an engine down when something is wrong with it, or when somebody asks. Not too often."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from octavo import __version__
from octavo.core.scheduler import Scheduler
from octavo.core.snapshot import Snapshot, snapshot
from octavo.engine import dump
from octavo.engine.clock import now
from octavo.engine.confide import confided
from octavo.engine.recorder import RecordedScheduler

log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""After a dump that nobody asked for, the next such one is not before."""
_MOST_REQUESTS = 200
_MOST_CELLS = 1024


class Dumps:
    """Where dumps go. What is slow about one happens in a thread, unless the engine is about to end."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._fingerprint = fingerprint
        self._next_s = 0.0

    def soon(self, scheduler: Scheduler, reason: str, message: str) -> None:
        """Something is wrong, and the engine goes on."""
        if now() >= self._next_s:
            self._next_s = now() + PAUSE_S
            self.asked(scheduler, reason, message, _log)

    def asked(self, scheduler: Scheduler, reason: str, message: str, reply: Callable[[Path | Exception], None]) -> None:
        """`reply` is called with the file's path, or with why there is none; in another thread."""
        write = self._writer(scheduler, reason, message)
        threading.Thread(target=lambda: reply(write()), name="dump", daemon=True).start()

    def last(self, scheduler: Scheduler, reason: str, message: str) -> None:
        """The engine is about to end: returns once the file is there, or cannot be."""
        _log(self._writer(scheduler, reason, message)())

    def _writer(self, scheduler: Scheduler, reason: str, message: str) -> Callable[[], Path | Exception]:
        """What is left to be done once the engine goes on: the record itself is copied here."""
        record = scheduler.record if isinstance(scheduler, RecordedScheduler) else None
        entries, num_lost = ([], 0) if record is None else (record.entries(), record.num_lost)
        look, limits, written = _look(scheduler), scheduler.limits, time.time()

        def write() -> Path | Exception:
            try:
                told = dump.Dump(
                    version=dump.VERSION,
                    reason=reason,
                    message=message,
                    octavo=__version__,
                    fingerprint=self._fingerprint,
                    written=written,
                    record=confided(entries, num_lost, limits),
                    snapshot=look,
                )
                return dump.write(told, self.folder)
            except Exception as error:  # noqa: BLE001 - a dump that cannot be made must not hurt the engine
                return error

        return write


def _look(scheduler: Scheduler) -> Snapshot | None:
    """Without names of tenants."""
    try:
        look = snapshot(scheduler, _MOST_REQUESTS, _MOST_CELLS, now())
    except Exception:  # noqa: BLE001 - it may be broken: that is why there is a dump
        return None
    return dataclasses.replace(look, requests=tuple(dataclasses.replace(one, tenant="") for one in look.requests))


def _log(outcome: Path | Exception) -> None:
    if isinstance(outcome, Exception):
        log.error("the record of the engine cannot be written: %s: %s", type(outcome).__name__, outcome)
    else:
        log.warning("the record of the engine is in %s; `octavo replay` makes its plans again", outcome)
