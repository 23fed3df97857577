"""`octavo serve` as its users start it: processes of its own, a free port, the default model."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from openai import OpenAI

MODEL = "default"
EXIT_S = 60


@dataclass(frozen=True, slots=True)
class Served:
    """A running server. `url` has no path."""

    url: str
    process: subprocess.Popen[str]
    log: IO[str]

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
        """All that it has logged so far."""
        self.log.seek(0)
        return self.log.read()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "octavo", *arguments]


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Starts `octavo serve` with `arguments` on a free port; ready on entry, ended on exit."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        line = command("serve", *arguments, "--served-model-name", MODEL, "--port", "0")
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        with process:
            try:
                yield _when_ready(process, log)
            finally:
                _end(process)


def _when_ready(process: subprocess.Popen[str], log: IO[str]) -> Served:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"ready on (http://[\w.:]+)", line):
            return Served(found[1], process, log)
    log.seek(0)
    raise AssertionError(f"the server ended before it was ready, with {process.wait()}: {log.read()}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
