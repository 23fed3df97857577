"""Debian's Prometheus with the configuration of deploy/prometheus, on a server that a test has started."""

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from deploy.generate.prometheus import hurried_rules
from deploy.generate.write import DEPLOY
from tests.deploy.debian import program

LOOK_AGAIN_S = 0.25
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs. `url` has no path."""

    url: str

    def _get(self, path: str, **fields: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def numbers(self, query: str) -> list[float]:
        """What a query gives now, without NaN: a panel has nothing to draw then."""
        values = [float(sample["value"][1]) for sample in self._get("query", query=query)["result"]]
        return [value for value in values if not math.isnan(value)]

    def firing(self) -> dict[str, dict[str, str]]:
        """Alerts that fire now, by name: their annotations."""
        alerts = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["annotations"] for each in alerts if each["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]


def until(what: Callable[[], T], most_s: float, why: Callable[[], object]) -> T:
    """Asks until the answer is true, which it is."""
    deadline = time.monotonic() + most_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"after {most_s} s: {why()}"
        time.sleep(LOOK_AGAIN_S)
    return found


def _configured(folder: Path, target: str, key: str) -> Path:
    """The configuration that is checked in, with another target, its key, and in a hurry."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (scrape,) = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": [target]}]
    scrape["authorization"] = {"credentials_file": "octavo.key"}
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "octavo.key").write_text(key)
    (folder / "octavo.rules.yaml").write_text(hurried_rules())
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def watching(folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    """Starts one on a free port; listening on entry, ended on exit."""
    command = [
        program("prometheus"),
        f"--config.file={_configured(folder, target, key)}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = folder / "prometheus.log"
    with log.open("w") as written, subprocess.Popen(command, stderr=written, stdout=written) as process:
        try:
            yield Prometheus(f"http://{until(lambda: _address(log), 30, log.read_text)}")
        finally:
            process.terminate()


def _address(log: Path) -> str:
    found = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
    return found[1] if found else ""
