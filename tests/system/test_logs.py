"""The log of a real server as JSON: whatever writes to it, each line is an object."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.system.serving import command

SECRET = "xyzzy"


def lines_of(process: subprocess.Popen[str]) -> tuple[str, list[dict[str, Any]]]:
    """The server's URL, once it is ready, and all that it wrote until then."""
    lines: list[dict[str, Any]] = []
    assert process.stdout is not None
    for text in process.stdout:
        lines.append(json.loads(text))
        if found := re.search(r"ready on (http://[\w.:]+)", lines[-1]["message"]):
            return found[1], lines
    raise AssertionError(f"the server ended before it was ready: {lines}")


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Both of its streams are one, as in a container."""
    line = command("serve", "--port", "0", "--log-format", "json", "--max-num-seqs", "4", *words)
    env = {**os.environ, **environment}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_all_that_a_server_and_its_engine_write_is_json() -> None:
    """A step that fails, a client's fault, and the end of the server."""
    with started("--on-engine-failure", "exit", OCTAVO_FAULT="decode-error@2") as process:
        url, lines = lines_of(process)
        head = {"x-request-id": "mine"}
        body = {"prompt": f"{SECRET} is", "max_tokens": 5}
        assert httpx.post(f"{url}/v1/completions", json=body, headers=head, timeout=60).status_code == 500
        assert httpx.post(f"{url}/v1/completions", json={"prompt": 1.5}, headers=head, timeout=60).status_code == 400
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        lines += [json.loads(text) for text in process.stdout]
        assert process.wait(60) == 0
    for line in lines:
        assert {"time", "level", "logger", "process", "message"} <= line.keys(), line
    assert {line["process"] for line in lines} == {"serve", "engine"}
    failure = next(line for line in lines if "exception" in line)
    assert (failure["process"], failure["level"]) == ("engine", "ERROR") and "Traceback" in failure["exception"]
    access = [line for line in lines if line["logger"] == "octavo.server.access" and line["path"] == "/v1/completions"]
    assert [line["status"] for line in access] == [500, 400]
    assert {line["request_id"] for line in access} == {"mine"}
    assert SECRET not in json.dumps(lines)


def test_the_last_words_of_an_engine_that_dies_are_json_too() -> None:
    with started(OCTAVO_FAULT="engine-death@1") as process:
        url, lines = lines_of(process)
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, timeout=60).status_code == 503
        assert process.stdout is not None
        lines += [json.loads(text) for text in process.stdout]
        assert process.wait(60) == 1
    assert any(line["level"] == "CRITICAL" and line["process"] == "serve" for line in lines)


def test_a_server_that_cannot_start_says_so_in_json() -> None:
    with started("--model", "/nowhere/model.gguf") as process:
        assert process.stdout is not None
        (line,) = [json.loads(text) for text in process.stdout]
        assert process.wait(60) == 2
    assert line["level"] == "CRITICAL" and "/nowhere/model.gguf" in line["message"]
