"""`octavo top`: what a real server says of itself, drawn for terminals of any size."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from octavo.cli import FAILED, OK, main
from octavo.server.state_shapes import State
from octavo.tools.top import _duration, frames, view
from octavo.tools.visit import ServerRefused
from tests.server.site import NUM_BLOCKS, Gate, Site, backend_of, running, tiny_checkpoint


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, State]]:
    """A server that was looked at while one request ran and two waited; it is idle now."""
    checkpoint = tiny_checkpoint(Path(tmp_path_factory.mktemp("tiny")) / "model")
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, backend=gate, max_num_seqs=1) as site:
        ask = {"prompt": "a prompt that fills some blocks of the cache", "max_tokens": 50, "ignore_eos": True}
        with (
            site.opened("/v1/completions", ask),
            site.opened("/v1/completions", ask),
            site.opened("/v1/completions", ask),
        ):
            site.until(lambda: site.app.service.duty.in_flight == 3)
            gate.let(2)
            site.until(lambda: site.app.service.meters.generation_tokens >= 2)
            found: list[State] = []

            def looked() -> bool:
                gate.let(1)
                found.append(site.http.get("/octavo/v1/state").json())
                return found[-1]["num_requests"] == 3 and found[-1]["load"]["waiting"] == 2

            site.until(looked)
            gate.open()
        site.until(lambda: site.app.service.duty.in_flight == 0)
        yield site, found[-1]


def drawn(state: Any, width: int, height: int | None) -> list[str]:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(view(state, "http://here:8000", width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_what_is_drawn_fits_the_terminal(busy: tuple[Site, State], width: int, height: int) -> None:
    lines = drawn(busy[1], width, height)
    assert all(len(line) <= width for line in lines)
    if width >= 100 and height >= 24:
        assert len(lines) <= height


def test_what_is_known_is_drawn(busy: tuple[Site, State]) -> None:
    state = busy[1]
    lines = drawn(state, 160, 50)
    text = "\n".join(lines)
    assert lines[0].startswith("tiny  ready  http://here:8000  numpy, 1 threads, up ")
    assert "running 1/" in text and "waiting 2 (2 for seqs)" in text and "KV " in text
    assert "first token" in text and " ms" in text and "tokens/s " in text
    cells = "".join(line for line in lines if set(line) <= set(".cLSP") and line)
    assert cells == state["map"]["cells"] and len(cells) == NUM_BLOCKS
    rows = [line.split() for line in lines if " seqs " in f"{line} " or " running " in f" {line} "][-3:]
    assert len([row for row in rows if "seqs" in row]) >= 2
    assert f"blank {state['load']['blocks']['blank']}" in text


def test_narrow_terminals_leave_columns_out(busy: tuple[Site, State]) -> None:
    def heading(width: int) -> list[str]:
        return next(line.split() for line in drawn(busy[1], width, 60) if line.startswith("request"))

    assert "tenant" in heading(120) and "tenant" not in heading(80) and "waits" in heading(80)
    assert "waits" not in heading(59) and heading(59)[:2] == ["request", "state"]


def test_no_number_is_cut_where_a_line_is_too_long(busy: tuple[Site, State]) -> None:
    requests = [{**one, "prompt_tokens": 123456, "generated_tokens": 7890} for one in busy[1]["requests"]]
    lines = drawn({**busy[1], "requests": requests}, 80, 60)
    rows = [line.split() for line in lines if "…" in line and line.split()[1:2] in (["running"], ["waiting"])]
    assert len(rows) == len(requests) and all({"123456", "7890"} <= set(row) for row in rows)


def test_a_large_cache_is_gathered_into_few_lines(busy: tuple[Site, State]) -> None:
    cells = "c" * 3000 + "L" * 1000
    state = {**busy[1], "map": {**busy[1]["map"], "cells": cells, "blocks_per_cell": 5}}
    lines = [line for line in drawn(state, 100, 60) if line and set(line) <= set("cL")]
    assert len(lines) <= 8 and "".join(lines).count("c") == 3 * "".join(lines).count("L")
    assert any("25 blocks a cell" in line for line in drawn(state, 100, 60))


def test_what_should_not_be_is_said_first(busy: tuple[Site, State]) -> None:
    state = json.loads(json.dumps(busy[1]))
    assert drawn(state, 100, 40)[1].startswith("running")
    state["engine"]["lost"], state["totals"]["violations"], state["age_s"] = 2, 1, 70
    assert "lost 2 times; 1 laws broken; the state is 70 s old" in drawn(state, 120, 40)[1]


def test_a_server_that_loads_or_is_gone_is_looked_at_again(busy: tuple[Site, State]) -> None:
    state = json.loads(json.dumps(busy[1]))
    loading = {
        **state,
        "load": None,
        "map": None,
        "engine": {**state["engine"], "state": "starting", "progress": "40 %"},
    }
    looks: Iterator[Any] = iter([ServerRefused("no answer from here"), loading, state, ServerRefused("gone"), state])

    def look() -> Any:
        each = next(looks)
        if isinstance(each, Exception):
            raise each
        return each

    console = Console(width=120, height=40, force_terminal=True, color_system=None)
    texts = []
    shown = frames(look, "http://here", console)
    for _ in range(5):
        with console.capture() as captured:
            console.print(next(shown))
        texts.append(captured.get())
    assert texts[0].startswith("no answer from here; asking again") and "the engine is starting: 40 %" in texts[1]
    assert "running 1/" in texts[2] and texts[3].startswith("gone; asking again") and "running 1/" in texts[3]
    assert texts[4] == texts[2]


def test_it_is_typed_once_for_people_and_for_machines(
    busy: tuple[Site, State], capsys: pytest.CaptureFixture[str]
) -> None:
    site = busy[0]
    assert main(["top", "--once", "--url", site.url]) == OK
    assert re.search(r"running [01]/64 ", capsys.readouterr().out)  # the look at the engine may be a moment old
    assert main(["top", "--json", "--url", site.url]) == OK
    assert json.loads(capsys.readouterr().out)["object"] == "state"
    assert main(["top", "--once", "--url", "http://127.0.0.1:1"]) == FAILED
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (9.94, "9.9s"), (17, "17s"), (200, "3m20s"), (3600, "1h0m"), (18_720, "5h12m"), (273_600, "3d4h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert _duration(seconds) == text
