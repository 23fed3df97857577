"""The rules of deploy/prometheus, from the tables in rules.py: as Prometheus reads them, and as its operator does."""

import re
from typing import Any

import yaml

from deploy.generate.rules import ALERTS, RECORDS, Alert, Record

MADE = "# Generated from deploy/generate/rules.py by `make docs`; a test keeps it so.\n"
HEAD = "# Recording and alerting rules for Octavo: `rule_files: [octavo.rules.yaml]` in prometheus.yml.\n" + MADE
OF_OPERATOR = """\
# The same rules for the Prometheus operator: `kubectl apply -f octavo.prometheusrule.yaml`, with the labels that your
# Prometheus selects rules by.
"""


def rules() -> str:
    """The file."""
    return HEAD + _yaml(_groups())


def rules_of_operator() -> str:
    """The file for Kubernetes."""
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "octavo"}}
    return OF_OPERATOR + MADE + _yaml({**head, "spec": _groups()})


def _groups() -> dict[str, Any]:
    """One group: its rules run one after the other, so that alerts see what was just recorded."""
    return {"groups": [{"name": "octavo", "rules": [*map(_record, RECORDS), *map(_alert, ALERTS)]}]}


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=120)


def _record(record: Record) -> dict[str, str]:
    return {"record": record.name, "expr": record.expr}


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": alert.runbook,
        },
    }


_SPAN = re.compile(r"(?<=\[)\d+[mhd](?=\])|(?<=offset )\d+[mhd]\b")
_FASTER = {"m": "s", "h": "m", "d": "h"}


def hurried_rules() -> str:
    """The same rules for a test that cannot wait: in each span of time, and nowhere else, a minute is a second."""
    groups = _groups()
    for rule in groups["groups"][0]["rules"]:
        rule["expr"] = _SPAN.sub(_faster, rule["expr"])
        if "for" in rule:
            rule["for"] = rule["for"].replace("m", "s")
    return _yaml(groups)


def _faster(span: re.Match[str]) -> str:
    return span[0][:-1] + _FASTER[span[0][-1]]
