"""Lines of the log: JSON that any reader takes, text for people, and whose request a line is about."""

import asyncio
import contextlib
import contextvars
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.logs import JsonLines, TextLines, about, plain, relay, say, with_fields, working_for

texts = st.text() | st.sampled_from(["\n", "\udc80", "\x00", " ", '{"a": 1}', "%s", "% d"])


def record(message: Any, *args: Any, extra: dict[str, Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    return logging.getLogger("octavo.x").makeRecord(
        "octavo.x", logging.INFO, "file.py", 7, message, args, exc_info, extra=extra
    )


def read(line: str) -> dict[str, Any]:
    """As a collector reads it: bytes of one line."""
    assert "\n" not in line
    return json.loads(line.encode("utf-8", "backslashreplace"))


@given(texts, st.lists(texts, max_size=2), texts)
def test_each_line_is_one_object_whatever_was_said(message: str, args: list[str], field: str) -> None:
    fields = read(JsonLines("serve").format(record(message, *args, extra=with_fields(field=field))))
    assert {"time", "level", "logger", "process", "message", "field"} == fields.keys()
    assert datetime.fromisoformat(fields["time"]).utcoffset() is not None
    assert (fields["level"], fields["logger"], fields["process"]) == ("INFO", "octavo.x", "serve")
    assert fields["field"] == field


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        fields = read(JsonLines("engine").format(record("it failed", exc_info=sys.exc_info())))
    assert fields["message"] == "it failed" and fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("ValueError: two\nlines")


def test_lines_of_a_task_are_about_its_request_and_lines_of_others_are_not() -> None:
    seen: dict[str, dict[str, Any]] = {}

    async def work(name: str) -> None:
        caller = working_for(name)
        await asyncio.sleep(0)
        caller.tenant = f"tenant of {name}"
        await asyncio.gather(asyncio.to_thread(log, f"thread {name}"), asyncio.create_task(later(name)))

    async def later(name: str) -> None:
        log(f"task {name}")

    def log(name: str) -> None:
        seen[name] = read(JsonLines("serve").format(record(name)))

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(work("a")), asyncio.create_task(work("b")))
        log("nobody")

    asyncio.run(main())
    for name in "ab":
        for kind in ("thread", "task"):
            line = seen[f"{kind} {name}"]
            assert (line["request_id"], line["tenant"]) == (name, f"tenant of {name}")
    assert not {"request_id", "tenant"} & seen["nobody"].keys()


def test_a_line_can_be_about_another_request() -> None:
    def lines() -> None:
        working_for("mine")
        line = record("preempted", extra=about("theirs", "red"))
        fields = read(JsonLines("serve").format(line))
        assert (fields["request_id"], fields["tenant"]) == ("theirs", "red")
        assert TextLines().format(line).endswith("INFO octavo.x: preempted (theirs)")
        assert TextLines().format(record("mine is said")).endswith("INFO octavo.x: mine is said")
        assert TextLines().format(record("it")).endswith("INFO octavo.x: it (mine)")

    contextvars.copy_context().run(lines)


@contextlib.contextmanager
def json_log() -> Iterator[io.StringIO]:
    """What is written to standard error, where the root logger writes JSON."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        handler, root = logging.StreamHandler(stderr), logging.getLogger()
        handler.setFormatter(JsonLines("serve"))
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        yield stderr
        root.removeHandler(handler)
        root.setLevel(level)


def test_what_an_engine_writes_is_handed_on_as_lines_of_ours() -> None:
    own = JsonLines("engine").format(record("loading")) + "\n"
    with json_log() as stderr:
        for line in (own, "Fatal Python error: Aborted\n", "\n", "{no json}\n"):
            relay(line)
        say("ready", sys.stdout)
    lines = [read(line) for line in stderr.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["loading", "Fatal Python error: Aborted", "{no json}", "ready"]
    assert [line["process"] for line in lines] == ["engine", "engine", "engine", "serve"]


def test_where_lines_are_text_they_are_handed_on_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("a line\n", '{"message": "x"}\n'):
        relay(line)
    say("ready", sys.stdout)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("ready\n", 'a line\n{"message": "x"}\n')


def test_the_last_words_of_an_engine_are_for_people() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        line = JsonLines("engine").format(record("the engine ends", exc_info=sys.exc_info()))
    assert plain(line).startswith("INFO octavo.x: the engine ends\nTraceback")
    assert plain("words\n") == "words\n"
