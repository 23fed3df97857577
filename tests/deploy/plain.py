"""deploy/kubernetes, made from the chart: `python -m tests.deploy.plain` writes it."""

import re

from tests.deploy.charts import render
from tests.layout.project import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
HEAD = """\
# {}
# Made from deploy/helm/octavo by `make manifests`: change it there.
---
"""
FILES = {
    "octavo.yaml": (
        "The default model in a namespace of your choice: kubectl apply -n NAMESPACE -f octavo.yaml",
        {},
        ("configmap", "service", "deployment", "pdb", "networkpolicy"),
    ),
    "servicemonitor.yaml": (
        "Metrics for the Prometheus operator: add the labels that yours selects by. The NetworkPolicy lets it in.",
        {"serviceMonitor": {"enabled": True}},
        ("servicemonitor", "networkpolicy"),
    ),
    "scaledobject.yaml": (
        "Scaling with KEDA; its queries name the namespace default.",
        {"autoscaling": {"kind": "keda"}},
        ("scaledobject",),
    ),
    "hpa.yaml": (
        "Scaling with a HorizontalPodAutoscaler; docs/kubernetes.md has the rules of the metrics adapter.",
        {"autoscaling": {"kind": "hpa"}},
        ("hpa",),
    ),
}
"""Name -> what it is, values, templates."""
_OF_HELM = re.compile(r"^ +(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)


def files() -> dict[str, str]:
    """The text of each file of the folder."""
    rendered = render({name: values for name, (_, values, _) in FILES.items()}, release="octavo", namespace="default")
    return {name: _file(about, rendered[name], templates) for name, (about, _, templates) in FILES.items()}


def _file(about: str, texts: dict[str, str], templates: tuple[str, ...]) -> str:
    parts = [_OF_HELM.sub("", texts[f"{template}.yaml"].strip("\n") + "\n") for template in templates]
    return HEAD.format(about) + "---\n".join(parts)


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
