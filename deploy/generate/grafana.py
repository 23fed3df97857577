"""deploy/grafana/*.json, from the tables in dashboards.py: Grafana's dashboard schema, as its import takes it."""

import json
from collections.abc import Iterator
from typing import Any

from deploy.generate.panels import Dashboard, Kind, Panel

SCHEMA_VERSION = 39
"""Grafana 10.4 and newer read it."""
HEIGHT = 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_json(dashboard: Dashboard) -> str:
    """The file of one dashboard."""
    return json.dumps(_dashboard(dashboard), indent=2) + "\n"


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"octavo-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["octavo"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "graphTooltip": 1,
        "links": [{"type": "dashboards", "tags": ["octavo"], "title": "Octavo", "asDropdown": True, "keepTime": True}],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    yield _choice("job", "Job", "label_values(octavo:build_info, job)")  # all: of these, and not each job there is
    yield _any("instance", "Server", 'label_values(octavo:build_info{job=~"$job"}, instance)')
    yield _any("model", "Model", 'label_values(octavo:num_blocks{job=~"$job", instance=~"$instance"}, model_name)')
    if dashboard.by_tenant:
        yield _any("tenant", "Tenant", 'label_values(octavo:tenant_requests_total{job=~"$job"}, tenant)')


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable of which all, or several, may be chosen."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _any(name: str, label: str, query: str) -> dict[str, Any]:
    """One of which all means whatever there is, also what has no value."""
    return {**_choice(name, label, query), "allValue": ".*"}


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    top = number = 0
    for heading, panels in dashboard.rows:
        number += 1
        yield {"id": number, "type": "row", "title": heading, "collapsed": False, "gridPos": _place(0, top, 24, 1)}
        top, left = top + 1, 0
        for panel in panels:
            number += 1
            yield {"id": number, "gridPos": _place(left, top, panel.width, HEIGHT), **_panel(panel)}
            left += panel.width
        top += HEIGHT


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    form, options, custom = _FORMS[panel.kind]
    return {
        "type": form,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "targets": [_target(panel.kind, *query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **custom}, "overrides": []},
        "options": options,
    }


def _target(kind: Kind, expr: str, legend: str, ref: str) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": ref, "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
    if kind is Kind.FACTS:
        return {**target, "format": "table", "instant": True}
    if kind is Kind.HEAT:
        return {**target, "format": "heatmap"}
    return target


_LEGEND = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
_LAST = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
_FORMS: dict[Kind, tuple[str, dict[str, Any], dict[str, Any]]] = {
    Kind.LINES: ("timeseries", _LEGEND, {"custom": {"fillOpacity": 0, "lineWidth": 1}}),
    Kind.AREAS: (
        "timeseries",
        _LEGEND,
        {"custom": {"fillOpacity": 40, "lineWidth": 1, "stacking": {"mode": "normal", "group": "A"}}},
    ),
    Kind.NUMBER: ("stat", _LAST, {}),
    Kind.SHARE: ("gauge", _LAST, {"max": 1}),
    Kind.HEAT: ("heatmap", {"calculate": False, "yAxis": {"unit": "s"}}, {}),
    Kind.FACTS: ("table", {"showHeader": True}, {}),
}
"""Of each kind: Grafana's panel, its options, and its field settings."""
