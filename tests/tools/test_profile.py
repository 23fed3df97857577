"""`octavo profile step`: the phases add up to the step, the table to the limits, and the trace is one that opens."""

import contextlib
import io
import json
import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import OK, USAGE, main
from octavo.core.ports import KernelSpan, MachineRates
from octavo.tools.chrome_trace import chrome_trace
from octavo.tools.roofline import lines, summarise
from octavo.tools.turns import Turn
from tests.tools.conftest import SMALL

Capture = pytest.CaptureFixture[str]
ROOM = ("--num-blocks", "64", "--num-threads", "1")
PHASES = {"plan", "marshal", "commit", "publish"}
NATIVE = {"check", "embed", "head", "head prepare", "sample", "attention rope_store", "attention attend"} | {
    f"{op} {kernel}" for op in ("qkv", "o", "gate_up", "down") for kernel in ("prepare", "matmul")
}
STORED_APART = {"attention rope_store"}
"""A decode's keys and values are stored by those who attend to them."""


@pytest.fixture(scope="module")
def profiled(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the command prints as JSON, and its trace."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    words = ["profile", "step", str(tiny_gguf), "--batch", "3", "--prompt-len", "20", "--context", "40", "--steps", "4"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words, *ROOM, "--json", "--trace", str(trace)]) == OK
    return json.loads(out.getvalue()), json.loads(trace.read_text(encoding="utf-8"))


def test_the_steps_are_those_that_were_asked_for(profiled: tuple[dict[str, Any], dict[str, Any]]) -> None:
    prompt, decode = profiled[0]["profiles"]
    assert prompt["num_steps"] * prompt["num_tokens"] == pytest.approx(3 * 20)
    assert (decode["num_steps"], decode["num_works"], decode["num_tokens"]) == (4, 3, 3)


def test_rows_are_all_phases_and_add_up_to_the_step(profiled: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for profile in profiled[0]["profiles"]:
        rows = profile["rows"]
        assert {row["name"] for row in rows} == PHASES | (
            NATIVE - STORED_APART if profile["name"] == "decode" else NATIVE
        )
        assert {row["name"] for row in rows if not row["is_kernel"]} == PHASES
        assert math.isclose(sum(row["time_s"] for row in rows), profile["step_s"], rel_tol=1e-6)
        assert [row["time_s"] for row in rows] == sorted((row["time_s"] for row in rows), reverse=True)
        assert profile["best_step_s"] <= profile["step_s"] * (1 + 1e-9)
        assert 0 < profile["limit_s"] == pytest.approx(sum(row["limit_s"] for row in rows))


def test_the_trace_nests_on_each_thread(profiled: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """What Perfetto asks of complete events: one thread's are apart, or one inside the other."""
    events = profiled[1]["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    slices = [event for event in events if event["ph"] == "X"]
    assert all(
        event["dur"] >= 0 and event["ts"] >= 0 and {"name", "cat", "pid", "tid"} <= event.keys() for event in slices
    )
    for thread in {event["tid"] for event in slices}:
        own = sorted((event for event in slices if event["tid"] == thread), key=lambda e: (e["ts"], -e["dur"]))
        ends: list[float] = []
        for event in own:
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    steps = [event for event in slices if event["name"] == "step"]
    assert len(steps) == sum(profile["num_steps"] for profile in profiled[0]["profiles"])
    assert all(one["ts"] + one["dur"] <= two["ts"] + 1e-3 for one, two in pairwise(steps))
    assert {event["name"] for event in slices if event["cat"] == "kernel"} == NATIVE


def test_for_people_it_is_a_table_for_each_kind_of_step(
    tiny_gguf: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["profile", "step", str(tiny_gguf), "--prompt-len", "5", "--steps", "2", *ROOM]) == OK
    text = capsys.readouterr().out
    assert "measured limits: " in text and "\nprompt: 1 steps" in text and "\ndecode: 2 steps" in text
    assert text.count("qkv matmul") == text.count("publish") == 2
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trace", "/no/such/folder/trace.json"], "cannot write the trace /no/such/folder/trace.json: No such file"),
        (["--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--batch", "70", "--max-num-seqs", "64", *ROOM], "raise --max-num-seqs"),
        (["--context", "300", *ROOM], "requests of 333 tokens are longer than the 256 that the engine takes"),
        (["--batch", "8", "--prompt-len", "100", "--num-blocks", "20"], "need 72 blocks of 16, and there are 20"),
        (["--prompt-len", "20", *SMALL], "the backend reference, as it is configured, cannot say"),
    ],
)
def test_what_cannot_be_measured_is_said(tiny_gguf: Path, words: list[str], said: str, capsys: Capture) -> None:
    assert main(["profile", "step", str(tiny_gguf), *words]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err


# -- the arithmetic, on a turn made by hand ---------------------------------------------------------------------------

RATES = MachineRates(bytes_per_s=1000.0, operations_per_s={"q8": 10_000.0})


def span(op: str, kernel: str, began_s: float, ended_s: float, streamed: float, operations: float) -> KernelSpan:
    return KernelSpan(op, kernel, 0, "q8", 4, began_s, ended_s, streamed, 2 * streamed, 8.0, operations)


def turn() -> Turn:
    spans = (
        span("qkv", "prepare", 3.0, 3.5, 0.0, 0.0),
        span("qkv", "matmul", 3.5, 5.5, 1000.0, 5000.0),
        span("attention", "attend", 5.5, 6.0, 100.0, 4000.0),
    )
    return Turn(2, 4, 0.0, 2.0, 7.0, 8.0, 10.0, spans)


def test_a_limit_is_the_larger_of_two_times() -> None:
    rows = {row.name: row for row in summarise("x", [turn(), turn()], RATES).rows}
    assert (rows["qkv matmul"].limit_s, rows["qkv matmul"].by_memory_s) == (1.0, 1.0)
    assert (rows["attention attend"].limit_s, rows["attention attend"].by_memory_s) == (0.4, 0.0)
    assert rows["qkv prepare"].limit_s == 0.0
    assert {name: rows[name].time_s for name in PHASES} == {"plan": 2.0, "marshal": 2.0, "commit": 1.0, "publish": 2.0}
    assert rows["qkv matmul"].calls == 1.0


def test_the_table_says_what_bounds_a_kernel() -> None:
    table = list(lines(summarise("x", [turn()], RATES)))
    assert "10000.000 ms each" in table[0] and "1400.000 ms at the limit" in table[0]
    cells = {line.split("  ")[0]: line.split() for line in table[2:]}
    assert cells["qkv matmul"][-3:] == ["50", "%", "memory"] and cells["attention attend"][-3:] == [
        "80",
        "%",
        "compute",
    ]
    assert cells["qkv prepare"][-3:] == ["-", "-", "-"]


def test_no_turns_are_an_empty_trace() -> None:
    assert {event["ph"] for event in chrome_trace([])["traceEvents"]} == {"M"}
