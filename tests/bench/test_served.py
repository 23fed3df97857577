"""Servers of the report: they are started, asked and ended with all that they started; and what is said of them."""

import http.client
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench.report import servers
from bench.report.processes import lines_of, said, started
from bench.report.section import Conditions, Figure, Measured
from bench.report.served import read_load, show
from tests.tiny import make_tiny, write_gguf

ENV = dict(os.environ)
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""
RESULT: dict[str, Any] = {
    "backend": "openai",
    "num_prompts": 64,
    "request_rate": "inf",
    "max_concurrency": 16,
    "duration": 12.5,
    "completed": 63,
    "failed": 1,
    "total_input_tokens": 16128,
    "total_output_tokens": 8064,
    "output_throughput": 645.1,
    "p50_ttft_ms": 210.0,
    "p99_ttft_ms": 800.0,
    "p50_itl_ms": 15.0,
    "p99_itl_ms": 60.0,
}


def test_a_load_in_which_requests_failed_was_measured() -> None:
    load = read_load("closed", RESULT)
    seen = Measured("served", [load], {}, "", 0.0)
    assert (seen.successes, seen.failures) == ([load], []) and load["failed"] == 1


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_lines_come_as_they_are_printed_and_a_failure_at_the_end() -> None:
    code = "import sys; print('one', flush=True); print('why', file=sys.stderr); sys.exit(3)"
    lines = lines_of(python(code), ENV)
    assert next(lines) == "one\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        next(lines)
    assert (caught.value.returncode, caught.value.stderr) == (3, "why\n")


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list(lines_of(python("import signal; signal.pause()"), ENV, limit_s=0.1))


def test_what_a_program_started_ends_with_it() -> None:
    with started(python(PARENT), ENV, subprocess.PIPE) as (process, _):
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
    assert process.returncode is not None and _has_ended(child)


RUN = """
import sys
from bench.report import __main__ as report
from bench.report.processes import lines_of
from bench.report.section import Section
from bench.report.shown import Shown

def measure(_):
    for line in lines_of([sys.executable, "-c", sys.argv[2]], {}):
        print(line, end="", flush=True)
        yield {"line": line}

report.SECTIONS = (Section(name="slow", title="Slow", about="", measure=measure, show=lambda _: Shown()),)
report.main(["run", sys.argv[1]])
"""


def test_a_run_that_is_told_to_end_takes_what_it_started_with_it(tmp_path: Path) -> None:
    child = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [*python(RUN), str(tmp_path / "r.json"), child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        child_fd = os.pidfd_open(int(process.stdout.readline()))
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert _has_ended(child_fd)


def _has_ended(pidfd: int) -> bool:
    """Waits for it: a process that was killed takes a moment."""
    with os.fdopen(pidfd) as process:
        return bool(select.select([process], [], [], 30)[0])


def test_a_server_is_ready_answers_and_is_gone(tmp_path: Path) -> None:
    server = servers.octavo(Conditions(model=str(write_gguf(make_tiny(), tmp_path / "tiny.gguf"))))
    with servers.running(server) as one:
        assert 0 < one.ready_s < one.first_token_s
        assert servers.time_to_first_token(one.port, [5, 6, 7]) > 0
        with pytest.raises(servers.DidNotServe, match="status 400"):
            servers.time_to_first_token(one.port, [10**9])
    with closing(http.client.HTTPConnection(servers.HOST, one.port)) as connection, pytest.raises(OSError):
        connection.connect()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    command = tuple(python("import sys; sys.exit('the model is a turnip')"))
    server = servers.Server(name="odd", command=command, env=ENV, files=tmp_path / "model.gguf")
    with (
        pytest.raises(servers.DidNotServe, match="odd ended with status 1: the model is a turnip"),
        servers.running(server),
    ):
        pass


def test_a_log_is_read_from_its_beginning() -> None:
    with started(python("import sys; sys.stderr.write('a\\nb\\n')"), ENV) as (process, log):
        process.wait()
        assert said(log) == "a\nb\n"


def test_of_a_load_s_result_what_the_page_shows_is_kept() -> None:
    assert read_load("closed", RESULT) == {
        "kind": "load",
        "arrivals": "closed",
        "completed": 63,
        "failed": 1,
        "duration": 12.5,
        "output_throughput": 645.1,
        "p50_ttft_ms": 210.0,
        "p99_ttft_ms": 800.0,
        "p50_itl_ms": 15.0,
        "p99_itl_ms": 60.0,
    }
    with pytest.raises(LookupError):
        read_load("closed", {})


def of(server: str, scale: float) -> list[Figure]:
    """All figures of a server that is `scale` times as slow as one."""
    slower = {name: RESULT[name] * scale for name in RESULT if name.startswith("p")}
    load = read_load("closed", RESULT | slower | {"output_throughput": 800.0 / scale})
    return [
        {"server": server, "kind": "start", "ready_s": 1.0 * scale, "first_token_s": 1.5 * scale},
        {"server": server, "kind": "start", "ready_s": 1.2 * scale, "first_token_s": 1.4 * scale},
        {"server": server, "kind": "cached", "new_s": [1.0, 2.0, 3.0], "again_s": [0.05, 0.1, 9.0]},
        {"server": server} | load,
        {"server": server} | load | {"arrivals": "poisson"},
    ]


def test_claims_of_servers_are_ratios_to_each_other_server() -> None:
    offline = {"kind": "offline", "tokens": 8192, "full_s": [10.0, 8.192]}
    figures = [offline, *of("octavo", 1.0), *of("llama-server Q4_0", 4.0), *of("vLLM BF16", 2.0)]
    claims = {claim.what: (claim.value, claim.target.verdict(claim.value)) for claim in show(figures).claims}
    assert claims["served, 16 clients, output tokens/s, to llama-server"] == (pytest.approx(4.0), "met")
    assert claims["served, 16 clients, output tokens/s, to vLLM"] == (pytest.approx(2.0), "missed")
    assert claims["served, 16 clients, p99 ITL, of vLLM's"] == (pytest.approx(0.5), "met")
    assert claims["served, of our own offline figure"] == (pytest.approx(80.0), "missed")
    assert claims["ready after a cold start"] == (1.0, "met")
    assert claims["first token after a cold start"] == (1.4, "met")
    assert claims["ready sooner than vLLM"] == (pytest.approx(2.0), "missed")
    assert claims["first token of a cached 2k prompt, of the uncached one's time"] == (pytest.approx(5.0), "met")


def test_a_server_that_is_not_there_leaves_its_ratios_open() -> None:
    claims = {claim.what: claim.value for claim in show(of("octavo", 1.0)).claims}
    assert claims["served, 16 clients, output tokens/s, to vLLM"] is None
    assert claims["served, of our own offline figure"] is None
    assert claims["ready after a cold start"] == 1.0


def test_tables_have_a_row_for_each_server() -> None:
    starts, cached, loads = show([*of("octavo", 1.0), *of("vLLM BF16", 2.0)]).tables
    assert [row[0] for row in starts.rows] == [row[0] for row in cached.rows] == ["octavo", "vLLM BF16"]
    assert cached.rows[0][1:] == pytest.approx([2000.0, 100.0, 5.0])
    assert [row[:4] for row in loads.rows[1:]] == [
        ["octavo", "16 clients, 64 prompts", 63, 1],
        ["vLLM BF16", "16 clients, 64 prompts", 63, 1],
        ["octavo", "1 request/s, Poisson, 24 prompts", 63, 1],
        ["vLLM BF16", "1 request/s, Poisson, 24 prompts", 63, 1],
    ]


def test_a_result_is_json() -> None:
    assert json.loads(json.dumps(read_load("closed", RESULT))) == read_load("closed", RESULT)
