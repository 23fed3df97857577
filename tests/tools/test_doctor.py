"""The doctor: each check on machines that are in order and on those that are not."""

import http.server
import json
import socket
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import COMMANDS, build_parser, parse
from octavo.config import CacheConfig, Config, EngineConfig, ModelConfig, ServerConfig
from octavo.config.machine import usable_cpus
from octavo.config.sources import resolve
from octavo.loaders import hub
from octavo.models.catalog import DEFAULT_MODEL
from octavo.tools import doctor
from octavo.tools.doctor import Finding, State
from tests.server.site import running, tiny_checkpoint

FINDINGS = {"a": Finding(State.OK, "fine", ("because",)), "b": Finding(State.BROKEN, "bad")}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_broken_and_says_what_to_do(taken_port: int) -> None:
    finding = doctor.check_port(Config(server=ServerConfig(port=taken_port)))
    assert finding.state is State.BROKEN
    assert f"port {taken_port} is in use" in finding.text and "--port" in finding.text


def test_a_port_in_use_for_grpc_is_broken_where_that_is_asked_for(taken_port: int) -> None:
    finding = doctor.check_port(Config(server=ServerConfig(port=0, grpc=True, grpc_port=taken_port)))
    assert finding.state is State.BROKEN and "--grpc-port" in finding.text
    assert doctor.check_port(Config(server=ServerConfig(port=0, grpc_port=taken_port))).state is State.OK


@pytest.mark.parametrize("keys", [(), ("secret",)])
def test_a_port_that_an_octavo_server_has_is_a_warning(keys: tuple[str, ...], tmp_path: Path) -> None:
    server = ServerConfig(port=0, api_key=keys)
    with running(tiny_checkpoint(tmp_path), Config(server=server)) as site:
        port = int(site.url.rsplit(":", 1)[1])
        finding = doctor.check_port(Config(server=ServerConfig(port=port)))
    assert finding.state is State.WARNING and f"an Octavo server answers on 127.0.0.1 port {port}" in finding.text


@pytest.mark.parametrize("body", [b"", b'{"status":"ok"}', b"[]", b"null", b"<html>", b'{"status":{}}'])
def test_a_port_that_another_server_has_is_broken(body: bytes) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        finding = doctor.check_port(Config(server=ServerConfig(port=other.server_port)))
        thread.join()
    assert finding.state is State.BROKEN and "is in use" in finding.text


def test_a_host_that_is_not_ours_is_broken() -> None:
    finding = doctor.check_port(Config(server=ServerConfig(host="203.0.113.1", port=0)))
    assert finding.state is State.BROKEN and "203.0.113.1" in finding.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_free_port_is_ok(host: str) -> None:
    assert doctor.check_port(Config(server=ServerConfig(host=host, port=0))).state is State.OK


def test_more_threads_than_cpus_is_a_warning() -> None:
    cpus, reason = usable_cpus()
    assert doctor.check_threads(Config()).text == f"{cpus}: {reason}"
    assert doctor.check_threads(Config(engine=EngineConfig(num_threads=cpus))).state is State.OK
    assert doctor.check_threads(Config(engine=EngineConfig(num_threads=cpus + 1))).state is State.WARNING


def test_this_installation_is_in_order() -> None:
    assert doctor.check_python(Config()).state is State.OK
    assert doctor.check_packages(Config()).state is State.OK
    assert doctor.check_memory(Config()).state is State.OK


@pytest.mark.parametrize(("system", "names"), [("linux", ("numpy", "uvloop", "rich")), ("win32", ("numpy", "rich"))])
def test_what_is_required_is_no_extra_and_meant_for_this_system(system: str, names: tuple[str, ...]) -> None:
    lines = ["numpy>=1.26", "uvloop>=0.21; sys_platform != 'win32'", "pytest>=8; extra == 'test'", "rich"]
    assert doctor.required_packages(lines, system) == names


def test_all_that_the_project_asks_for_is_counted() -> None:
    """None of our requirements is for another system than those that the tests run on."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    asked = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert f"the {len(asked)} packages" in doctor.check_packages(Config()).text


def test_a_check_that_raises_is_a_finding() -> None:
    def explode(_: Config) -> Finding:
        raise OSError("the disk\nis on fire")

    found = doctor.examine(Config(), {"disk": explode, "python": doctor.check_python})
    assert found["disk"] == Finding(State.BROKEN, "OSError: the disk is on fire")
    assert found["python"].state is State.OK


def test_what_is_printed() -> None:
    assert doctor.as_text(FINDINGS).splitlines()[0].split() == ["ok", "a", "fine"]
    assert json.loads(doctor.as_json(FINDINGS)) == [
        {"check": "a", "state": "ok", "text": "fine", "details": ["because"]},
        {"check": "b", "state": "broken", "text": "bad", "details": []},
    ]


@pytest.mark.parametrize(("state", "status"), [(State.OK, 0), (State.WARNING, 0), (State.BROKEN, 1)])
def test_the_status_says_whether_something_is_broken(
    state: State, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"one": lambda _: Finding(state, "text")})
    options = parse(build_parser("doctor", COMMANDS["doctor"]), [])
    assert doctor.main(resolve(environment={}), options) == status
    assert capsys.readouterr().out.split() == [state, "one", "text"]


def test_a_model_that_was_not_downloaded_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    for model in (None, DEFAULT_MODEL.name):
        finding = doctor.check_model(Config(model=ModelConfig(model=model)))
        assert finding.state is State.WARNING and f"octavo pull {DEFAULT_MODEL.name}" in finding.text
    assert list(tmp_path.iterdir()) == []


def test_a_catalogue_model_with_other_bytes_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    file = hub.models_folder() / DEFAULT_MODEL.file_name
    file.parent.mkdir()
    with file.open("wb") as sparse:
        sparse.truncate(DEFAULT_MODEL.size_bytes)
    finding = doctor.check_model(Config())
    assert finding.state is State.BROKEN
    assert str(file) in finding.text and DEFAULT_MODEL.sha256 in finding.text


def test_a_model_that_generates_is_ok_and_shows_its_memory_plan(tiny_gguf: Path) -> None:
    config = Config(
        model=ModelConfig(model=str(tiny_gguf)),
        cache=CacheConfig(num_blocks=64),
        engine=EngineConfig(backend="reference"),
    )
    finding = doctor.check_model(config)
    assert finding.state is State.OK, finding
    assert "loads and generates" in finding.text
    assert any(line.startswith("KV cache: ") and "64 blocks of 16" in line for line in finding.details)


def test_a_plan_that_may_surprise_is_a_warning(tiny_gguf: Path) -> None:
    config = Config(
        model=ModelConfig(model=str(tiny_gguf), served_model_name=("mine",)),
        cache=CacheConfig(num_blocks=2),
        engine=EngineConfig(backend="reference"),
    )
    finding = doctor.check_model(config)
    assert finding.state is State.WARNING and finding.text.startswith("mine (F32) loads")
    assert finding.details[-1].startswith("warning: the context is lowered from 256 to 32")


def test_a_model_that_is_broken_is_a_finding(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    found = doctor.examine(Config(model=ModelConfig(model=str(broken))), {"model": doctor.check_model})
    assert found["model"].state is State.BROKEN and "broken.gguf" in found["model"].text


def test_kernels_are_listed_with_the_one_that_is_used() -> None:
    finding = doctor.check_kernels(Config())
    assert finding.state is State.OK
    names = [line.split()[0] for line in finding.details]
    assert "scalar" in names and finding.text.split(":")[0] in names
    forced = doctor.check_kernels(Config(engine=EngineConfig(isa="scalar")))
    assert (forced.state, forced.text) == (State.OK, "scalar: forced")


def test_kernels_that_do_not_run_here_are_broken() -> None:
    finding = doctor.check_kernels(Config(engine=EngineConfig(isa="avx3")))
    assert finding.state is State.BROKEN and "avx3" in finding.text and "scalar" in finding.text


def test_who_may_use_a_server_and_whether_the_file_of_tenants_can_be_read(tmp_path: Path) -> None:
    def finding(**settings: Any) -> Finding:
        return doctor.examine(Config(server=ServerConfig(**settings)), {"keys": doctor.check_keys})["keys"]

    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: {a: {keys: [k, l]}}", encoding="utf-8")
    assert finding().state is finding(host="0.0.0.0", api_key=("k",)).state is State.OK
    assert finding(host="0.0.0.0").state is State.WARNING
    assert finding(tenants=str(file), api_key=("own",)).text == "3 keys, 1 tenants"
    file.write_text("tenants: {a: {kays: [k]}}", encoding="utf-8")
    broken = finding(tenants=str(file))
    assert broken.state is State.BROKEN and "did you mean keys?" in broken.text
