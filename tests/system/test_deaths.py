"""Processes that die, and steps that fail, in a server as its users start it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tests.system.serving import EXIT_S, MODEL, Served, command, serving

SMALL = ("--max-model-len", "512", "--max-num-seqs", "4")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds children in /proc")


def child_of(server: Served, word: bytes) -> int:
    (found,) = server.children(word)
    return found


@contextmanager
def begun(server: Served) -> Iterator[Iterator[object]]:
    """A long answer, of which something has come."""
    fields = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    with (
        server.client() as client,
        client.completions.create(model=MODEL, prompt="The sea", stream=True, **fields) as stream,
    ):
        answer = iter(stream)
        next(answer)
        yield answer


def test_a_killed_engine_ends_streams_and_server(default_model: Path) -> None:
    with serving(str(default_model), *SMALL) as server, begun(server) as answer:
        os.kill(child_of(server, b"engine"), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="SIGKILL"):
            list(answer)
        assert server.process.wait(EXIT_S) == 1
        assert "SIGKILL" in server.words()


CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ended_leaves_no_engine_and_no_trial(default_model: Path, number: int) -> None:
    with serving(str(default_model), *SMALL) as server, server.client() as client, begun(server):
        client.completions.create(model=MODEL, prompt="Well?", extra_body=CHOICE)
        left = [os.pidfd_open(pid) for pid in (child_of(server, b"engine"), child_of(server, b"trial"))]
        server.process.send_signal(number)
        for process in left:
            assert select.select([process], [], [], EXIT_S)[0]
            os.close(process)


def test_a_failing_step_is_a_500_and_the_server_lives_on(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its record is a file whose plans can be made again."""
    monkeypatch.setenv("OCTAVO_FAULT", "decode-error@3")
    monkeypatch.setenv("OCTAVO_CRASH_DUMP_DIR", str(tmp_path))
    with serving(str(default_model), *SMALL) as server, server.client() as client:
        with pytest.raises(openai.InternalServerError, match="injected on purpose"):
            client.completions.create(model=MODEL, prompt="The sea", max_tokens=5)
        answer = client.completions.create(model=MODEL, prompt="The sea", max_tokens=2)
        assert answer.usage is not None and answer.usage.completion_tokens == 2
    (dump,) = tmp_path.iterdir()
    done = subprocess.run(command("replay", str(dump)), capture_output=True, text=True, timeout=EXIT_S, check=True)
    assert done.stdout.startswith("step failed: ") and "3 plans with 3 works are the same" in done.stdout
