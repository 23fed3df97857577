"""`octavo serve` where it cannot: one line and a status. What it serves is tested in tests/system."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import USAGE, main
from tests.tools.conftest import SMALL

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *words: str, start: str = "octavo: ") -> str:
    assert main(["serve", *SMALL, *words]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    lines = [line for line in captured.err.splitlines() if line.startswith(start)]
    assert len(lines) == 1
    return lines[0]


def test_a_port_in_use(tiny_gguf: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert f"port {port} is in use" in refused(capsys, str(tiny_gguf), "--port", port)


def test_what_is_no_model_is_said_before_a_port_in_use(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "folder").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = ("--port", str(listener.getsockname()[1]))
        assert "broken.gguf" in refused(capsys, str(tmp_path / "broken.gguf"), *port)
        folder = refused(capsys, str(tmp_path / "folder"), *port)
    assert folder.endswith("folder: not a Hugging Face model folder: it has no config.json")


def test_a_model_that_is_not_there(capsys: Capture) -> None:
    assert "none.gguf" in refused(capsys, "none.gguf", "--port", "0")


def test_a_broken_file(tmp_path: Path, capsys: Capture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    assert "broken.gguf" in refused(capsys, str(broken), "--port", "0")


def test_a_chat_template_that_is_not_there(tiny_gguf: Path, capsys: Capture) -> None:
    assert "none.jinja" in refused(capsys, str(tiny_gguf), "--port", "0", "--chat-template", "none.jinja")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-len", "9000"], "max_model_len is 9000, but the model has"),
        (["--isa", "scalar"], "isa is scalar, but the reference backend has no such choice"),
        (["--num-blocks", "1", "--max-model-len", "64"], "or raise num_blocks"),
    ],
)
def test_what_only_the_engine_can_know(tiny_gguf: Path, capsys: Capture, words: list[str], message: str) -> None:
    line = refused(capsys, str(tiny_gguf), "--port", "0", *words, start="octavo serve: cannot start: ")
    assert message in line


@pytest.mark.parametrize(
    ("words", "missing", "module", "extra"),
    [
        (("--grpc",), "grpc", "octavo.server.health_grpc", "grpc"),
        (("--otlp-traces-endpoint", "http://127.0.0.1:1"), "opentelemetry", "octavo.server.otlp", "otel"),
    ],
)
def test_packages_of_an_extra_that_are_not_here(
    tiny_gguf: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    missing: str,
    module: str,
    extra: str,
) -> None:
    known = [name for name in sys.modules if name.partition(".")[0] == missing]
    for name in (*known, module):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    line = refused(capsys, str(tiny_gguf), "--port", "0", *words)
    assert f"({missing}" in line and f"): pip install 'octavo[{extra}]'; or go without {words[0]}" in line


def test_extras_cost_nothing_where_they_are_not_asked_for() -> None:
    script = "import sys, octavo.boot, octavo.server.app, octavo.server.lifecycle; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "octavo.server.app" in loaded and not {"grpc", "opentelemetry"} & set(loaded)
