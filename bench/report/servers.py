"""Servers: how Octavo and other engines are started, when they are ready, and when a first token comes."""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.installed import environment, llama_program, model, program
from bench.report.processes import said, started
from bench.report.section import Conditions
from bench.report.subjects import DEFAULT, path_of
from octavo.tools.cold_start import HOST, drop_cached, free_port

MODEL = "bench"
"""What all servers call their model."""
SLOTS, LONGEST = 16, 2304
"""llama-server divides its cache into equal parts: for so many requests, each of so many tokens."""
START_S = 600.0
"""A server that is not ready after that never will be."""
LOOK_S = 0.01
ANSWER_S = 120.0


class DidNotServe(RuntimeError):
    """A server that ended, was not ready in time, or refused; the message says what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How one is started; `ready` is the path that answers 200 from when on requests are served."""

    name: str
    command: tuple[str, ...]
    """PORT stands for the port."""
    env: dict[str, str]
    files: Path
    """The model."""
    ready: str = "/health"
    starts: int = 3
    """How often it is started to see how long that takes; one that takes minutes, once."""


@dataclass(frozen=True, slots=True)
class Running:
    port: int
    ready_s: float
    """From the command on."""
    first_token_s: float


PORT = "PORT"


def octavo(conditions: Conditions) -> Server:
    """With default settings."""
    path = path_of(DEFAULT, conditions)
    command = (sys.executable, "-m", "octavo", "serve", str(path), "--served-model-name", MODEL)
    return Server(
        name="octavo",
        command=(*command, "--host", HOST, "--port", PORT),
        env=dict(os.environ),
        files=path,
        ready="/health/ready",
    )


def llama_server(peers: Path) -> Server:
    """In its fastest format on a CPU, with a slot for each client."""
    file = model(peers, "Q4_0")
    words = {"-m": file, "-t": os.cpu_count(), "-np": SLOTS, "-c": SLOTS * LONGEST, "-fa": "on", "-a": MODEL}
    return Server(
        name="llama-server Q4_0",
        command=(
            str(llama_program(peers, "llama-server")),
            *(str(each) for word in words.items() for each in word),
            "--no-webui",
            *("--host", HOST, "--port", PORT),
        ),
        env=environment(peers, "llamacpp"),
        files=file,
    )


def vllm(peers: Path) -> Server:
    """In bf16, compiled: it has no quantised format on a CPU for this model."""
    folder = peers / "smollm2-hf"
    command = (str(program(peers, "vllm", "vllm")), "serve", str(folder), "--served-model-name", MODEL)
    limits = ("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "64")
    return Server(
        name="vLLM BF16",
        command=(*command, *limits, "--host", HOST, "--port", PORT),
        env=environment(peers, "vllm"),
        files=folder,
        starts=1,
    )


@contextmanager
def running(server: Server) -> Iterator[Running]:
    """A server that is ready and has given a first token; its model was not in the page cache. Raises DidNotServe."""
    drop_cached(server.files)
    port = free_port()
    began = time.perf_counter()
    with started([str(port) if word == PORT else word for word in server.command], server.env) as (process, log):
        while not is_ready(port, server.ready):
            if process.poll() is not None:
                raise DidNotServe(f"{server.name} ended with status {process.returncode}: {_last(said(log))}")
            if time.perf_counter() - began > START_S:
                raise DidNotServe(f"{server.name} was not ready after {START_S:g} s: {_last(said(log))}")
            time.sleep(LOOK_S)
        ready_s = time.perf_counter() - began
        time_to_first_token(port, "The capital of France is")
        yield Running(port, ready_s, time.perf_counter() - began)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def is_ready(port: int, path: str) -> bool:
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def time_to_first_token(port: int, prompt: str | Sequence[int]) -> float:
    """Seconds from a request to the first event with a token of its streamed answer. Raises DidNotServe."""
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    headers = {"content-type": "application/json"}
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise DidNotServe(f"status {response.status}: {response.read(500).decode(errors='replace')}")
        first_s = None
        for line in response:
            if first_s is None and line.startswith(b"data: {"):
                first_s = time.perf_counter() - began
        if first_s is None:
            raise DidNotServe("a streamed answer without an event")
        return first_s
