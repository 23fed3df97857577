"""`octavo doctor --cold-start`: how long a server takes to its first token, stage by stage, and which probes fit that.

It is started as a user would: a process of its own, with the same settings, asked over HTTP as a kubelet does. Files of
the model are dropped from the page cache before each start, since the first pod on a node finds nothing there.
"""

import argparse
import http.client
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from octavo.config.schema import Setting, settings
from octavo.config.sources import Resolved
from octavo.models.catalog import names_of
from octavo.tools.pull import fetch
from octavo.tools.terminal import note, to_json

NUM_STARTS = 3
MARGIN = 5
"""A start may take so many times what the slowest took here: a busy node, a slower disk, several pods at once."""
LEAST_S = 60
"""Less is no budget for a start: what it would save is the wait for a pod that will never be ready."""
LOOK_S = 0.01
GIVE_UP_S = 3600.0
"""For one start."""
END_S = 60.0
HOST = "127.0.0.1"
STARTING, READY = "processes, until somebody listens", "ready"
_OURS = ("host", "port", "api_key", "grpc", "shutdown_delay")
"""Settings of the measured server that are not the user's: it is nobody's but ours, and gone soon."""


class DidNotStart(RuntimeError):
    """A server that ended, or was not ready in time; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: when each stage began, counted from the command."""

    stages: tuple[tuple[str, float], ...]
    """Each stage and when it was first seen; the last is READY."""
    first_token_s: float
    slowest_answer_s: float
    """The longest that a probe was kept waiting, once one had been answered."""

    @property
    def ready_s(self) -> float:
        return self.stages[-1][1]

    @property
    def lengths(self) -> dict[str, float]:
        """How long each stage took. They add up to `ready_s`."""
        ends = [began for _, began in self.stages[1:]]
        return {name: end - began for (name, began), end in zip(self.stages[:-1], ends, strict=True)}


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Measures, and prints a table and the probes, or all of it as JSON."""
    model = fetch(resolved.config.model.model)
    words = serve_words(resolved, options.config_file)
    starts: list[Start] = []
    for number in range(1, NUM_STARTS + 1):
        note(f"start {number} of {NUM_STARTS}")
        drop_cached(model)
        starts.append(start_once(words))
    values = {"probes": probes(starts)}
    name = names_of(resolved.config.model.model, resolved.config.model.served_model_name)[0]
    if options.json:
        text = to_json({"model": name, "starts": [_row_of(start) for start in starts], "values": values}, indent=2)
    else:
        text = "\n".join((f"{name}, {len(starts)} starts, in seconds", *table(starts), "", *as_yaml(starts, values)))
    sys.stdout.write(text + "\n")
    return 0


def _row_of(start: Start) -> dict[str, Any]:
    return {"stages_s": start.lengths, "ready_s": start.ready_s, "first_token_s": start.first_token_s}


# -- one start -------------------------------------------------------------------------------------------------------


def serve_words(resolved: Resolved, file: str | None) -> list[str]:
    """The flags of `octavo serve` that say what was said to this command; the environment is the same anyway."""
    flags = [_flag(settings()[name], _value(resolved, name)) for name in resolved.origins if _is_flag(resolved, name)]
    return [*flags, *([] if file is None else ["--config", file])]


def _is_flag(resolved: Resolved, name: str) -> bool:
    return resolved.origins[name].kind == "flag" and name not in _OURS


def _value(resolved: Resolved, name: str) -> Any:
    return getattr(getattr(resolved.config, settings()[name].section), name)


def _flag(setting: Setting, value: Any) -> str:
    if setting.kind is bool:
        return setting.flag if value else f"--no-{setting.flag.removeprefix('--')}"
    text = "auto" if value is None else json.dumps(value) if setting.kind is tuple else str(value)
    return f"{setting.flag}={text}"


def drop_cached(model: Path) -> None:
    """Makes the next reader of this file or folder go to the disk, where the system can forget files."""
    for path in [model] if model.is_file() else [each for each in model.rglob("*") if each.is_file()]:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start_once(words: Sequence[str]) -> Start:
    """Starts a server with these flags, waits for its first token, and ends it. Raises DidNotStart."""
    port, key = free_port(), secrets.token_urlsafe(16)
    ours = [f"--host={HOST}", f"--port={port}", f"--api-key={key}", "--no-grpc", "--shutdown-delay=0"]
    command = [sys.executable, "-m", "octavo", "serve", *words, *ours]
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as server,
    ):
        try:
            watch = _Watch(port)
            for _ in _while_alive(server, log):
                if watch.sees_ready(began):
                    break
            _first_token(port, key)
            return Start(tuple(watch.stages.items()), time.perf_counter() - began, watch.slowest_s)
        finally:
            _end(server)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


def _while_alive(server: subprocess.Popen[bytes], log: IO[str]) -> Iterator[None]:
    """Every now and then, for as long as it may take. Raises DidNotStart."""
    for _ in range(int(GIVE_UP_S / LOOK_S)):
        yield
        if server.poll() is not None:
            log.seek(0)
            last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
            raise DidNotStart(f"the server ended with status {server.returncode}: {last}")
        time.sleep(LOOK_S)
    raise DidNotStart(f"the server was not ready after {GIVE_UP_S:g} s")


@dataclass(slots=True)
class _Watch:
    """What a server that starts says of itself, and since when."""

    port: int
    stages: dict[str, float] = field(default_factory=lambda: {STARTING: 0.0})
    slowest_s: float = 0.0

    def sees_ready(self, began: float) -> bool:
        asked = time.perf_counter()
        stage = _stage(self.port)
        now = time.perf_counter()
        if stage is None:
            return False
        if len(self.stages) > 1:  # the first was waiting at the door before there was a server behind it
            self.slowest_s = max(self.slowest_s, now - asked)
        self.stages.setdefault(stage, now - began)
        return stage == READY


def _stage(port: int) -> str | None:
    """What the server is doing, without the numbers; None where nobody answers."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=GIVE_UP_S)) as connection:
        try:
            connection.request("GET", "/health/ready")
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return None
    if response.status == 200:
        return READY
    return body["error"]["message"].removeprefix("the model is still loading: ").partition(":")[0]


def _first_token(port: int, key: str) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with closing(http.client.HTTPConnection(HOST, port, timeout=GIVE_UP_S)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read().decode(errors="replace")
    if response.status != 200:
        raise DidNotStart(f"the first request was answered with {response.status}: {answer[:500]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        server.kill()


# -- what follows from them ------------------------------------------------------------------------------------------


def probes(starts: Iterable[Start]) -> dict[str, dict[str, int]]:
    """Probes of a pod, as the Helm chart's value `probes`.

    startup asks for readiness, so that a model that never loads ends in a restart: MARGIN times the slowest start, in
    periods of a tenth of it. liveness adds to the 15 s of silence after which the server itself says that its engine is
    stuck. readiness is what takes a replica out of balancing, so it is asked often. A timeout is ten times the slowest
    answer, and never short: a busy node is no reason to restart a pod.
    """
    measured = list(starts)
    slowest_s = max(start.ready_s for start in measured)
    timeout = math.ceil(10 * max(start.slowest_answer_s for start in measured))
    period = min(10, max(1, int(slowest_s / 10)))
    budget_s = max(LEAST_S, MARGIN * slowest_s)
    return {
        "startup": _probe(period, math.ceil(budget_s / period), max(2, timeout)),
        "liveness": _probe(10, 3, max(5, timeout)),
        "readiness": _probe(2, 2, max(2, timeout)),
    }


def _probe(period: int, failures: int, timeout: int) -> dict[str, int]:
    return {"periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": timeout}


def table(starts: Sequence[Start]) -> Iterator[str]:
    """A row for each stage, a column for each start. What took no time that could be seen has none."""
    stages = list(dict.fromkeys(name for start in starts for name in start.lengths))
    width = max(len(name) for name in (*stages, "ready after", "first token after"))
    for name in stages:
        yield _row(name, width, [start.lengths.get(name) for start in starts])
    yield _row("ready after", width, [start.ready_s for start in starts])
    yield _row("first token after", width, [start.first_token_s for start in starts])


def _row(name: str, width: int, seconds: Iterable[float | None]) -> str:
    return f"  {name:{width}}" + "".join(" " * 9 if each is None else f"{each:9.2f}" for each in seconds)


def as_yaml(starts: Sequence[Start], values: dict[str, Any]) -> Iterator[str]:
    """What to paste into values.yaml of the Helm chart, and why."""
    import yaml

    slowest_s = max(start.ready_s for start in starts)
    yield f"# the slowest start took {slowest_s:.1f} s here, and may take {MARGIN} times that, at least {LEAST_S} s"
    yield yaml.safe_dump(values, sort_keys=False).rstrip()
