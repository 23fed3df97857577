"""The command line: every setting is a flag, a user's errors are one line and a status, and nothing loads early."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from octavo import __version__, cli
from octavo.cli import COMMANDS, EXIT_STATUS, Command, main
from octavo.config.schema import Setting, settings
from tests.config.generate import as_text, values

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"
Capture = pytest.CaptureFixture[str]


def fails(capsys: Capture, *words: str) -> str:
    """Runs a command that must end with a usage error; returns its one line."""
    assert main(words) == cli.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: ") and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_commands_and_statuses(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if f"octavo {name} " not in text] == ["engine"]
    assert all(meaning in text for meaning in EXIT_STATUS.values())


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {__version__}\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_exists_and_explains_itself(name: str, capsys: Capture) -> None:
    module, function = COMMANDS[name].run.split(":")
    assert callable(getattr(importlib.import_module(module), function))
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert COMMANDS[name].help in capsys.readouterr().out


def test_every_error_that_a_user_can_cause_exists() -> None:
    tables = {**cli._EXPECTED, **cli._FAILURES}
    assert all(issubclass(getattr(importlib.import_module(module), name), Exception) for module, name in tables.items())


def test_the_reference_page_is_what_the_tables_generate() -> None:
    hint = 'python -c "from octavo.cli import reference; print(reference(), end=str())" > (the page)'
    assert REFERENCE.read_text(encoding="utf-8") == cli.reference(), f"run: {hint}"


def flags_for(setting: Setting, value: Any) -> list[str]:
    if setting.kind is bool:
        return [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    return [f"{setting.flag}={as_text(value)}"]


@pytest.mark.parametrize("words", ["pin add --ttl 60 hello there", "pin add hello --ttl 60", "pin --ttl 60 add hello"])
def test_texts_and_flags_come_in_any_order(capsys: Capture, words: str) -> None:
    """All of it was understood where it goes as far as the server that is not there."""
    assert main([*words.split(), "--url", "http://127.0.0.1:1"]) != 0
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


NEEDS = {"kv_offload_path": ["--kv-offload-bytes=1"]}
"""Flags that are worth nothing without another."""


def flagged() -> st.SearchStrategy[tuple[Setting, Any]]:
    shown = [item for item in settings().values() if item.option.flag]
    return st.sampled_from(shown).flatmap(lambda item: st.tuples(st.just(item), values(item)))


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flagged())
def test_every_setting_is_a_flag(capsys: Capture, case: tuple[Setting, Any]) -> None:
    setting, value = case
    assert main(["config", "--json", *NEEDS.get(setting.name, ()), *flags_for(setting, value)]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    shown = "***" if setting.option.secret else None
    expected = [shown or item for item in value] if isinstance(value, tuple) else value
    assert rows[setting.path] == {"setting": setting.path, "value": expected, "origin": f"flag {setting.flag}"}


def config_row(capsys: Capture, name: str, *words: str) -> dict[str, Any]:
    assert main(["config", "--json", *words]) == 0
    return next(row for row in json.loads(capsys.readouterr().out) if row["setting"].endswith(f".{name}"))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--max_model_len", "32k"], "max_model_len", 32000),
        (["--max-model-len=auto"], "max_model_len", None),
        (["--enable-prefix-caching=false"], "enable_prefix_caching", False),
        (["--no-enable-prefix-caching=false"], "enable_prefix_caching", None),
        (["--no_enable_prefix_caching"], "enable_prefix_caching", False),
        (["--memory-utilization", "0.5"], "gpu_memory_utilization", 0.5),
        (["--served-model-name", "a,b", "--served-model-name=c"], "served_model_name", ["a", "b", "c"]),
        (["--served-model-name", "a", "--served-model-name", "b"], "served_model_name", ["a", "b"]),
        (["--allowed-origins", '["*"]'], "allowed_origins", ["*"]),
        (["model.gguf"], "model", "model.gguf"),
        (["model.gguf", "--model", "model.gguf"], "model", "model.gguf"),
    ],
)
def test_spellings(words: list[str], name: str, value: Any, capsys: Capture) -> None:
    if words == ["--no-enable-prefix-caching=false"]:
        assert "--no-enable-prefix-caching" in fails(capsys, "config", *words)
    else:
        assert config_row(capsys, name, *words)["value"] == value


def test_config_says_where_a_value_came_from(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text("port: 1\nhost: ::1\n", encoding="utf-8")
    monkeypatch.setenv("OCTAVO_PORT", "2")
    assert config_row(capsys, "port", "--config", str(file))["origin"] == "environment OCTAVO_PORT"
    assert config_row(capsys, "host", f"--config={file}")["origin"] == f"file {file}"
    assert main(["config", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if " port " in line] == [["*", "port", "2", "environment", "OCTAVO_PORT"]]


@pytest.mark.parametrize(
    "setting", [item for item in settings().values() if item.kind is tuple], ids=lambda it: it.name
)
def test_a_list_takes_no_model_for_one_of_its_values(setting: Setting, capsys: Capture) -> None:
    """A model's name that became a key would open the server to whoever guesses it."""
    value = "https://a.example"
    assert main(["config", "--json", setting.flag, value, "smollm2"]) == 0
    rows = {row["setting"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["model.model"] == "smollm2"
    assert rows[setting.path] == ["***" if setting.option.secret else value]


def test_config_hides_secrets(capsys: Capture) -> None:
    assert main(["config", "--api-key", "hunter2"]) == 0
    assert "hunter2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["srve"], "unknown command 'srve'; did you mean serve?"),
        (["--verson"], "unknown flag '--verson'"),
        (["serve", "--prot", "1"], "unknown flag '--prot'; did you mean --port?"),
        (["serve", "--port"], "--port: expected one argument"),
        (["serve", "--port", "x"], "port must be a whole number from 0 up to 65535, got 'x' (flag --port)"),
        (["serve", "--port", "70000"], "port must be a whole number from 0 up to 65535, got 70000 (flag --port)"),
        (["serve", "--fault", "prefill-error"], "unknown flag '--fault'"),
        (["run", "hi", "--port", "1"], "unknown flag '--port'"),
        (["config", "a", "b"], "unknown argument 'b'"),
        (["config", "a", "--served-model-name", "b", "c"], "unknown argument 'c'"),
        (["config", "--allowed-origins=*", "--allowed-origins", "[x"], "allowed_origins"),
        (["config", "--api-key", "hunter2", "--api-key", "hunter2,"], "api_key is ***: a key is empty"),
        (["config", "a", "--model", "b"], "two models"),
        (["config", "--config", "none.yaml"], "cannot read the configuration file none.yaml"),
        (["config", "--enable-prefix-caching=maybe"], "enable_prefix_caching must be true or false, got 'maybe'"),
        (["run", "hi", "--temperature", "-1"], "temperature must be a number from 0 up to 100, got -1.0"),
        (["run", "hi", "--top-p", "x"], "--top-p"),
        (["engine"], "--fd"),
    ],
)
def test_what_a_user_does_wrong_is_one_line(words: list[str], message: str, capsys: Capture) -> None:
    assert message in fails(capsys, *words)


def test_a_wrong_variable_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_PROT", "1")
    assert "unknown environment variable OCTAVO_PROT; did you mean OCTAVO_PORT?" in fails(capsys, "config")


@pytest.mark.parametrize(("name", "status"), [("interrupted", cli.INTERRUPTED), ("refused", cli.USAGE)])
def test_statuses(name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(COMMANDS, "x", Command(help="", run=f"tests.tools.targets:{name}"))
    assert main(["x"]) == status
    assert capsys.readouterr().err in ("", "octavo: this is wrong\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "x", Command(help="", run="tests.tools.targets:buggy"))
    with pytest.raises(ValueError, match="a bug"):
        main(["x"])


def test_help_loads_no_more_than_it_needs() -> None:
    script = "import sys; from octavo.cli import main; main(['serve', '--help'])"
    check = f"try:\n {script}\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    loaded = set(eval(ended.stderr))
    assert not loaded & {"numpy", "rich", "yaml", "msgspec", "asyncio", "octavo.boot", "octavo.core", "octavo.tools"}


def test_python_m_octavo_is_octavo() -> None:
    ended = subprocess.run([sys.executable, "-m", "octavo", "srve"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (cli.USAGE, "")
    assert "did you mean serve?" in ended.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        command = [sys.executable, "-m", "octavo", "config"]
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (cli.FAILED, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["config"], ["config", "--json"], ["pull", "--list"]], ids=" ".join)
def test_an_output_that_takes_nothing_is_one_line(words: list[str], unbuffered: str) -> None:
    for redirected, reason in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "octavo", *words],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (cli.FAILED, f"octavo: cannot write: {reason}\n")


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "x", Command(help="", run="tests.tools.targets:lost"))
    with pytest.raises(FileNotFoundError):
        main(["x"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_server_needs_no_output_and_all_else_does(name: str) -> None:
    script = f"""
import dataclasses, sys
from octavo.cli import COMMANDS, main
COMMANDS["{name}"] = dataclasses.replace(COMMANDS["{name}"], run="tests.tools.targets:announcing", arguments=())
sys.exit(main(["{name}"]))
"""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=REFERENCE.parents[2], stderr=subprocess.PIPE, check=False)
    assert ended.returncode == (cli.OK if name in ("serve", "engine") else cli.FAILED), ended.stderr


def test_closed_streams_stay_closed_and_hurt_nothing() -> None:
    """A file that is opened later must not become standard output."""
    command = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-m", "octavo", "config"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert ended.returncode == 0 and ended.stdout.startswith(b"model\n")


def test_a_name_that_is_not_utf8_is_shown_in_escapes() -> None:
    name = "caf\udce9.gguf"
    command = [sys.executable, "-m", "octavo", "config", name]
    settings = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    plain = subprocess.run(command, capture_output=True, env=settings, check=True).stdout
    machine = subprocess.run([*command, "--json"], capture_output=True, env=settings, check=True).stdout
    assert rb"caf\udce9.gguf" in plain
    assert name in [row["value"] for row in json.loads(machine)]
