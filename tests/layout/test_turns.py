"""How the tests run: in several processes, those marked `alone` without others, and in CI nothing skips."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout.project import ROOT

CROWD = """
import os, threading
import pytest

LOG = os.open(os.path.join(os.path.dirname(__file__), "log"), os.O_APPEND | os.O_CREAT | os.O_WRONLY)

def stay(name):
    os.write(LOG, f"{name}\\n".encode())
    threading.Event().wait(0.01)
    os.write(LOG, f"{name}\\n".encode())

@pytest.mark.parametrize("number", range(30))
def test_in_company(number):
    stay(f"c{number}")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    stay(f"alone{number}")
"""
SKIPS = """
import pytest

def test_that_passes(): pass

def test_that_skips(): pytest.skip("not here")
"""


def run(folder: Path, text: str, processes: int) -> "subprocess.CompletedProcess[str]":
    """A run of these tests with what all tests here share, in CI."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone: so\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-n", str(processes), "--dist", "worksteal", "--basetemp", str(folder / "temporary"), str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=ROOT, env={**environment, "CI": "true"}, capture_output=True, text=True)


def test_who_is_alone_has_no_company(tmp_path: Path) -> None:
    done = run(tmp_path, CROWD, 3)
    assert done.returncode == 0 and "36 passed" in done.stdout, done.stdout
    lines = (tmp_path / "log").read_text().split()
    assert len(lines) == 72
    for number in range(6):
        began, ended = (at for at, name in enumerate(lines) if name == f"alone{number}")
        assert ended == began + 1, lines


@pytest.mark.parametrize("processes", [0, 2])
def test_what_skips_fails_the_run(tmp_path: Path, processes: int) -> None:
    done = run(tmp_path, SKIPS, processes)
    assert done.returncode == 1, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "skipped, which CI does not allow: test_it.py::test_that_skips" in done.stdout
