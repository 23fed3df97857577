"""What Helm makes of the chart. Helm is Go, with threads and signal handlers of its own: so in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from tests.layout.project import ROOT

CHART = ROOT / "deploy" / "helm" / "octavo"
Values = Mapping[str, Any]
Manifest = dict[str, Any]


def render(cases: Mapping[str, Values], release: str = "demo", namespace: str = "llm") -> dict[str, Any]:
    """For each case the text of each template by file name, or what was refused as `{"refused": message}`."""
    asked = json.dumps({"cases": cases, "release": release, "namespace": namespace})
    command = [sys.executable, "-m", "tests.deploy.charts"]
    done = subprocess.run(command, input=asked, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def manifests(texts: Mapping[str, str]) -> dict[str, Manifest]:
    """The manifests in rendered templates, by kind; those of hooks are left out."""
    found = [yaml.safe_load(text) for name, text in sorted(texts.items()) if name.endswith(".yaml")]
    return {
        each["kind"]: each for each in found if each and "helm.sh/hook" not in each["metadata"].get("annotations", {})
    }


def _main() -> None:
    import helm_python

    asked = json.load(sys.stdin)
    with helm_python.Chart.load(CHART) as chart:
        answers = {name: _rendered(chart, values, asked) for name, values in asked["cases"].items()}
    json.dump(answers, sys.stdout)


def _rendered(chart: Any, values: Values, asked: Mapping[str, Any]) -> dict[str, Any]:
    import helm_python

    try:
        texts = chart.render(dict(values), name=asked["release"], namespace=asked["namespace"])
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    lint = helm_python.lint(CHART, dict(values), strict=True)
    if lint["errors"] or any(message["severity"] > 1 for message in lint["messages"]):
        return {"refused": f"lint: {lint}"}
    return {path.split("/templates/")[1]: text for path, text in texts.items()}


if __name__ == "__main__":
    _main()
