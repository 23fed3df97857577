"""`octavo serve` as its users start it: processes of its own, a free port, the default model."""

import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

MODEL = "default"
EXIT_S = 60


@dataclass(frozen=True, slots=True)
class Served:
    """A running server. `url` has no path."""

    url: str
    process: subprocess.Popen[str]
    output: "Output"

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def children(self, word: bytes) -> list[int]:
        """Its processes whose command line has this word. Each thread has children of its own."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return [child for child in children if word in Path(f"/proc/{child}/cmdline").read_bytes()]

    def words(self) -> str:
        """All that it has written so far; all that it ever wrote, once it has ended."""
        if self.process.poll() is not None:
            self.output.thread.join(EXIT_S)
        return "".join(self.output.lines)


class Output:
    """What a process writes, taken as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._urls: queue.Queue[str] = queue.Queue()
        self.thread = threading.Thread(target=self._take, args=(process,), daemon=True)
        self.thread.start()

    def url(self) -> str:
        """Where the server listens, once it says so; empty: it ended before."""
        return self._urls.get()

    def _take(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if found := re.search(r"ready on (http://[\w.:]+)", line):
                self._urls.put(found[1])
        self._urls.put("")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "octavo", *arguments]


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Starts `octavo serve` with `arguments` on a free port; ready on entry, ended on exit."""
    line = command("serve", *arguments, "--served-model-name", MODEL, "--port", "0")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output = Output(process)
        try:
            yield _when_ready(process, output)
        finally:
            _end(process)
            output.thread.join(EXIT_S)


def _when_ready(process: subprocess.Popen[str], output: Output) -> Served:
    if url := output.url():
        return Served(url, process, output)
    raise AssertionError(f"the server ended before it was ready, with {process.wait()}: {''.join(output.lines)}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
