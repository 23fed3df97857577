"""The dashboards and rules that are checked in: made from their tables, about metrics that there are, and explained."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as Schema

from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.grafana import dashboard_json
from deploy.generate.panels import Dashboard
from deploy.generate.prometheus import hurried_rules, rules, rules_of_operator
from deploy.generate.rules import ALERTS, RECORDS
from deploy.generate.write import DEPLOY, files
from octavo.server.catalogue.metric import Kind, Metric
from octavo.server.catalogue.page import METRICS
from tests.deploy.custom import problems
from tests.deploy.queries import PANELS
from tests.layout.project import ROOT

SUFFIXES = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
OF_TARGET = {"job", "instance"}
OF_PROMETHEUS = {"up": set[str](), "ALERTS": {"alertname", "alertstate"}}
OF_CLIENT_LIBRARY = {"process_resident_memory_bytes": set[str](), "process_start_time_seconds": set[str]()}
OF_KUBERNETES = {"cluster", "namespace", "pod"}
RECORDED = {record.name: {"model_name"} if record.name.startswith("replica:") else set[str]() for record in RECORDS}
EXPRESSIONS = {
    **{record.name: record.expr for record in RECORDS},
    **{alert.name: alert.expr for alert in ALERTS},
    **PANELS,
}


def labels_of(metric: Metric) -> set[str]:
    own = {*metric.by, *(("model_name", "engine") if metric.of_engine else ())}
    return own | {"le"} if metric.kind is Kind.HISTOGRAM else own


KNOWN = {
    **{metric.name + suffix: labels_of(metric) for metric in METRICS for suffix in SUFFIXES[metric.kind]},
    **RECORDED,
    **OF_PROMETHEUS,
    **OF_CLIENT_LIBRARY,
}


def parts(expr: str) -> Iterator[Any]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), found.append)
    yield from found


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    return [part for part in parts(expr) if isinstance(part, promql_parser.VectorSelector)]


def grouped(expr: str) -> set[str]:
    """The labels by which an expression adds up or matches."""
    return {label for names in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr) for label in names.split(", ")}


def test_what_is_checked_in_is_made_from_the_tables() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, "run `make docs`"
    assert {path.name for path in (DEPLOY / "grafana").glob("*.json")} == {f"{page.name}.json" for page in DASHBOARDS}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_query_is_about_metrics_and_labels_that_there_are(name: str) -> None:
    expr = EXPRESSIONS[name]
    used = selectors(expr)
    assert used, "it asks nothing"
    of_these = {label for each in used for label in KNOWN[each.name or ""]}
    assert grouped(expr) <= of_these | OF_TARGET | OF_KUBERNETES
    for each in used:
        assert {matcher.name for matcher in each.matchers.matchers} <= KNOWN[each.name or ""] | OF_TARGET, each


def test_a_rate_is_of_what_only_grows() -> None:
    """And nothing else is: a gauge has no rate, and how a counter stands says nothing."""
    growing = {
        metric.name + suffix for metric in METRICS if metric.kind is not Kind.GAUGE for suffix in SUFFIXES[metric.kind]
    }
    for expr in EXPRESSIONS.values():
        rated = set(re.findall(r"\b(?:rate|increase)\(([\w:]+)", expr))
        assert rated == {each.name for each in selectors(expr)} & growing, expr


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.name)
def test_a_dashboard_has_nothing_that_grafana_does_not_know(page: Dashboard) -> None:
    made = json.loads(dashboard_json(page))
    read = json.loads(json.dumps(Schema.from_json(made), cls=JSONEncoder))
    assert lost(made, read) == []
    made["panels"][0]["tittle"] = "a row"
    assert lost(made, json.loads(json.dumps(Schema.from_json(made), cls=JSONEncoder))) == ["/panels[0]/tittle"]


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What did not come through Grafana's own types."""
    if isinstance(given, dict):
        missing = [f"{path}/{key}" for key in given if key not in kept]
        return missing + [
            each for key in given.keys() & kept.keys() for each in lost(given[key], kept[key], f"{path}/{key}")
        ]
    if isinstance(given, list) and len(given) == len(kept):
        return [each for at, pair in enumerate(zip(given, kept, strict=True)) for each in lost(*pair, f"{path}[{at}]")]
    return [] if given == kept else [f"{path}: {given} -> {kept}"]


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.name)
def test_panels_fill_their_rows_and_say_what_they_tell(page: Dashboard) -> None:
    for heading, panels in page.rows:
        assert sum(panel.width for panel in panels) == 24, heading
        assert all(panel.text.endswith(".") and panel.queries for panel in panels)
    numbers = [panel["id"] for panel in json.loads(dashboard_json(page))["panels"]]
    assert len(numbers) == len(set(numbers))


def test_each_alert_is_in_the_runbook_and_nothing_else_is() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (Octavo\w+)$", text, re.MULTILINE) == [alert.name for alert in ALERTS]
    assert {alert.runbook for alert in ALERTS} == {f"docs/operations.md#{alert.name.lower()}" for alert in ALERTS}
    panels = " ".join(panel.text for page in DASHBOARDS for _, row in page.rows for panel in row)
    assert set(re.findall(r"\bOctavo\w+", panels)) <= {alert.name for alert in ALERTS}


def test_an_alert_compares_what_is_recorded() -> None:
    """So that what it saw can be seen for as long as Prometheus remembers."""
    for alert in ALERTS[1:]:
        assert {each.name for each in selectors(alert.expr)} <= RECORDED.keys(), alert.name


def test_hurried_rules_differ_in_their_spans_of_time_only() -> None:
    slow, fast = (yaml.safe_load(text)["groups"][0]["rules"] for text in (rules(), hurried_rules()))
    spans = re.compile(r"\[(\d+\w)\]|offset (\d+\w)")
    hurry = {f"{n}m": f"{n}s" for n in (0, 1, 2, 5, 10, 15, 30)} | {"1h": "1m", "1d": "1h"}
    for one, other in zip(slow, fast, strict=True):
        assert {**one, "expr": "", "for": ""} == {**other, "expr": "", "for": ""}
        assert spans.sub("", one["expr"]) == spans.sub("", other["expr"])
        before, after = (
            [*map("".join, spans.findall(rule["expr"])), rule.get("for", "0m" if rule is one else "0s")]
            for rule in (one, other)
        )
        assert [hurry[time] for time in before] == after


def test_the_operators_file_has_the_same_rules_and_is_valid() -> None:
    manifest = yaml.safe_load(rules_of_operator())
    assert manifest["spec"] == yaml.safe_load(rules())
    assert problems([manifest]) == ""
    manifest["spec"]["groups"][0]["rules"][0]["expr"] = None
    assert "expr" in problems([manifest])
