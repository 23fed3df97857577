"""The report: sections run into a file, and the page follows from the file alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.report import peers, steps
from bench.report.__main__ import SECTIONS, chosen, main, run_all
from bench.report.machine import machine
from bench.report.render import HEAD, from_json, page, to_json
from bench.report.section import Cell, Column, Conditions, Measured, Report, Section, run
from octavo.cli import main as octavo
from tests.tiny import make_tiny, write_gguf

COLUMNS = (Column("what"), Column("ms", 2), Column("count"), Column("maybe"))
ROWS: list[list[Cell]] = [["a|b", 1234.567, 1000, None], ["c", 0.5, 1, 2.25]]


def section(rows: list[list[Cell]], name: str = "tiny") -> Section:
    return Section(name=name, title="Tiny", about="Made up.", columns=COLUMNS, measure=lambda _: rows)


def measured(rows: list[list[Cell]], name: str = "tiny") -> Measured:
    return run(section(rows, name), Conditions(), {"measured": "2026-01-02", "processor": "a Z80"}, "make tiny")


def test_a_page_is_made_of_tables_that_say_where_and_when() -> None:
    assert page(Report([measured(ROWS)])) == (
        f"{HEAD}\n\n## Tiny\n\nMade up.\n\n"
        "| what | ms | count | maybe |\n| --- | ---: | ---: | ---: |\n"
        "| a\\|b | 1,234.57 | 1,000 | - |\n| c | 0.50 | 1 | 2.2 |\n\n"
        "`make tiny`. measured: 2026-01-02; processor: a Z80.\n"
    )


def test_a_report_survives_its_file() -> None:
    report = Report([measured(ROWS), measured([], "empty")])
    assert from_json(to_json(report)) == report
    assert page(from_json(to_json(report))) == page(report)


@pytest.mark.parametrize("text", ["[]", "{}", '{"sections": [{}]}', '{"sections": [{"columns": [1]}]}', "nonsense"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_a_section_that_runs_again_stays_where_it_was() -> None:
    report = Report([measured([], "a"), measured([], "b")]).with_section(measured(ROWS, "a"))
    assert [(each.name, len(each.rows)) for each in report.sections] == [("a", 2), ("b", 0)]
    assert [each.name for each in report.with_section(measured([], "c")).sections] == ["a", "b", "c"]


def test_a_row_of_another_length_is_a_fault_of_its_section() -> None:
    with pytest.raises(ValueError, match="section tiny: a row of 1 cells for 4 columns"):
        measured([["a"]])


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    def fails(_: Conditions) -> list[list[Cell]]:
        raise RuntimeError("no such machine")

    broken = Section(name="broken", title="", about="", columns=COLUMNS, measure=fails)
    with pytest.raises(RuntimeError):
        run_all(tmp_path / "r.json", [section(ROWS), broken], Conditions())
    assert [each.name for each in from_json((tmp_path / "r.json").read_text()).sections] == ["tiny"]
    run_all(tmp_path / "r.json", [section(ROWS, "more")], Conditions())
    assert [each.name for each in from_json((tmp_path / "r.json").read_text()).sections] == ["tiny", "more"]


def test_sections_that_need_peers_run_where_there_are_some() -> None:
    assert peers.PEERS not in chosen([], Conditions())
    assert chosen([], Conditions(peers=Path("there"))) == list(SECTIONS)
    assert [each.name for each in chosen(["policy"], Conditions())] == ["policy"]
    with pytest.raises(ValueError, match="needs --peers"):
        chosen(["peers"], Conditions())
    with pytest.raises(ValueError, match="there are peers, steps, kernels, policy"):
        chosen(["nothing"], Conditions())


def test_the_page_is_rendered_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report([measured(ROWS)])
    (tmp_path / "r.json").write_text(to_json(report))
    assert main(["render", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().out == page(report)
    with pytest.raises(SystemExit):
        main(["render", str(tmp_path / "none.json")])
    assert "none.json" in capsys.readouterr().err


def test_a_machine_is_told_in_words() -> None:
    assert {"measured", "processor", "memory", "octavo"} <= machine().keys() and all(machine().values())


def line(engine: str, variant: str, batch: int, prefill: float, decode: float) -> str:
    return json.dumps(
        {"engine": engine, "variant": variant, "batch": batch, "prefill_tok_s": prefill, "decode_tok_s": decode}
    )


def test_the_opponent_is_the_best_variant_for_each_row() -> None:
    lines = [
        line("octavo", "{}", 1, 100.0, 40.0),
        line("one", "q4", 1, 50.0, 10.0),
        line("one", "q8", 1, 40.0, 20.0),
        line("two", "bf16", 1, 80.0, 5.0),
        line("two", "bf16", 8, 90.0, 50.0),
        "# three: exit 1",
        "decode_tok_s",
    ]
    assert peers.rows_of(lines) == [
        ["prefill", 1, 100.0, 80.0, "two bf16", 1.25],
        ["prefill", 8, None, 90.0, "two bf16", None],
        ["decode", 1, 40.0, 20.0, "one q8", 2.0],
        ["decode", 8, None, 50.0, "two bf16", None],
    ]


def test_steps_are_read_from_what_the_profiler_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_gguf(make_tiny(), tmp_path / "tiny.gguf"))
    words = ["--prompt-len", "8", "--context", "12", "--steps", "2", "--num-blocks", "16", "--json"]
    assert octavo(["profile", "step", model, *words]) == 0
    profile: dict[str, Any] = json.loads(capsys.readouterr().out)
    prompt, decode = steps.rows_of(profile)
    assert (prompt[0], decode[0], prompt[1]) == ("prompt behind 0", "decode behind 12", 1)
    names = {row["name"] for each in profile["profiles"] for row in each["rows"] if row["is_kernel"]}
    for row in (prompt, decode):
        assert len(row) == len(steps.STEPS.columns) and row[-1] in names
        assert isinstance(row[2], float) and isinstance(row[3], float) and row[2] > 0 and row[3] > 0
