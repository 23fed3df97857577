"""The catalogue as a whole, and as docs/reference/metrics.md. `python -m octavo.server.catalogue.page` prints it."""

import re
import sys
from collections.abc import Iterable, Iterator

from octavo.server.catalogue import compatible, own
from octavo.server.catalogue.absent import ABSENT
from octavo.server.catalogue.metric import Kind, Metric

METRICS: tuple[Metric, ...] = tuple(
    metric for rows in (compatible.ROWS, own.ROWS) for group in rows.values() for metric in group
)
"""All rows, in the order of the page."""

_HEAD = """# Metrics

Generated from `octavo.server.catalogue`; a test keeps it so. `GET /metrics` tells all of these in Prometheus' text
format. [Operations](../operations.md#metrics) says which to look at first.

- A name is as one queries it: counters end in `_total`; a histogram `x` has `x_bucket`, `x_sum` and `x_count`.
- Counters begin at 0 with the server and never go down, also when the engine is replaced. Gauges are those of the
  engine that is there; where nothing runs or waits, they are at rest.
- Everything but what is about the server has the labels `model_name` and `engine`; *by* names the others.
- Latencies have buckets from 1 ms. A *choice* is one continuation: a request with `n` has n of them.
- Where a label is a tenant, 50 have their own name, those that came first; all others are `other`, requests without a
  tenant `default`.
- A law holds at each scrape, or *where nothing runs*. Counters that a law compares grow in the same moment.

Standard ones of the client library: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds`, `process_start_time_seconds` (all of the server's
process; the engine's has `octavo:engine_resident_memory_bytes`), `python_info`."""


def reference() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "\n## As vLLM has them"
    yield from _groups(compatible.ROWS.items())
    yield "\n## Octavo's own"
    yield from _groups(own.ROWS.items())
    yield "\n## What vLLM has and Octavo has not\n"
    yield "| name | why |\n|---|---|"
    for names, reason in ABSENT.items():
        yield f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {reason} |"


def _groups(groups: Iterable[tuple[str, tuple[Metric, ...]]]) -> Iterator[str]:
    for title, metrics in groups:
        yield f"\n### {title}\n"
        yield "| name | type | by | unit | meaning | law |\n|---|---|---|---|---|---|"
        yield from map(_row, metrics)


def _row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.kind is Kind.COUNTER else "")
    by = ", ".join(f"`{label}`" for label in metric.by)
    law = _COUNTER.sub(r"`\1_total`", metric.law.replace("<=", "≤"))
    return f"| `{name}` | {metric.kind} | {by} | {metric.unit} | {metric.text} | {law} |"


_COUNTER = re.compile(f"`({'|'.join(metric.name for metric in METRICS if metric.kind is Kind.COUNTER)})`")
"""A counter where it is named in a sentence: as one queries it."""


if __name__ == "__main__":
    sys.stdout.write(reference())
