"""The text of GET /metrics: every row of the catalogue, read at the moment when somebody asks."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from octavo.server.catalogue.metric import Kind, Metric, Sources
from octavo.server.catalogue.page import METRICS

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Look = Callable[[], Sources]


class CatalogueCollector(Collector):
    """Reads the rows whenever somebody asks for the metrics."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Family]:
        sources = self._look()
        for metric in METRICS:
            yield _family(metric, sources)


def _family(metric: Metric, sources: Sources) -> Family:
    shared = sources.labels if metric.of_engine else {}
    names, values = [*shared, *metric.by], [*shared.values()]
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=names)
        for keys, each in metric.samples(sources):
            histogram.add_metric([*values, *keys], *each.buckets())
        return histogram
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    family = kind(metric.name, metric.text, labels=names)
    for keys, number in metric.samples(sources):
        family.add_metric([*values, *keys], number)
    return family


def registry_of(look: Look) -> CollectorRegistry:
    """A registry with the catalogue and this process in it, and nothing else: each app owns one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CatalogueCollector(look))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


def exposed(registry: CollectorRegistry) -> bytes:
    """The text of GET /metrics."""
    return generate_latest(registry)
