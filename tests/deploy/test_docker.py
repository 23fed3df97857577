"""The Dockerfile, as far as it can be checked without a daemon: linted, read, its commands run where they can be."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from octavo.cli import COMMANDS
from octavo.config.schema import ServerConfig
from octavo.config.sources import resolve
from tests.deploy.charts import CHART
from tests.layout.project import ROOT
from tests.server.site import running, tiny_checkpoint

FOLDER = ROOT / "deploy" / "docker"
LINES = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def said(instruction: str) -> list[str]:
    """What follows an instruction, for each time that it is there."""
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


def environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(said("ENV"))))


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.prefix) / "bin" / "hadolint"
    assert hadolint.exists(), "`make deploy-tools` installs it"
    done = subprocess.run([hadolint, "--no-color", FOLDER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_as_the_user_that_the_chart_names() -> None:
    template = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    assert said("USER") == ["10001:10001"]
    assert {"runAsUser: 10001", "runAsGroup: 10001", "fsGroup: 10001"} <= set(map(str.strip, template.splitlines()))


def test_octavo_understands_what_it_is_told() -> None:
    server = resolve(environment=environment()).config.server
    assert server.host == "0.0.0.0" and said("EXPOSE") == [str(server.port)] == [str(ServerConfig().port)]
    (entry,), (command,) = said("ENTRYPOINT"), said("CMD")
    assert json.loads(entry) == ["tini", "--", "octavo"] and json.loads(command)[0] in COMMANDS
    assert said("VOLUME") == [environment()["OCTAVO_CACHE_DIR"]] == ["/cache"]


def test_all_that_the_build_needs_is_copied() -> None:
    """What pyproject.toml and CMakeLists.txt name is there, and the context lets it through."""
    sources = said("COPY")
    copied = {path for line in sources for path in line.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {"pyproject.toml", "CMakeLists.txt", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {Path(folder).parts[0] for folder in project["tool"]["scikit-build"]["wheel"]["packages"]}
    needed |= {
        Path(path).parts[0] for path in re.findall(r"\bnative/\S+", (ROOT / "CMakeLists.txt").read_text("utf-8"))
    }
    assert copied == needed
    patterns = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert patterns[0] == "*" and {line[1:] for line in patterns if line.startswith("!")} == copied
    assert not [path for path in copied for pattern in patterns[1:] if fnmatch(path, pattern)]


@pytest.fixture
def health_check() -> list[str]:
    """The command, with this Python in the place of the image's."""
    (line,) = said("HEALTHCHECK")
    python, *words = json.loads(line.partition("CMD ")[2])
    assert python == "python"
    return [sys.executable, *words]


def test_the_health_check_tells_a_server_from_none(health_check: list[str], tmp_path: Path) -> None:
    def status(port: int) -> int:
        environment = {**os.environ, "OCTAVO_PORT": str(port)}
        return subprocess.run(health_check, env=environment, capture_output=True, check=False).returncode

    with running(tiny_checkpoint(tmp_path / "model")) as site:
        port = site.http.base_url.port
        assert port is not None and status(port) == 0
    assert status(port) != 0


def test_compose_asks_for_what_there_is() -> None:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["octavo"]
    settings = {name: str(value) for name, value in service["environment"].items()}
    assert resolve(environment=settings).config.scheduler.max_num_seqs == 16
    build = service["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()
    assert service["volumes"] == [f"models:{environment()['OCTAVO_CACHE_DIR']}"]
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > ServerConfig().shutdown_timeout
