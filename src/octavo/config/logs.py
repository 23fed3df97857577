"""Logs: how a line looks, as text for people or as JSON for machines, and whose request it belongs to.

A line of a request's own task has its id and tenant without being told; where one is about a request of somebody else,
it says so: `log.info(text, extra=about(request_id, tenant))`.
"""

import json
import logging
import sys
import threading
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

log = logging.getLogger("octavo")
output = logging.getLogger("octavo.engine.output")

JSON, TEXT = "json", "text"
FORMATS = (TEXT, JSON)
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(slots=True)
class Caller:
    """Whose request it is that a task works for."""

    request_id: str
    tenant: str = ""
    trace_id: str = ""


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def working_for(request_id: str) -> Caller:
    """From now on the lines of this task, and of those that it starts, are about this request."""
    caller = Caller(request_id)
    _caller.set(caller)
    return caller


def in_trace(trace_id: str) -> None:
    """From now on the lines of this task's request say so."""
    caller = _caller.get()
    if caller is not None:
        caller.trace_id = trace_id


def about(request_id: str, tenant: str = "", **others: Any) -> dict[str, Any]:
    """The `extra` of a line: the request that it is about, and what else is a field of its own in JSON."""
    return {"fields": _whose(Caller(request_id, tenant)) | others}


def with_fields(**fields: Any) -> dict[str, Any]:
    """The `extra` of a line with fields of its own in JSON."""
    return {"fields": fields}


def _whose(caller: Caller) -> dict[str, Any]:
    told = {"request_id": caller.request_id, "tenant": caller.tenant, "trace_id": caller.trace_id}
    return {name: value for name, value in told.items() if value}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What is known of a line beside its words."""
    caller, own = _caller.get(), record.__dict__.get("fields", {})
    return ({} if caller is None else _whose(caller)) | own


class JsonLines(logging.Formatter):
    """One object on one line: time, level, logger, process, message; request_id, tenant, trace_id where known."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _message(record: logging.LogRecord) -> str:
    """A line that is written wrongly is a line all the same."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


class TextLines(logging.Formatter):
    """A line for people; at its end the id of its request, where that is not said in it."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, request_id = super().formatMessage(record), _fields(record).get("request_id", "")
        return line if not request_id or request_id in record.message else f"{line} ({request_id})"


def begin(log_format: str, level: int, process: str) -> None:
    """Lines go to standard error from now on. Where somebody else has taken care of that, nothing changes.

    With JSON so do warnings and uncaught exceptions, each as one line.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(process) if log_format == JSON else TextLines())
    logging.basicConfig(level=level, handlers=[handler])
    if log_format == JSON:
        warnings.showwarning = _warned
        sys.excepthook = _uncaught
        threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def _warned(message: Any, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    logging.getLogger("py.warnings").warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
    if error is None or issubclass(kind, SystemExit):
        return
    log.critical("an exception that nobody expected: %s", error, exc_info=(kind, error, trace))


def writes_json() -> bool:
    """Are lines JSON?"""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def say(text: str, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """A sentence for whoever started us: on `stream`, or standard error; where the log is JSON, as a line of it."""
    if writes_json():
        log.log(level, "%s", text)
    else:
        print(text, file=stream or sys.stderr, flush=True)


# -- what another process of ours writes -----------------------------------------------------------------------------


def relay(line: str) -> None:
    """Hands on a line of the engine's output: as it is, but for words that are no JSON where lines are."""
    if writes_json() and _read(line) is None:
        if line.strip():
            output.warning("%s", line.rstrip(), extra=with_fields(process="engine"))
    else:
        sys.stderr.write(line)


def plain(line: str) -> str:
    """A line for people, also where it was JSON."""
    fields = _read(line)
    if fields is None:
        return line
    words = f"{fields.get('level')} {fields.get('logger')}: {fields.get('message')}\n"
    return words + (f"{fields['exception']}\n" if "exception" in fields else "")


def _read(line: str) -> Mapping[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None
