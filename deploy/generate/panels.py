"""Panel and Dashboard: what a page of Grafana shows, as values; grafana.py writes them down in Grafana's words."""

from dataclasses import dataclass
from enum import StrEnum

ENGINE = 'job=~"$job", instance=~"$instance", model_name=~"$model"'
"""Chooses among engines by the variables at the head of a dashboard."""
HOST = 'job=~"$job", instance=~"$instance"'
"""The same for numbers about a server."""


class Kind(StrEnum):
    LINES = "timeseries"
    AREAS = "stacked"
    NUMBER = "stat"
    SHARE = "gauge"
    HEAT = "heatmap"
    FACTS = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A title, what it is good for, and (query, legend) pairs."""

    title: str
    text: str
    """What it tells, and what to do about it: shown where the mouse is on the title's corner."""
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Kind = Kind.LINES
    width: int = 8
    """Of 24 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page: rows of panels under headings."""

    name: str
    title: str
    text: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    by_tenant: bool = False


def rate(metric: str, where: str = ENGINE, by: str = "") -> str:
    """A second of a counter; `by` labels, or all together."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[$__rate_interval]))"


def total(metric: str, where: str = ENGINE, by: str = "") -> str:
    """A gauge, added up over engines."""
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{where}}})"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """p50, p90 and p99 of a histogram over the engines that are chosen."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{ENGINE}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {buckets})", f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99))


def mean(metric: str) -> str:
    """The mean of a histogram's values."""
    return f"{rate(f'{metric}_sum')} / {rate(f'{metric}_count')}"


def spread(metric: str) -> tuple[tuple[str, str], ...]:
    """A histogram for a heat map."""
    return ((f"sum by (le) (increase({metric}_bucket{{{ENGINE}}}[$__rate_interval]))", "{{le}}"),)
