"""The Makefile: a comparison that was asked for happens, or is an error."""

import subprocess
from pathlib import Path

from tests.layout.project import ROOT


def test_peers_that_cannot_be_measured_are_an_error_before_anything_is(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    (folder / "native").mkdir(parents=True)
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/.installed", "bench", "PEERS=models"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and ended.stdout == ""
    assert "PEERS=models: there is no such folder" in ended.stderr
