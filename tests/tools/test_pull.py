"""`octavo pull`, and how a download shows itself."""

from pathlib import Path

import pytest

from octavo.cli import USAGE, main
from octavo.models.catalog import DEFAULT_MODEL, MODELS
from octavo.tools.terminal import progress_lines

Capture = pytest.CaptureFixture[str]


def test_lines_at_the_beginning_and_at_each_quarter() -> None:
    lines: list[str] = []
    show = progress_lines(lines.append)
    show(0, 0, "downloading")
    for done in range(0, 101, 5):
        show(done * 2**20, 100 * 2**20, "unpacking")
    assert lines == [
        "downloading",
        "unpacking",
        "unpacking: 25 % of 100.0 MiB",
        "unpacking: 50 % of 100.0 MiB",
        "unpacking: 75 % of 100.0 MiB",
        "unpacking: 100 % of 100.0 MiB",
    ]


def test_the_catalogue_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    assert main(["pull", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [model.name for model in MODELS]
    assert lines[0].endswith("(not downloaded)")


def test_a_model_that_is_here_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    file = tmp_path / "models" / DEFAULT_MODEL.file_name
    file.parent.mkdir()
    with file.open("wb") as sparse:
        sparse.truncate(DEFAULT_MODEL.size_bytes)
    for words in (["pull"], ["pull", DEFAULT_MODEL.name], ["pull", *DEFAULT_MODEL.aliases[:1]]):
        assert main(words) == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (f"{file}\n", "")


def test_an_unknown_name_is_one_line_with_a_suggestion(capsys: Capture) -> None:
    assert main(["pull", "smollm3-instruct"]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("octavo: there is no model 'smollm3-instruct'") and error.count("\n") == 1
    assert "did you mean smollm2" in error
