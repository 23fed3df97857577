"""Meters as the text of GET /metrics: vLLM's names, labels and units for what vLLM has, `octavo:` for the rest.

A metric is a line in one of these tables. Counters end in `_total`; prefix cache counts are tokens; times are seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.core.events import Tiered
from octavo.server.metrics import Histogram, Meters
from octavo.server.tallies import Tallies, Tally

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Read = Callable[[Meters], float]
Counts = Callable[[Meters], Mapping[str, float]]
Describe = Callable[[], Mapping[str, str]]


def _blocks(meters: Meters) -> dict[str, float]:
    """By state, so that they add up: of the blank ones those that are kept for running choices are `reserved`."""
    state = meters.gauges
    reserved = min(state.blocks_reserved, state.blocks_blank)
    return {
        "blank": state.blocks_blank - reserved,
        "reserved": reserved,
        "cached": state.blocks_cached,
        "leased": state.blocks_leased,
        "pinned": state.blocks_pinned,
    }


def _preemptions(meters: Meters) -> dict[str, float]:
    return {"swap": meters.num_swaps, "recompute": meters.preemptions.total() - meters.num_swaps}


def _moved_bytes(meters: Meters) -> dict[str, float]:
    tier = meters.tier
    return {} if tier is None else {"store": tier.stores * tier.block_bytes, "load": tier.loads * tier.block_bytes}


def _tier_failures(meters: Meters) -> dict[str, float]:
    tier = meters.tier
    if tier is None:
        return {}
    return {"store": tier.store_failures, "load": tier.load_failures, "too_slow": tier.skipped}


def _tier_bytes(tier: Tiered) -> dict[str, float]:
    blocks = {"storing": tier.blocks_storing, "stored": tier.blocks_stored, "capacity": tier.num_blocks}
    return {state: count * tier.block_bytes for state, count in blocks.items()}


_QUEUE_LIMITS = {"queue_full": "max_num_queued_reqs", "queue_tokens_full": "max_num_queued_tokens"}
"""Codes of refusals -> the limits behind them, as vLLM's `reason`."""


def _rejections(meters: Meters) -> dict[str, float]:
    return {limit: meters.refused[code] for code, limit in _QUEUE_LIMITS.items()}


_GAUGES: dict[str, tuple[str, Read]] = {
    "vllm:num_requests_running": ("Choices that run", lambda m: m.gauges.num_running),
    "vllm:num_requests_waiting": ("Choices that wait for their first or next turn", lambda m: m.num_waiting),
    "octavo:stalled_steps": ("Plans in a row that advanced nothing though something waits", lambda m: m.num_stalled),
    "octavo:blocks_reserved": (
        "Blank and cached blocks that are kept for running choices: a newcomer may not have them",
        lambda m: m.gauges.blocks_reserved,
    ),
    "vllm:kv_cache_usage_perc": (
        "Share of the KV blocks that running choices or pins hold, from 0 to 1",
        lambda m: m.kv_usage,
    ),
}
_COUNTERS: dict[str, tuple[str, Read]] = {
    "vllm:prompt_tokens": ("Tokens of prompts that were computed or found in the cache", lambda m: m.prompt_tokens),
    "vllm:generation_tokens": ("Tokens generated", lambda m: m.generation_tokens),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", lambda m: m.cache_queries),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache", lambda m: m.cache_hits),
    "vllm:spec_decode_num_drafts": ("Steps in which a choice guessed ahead", lambda m: m.num_drafts),
    "vllm:spec_decode_num_draft_tokens": ("Tokens guessed ahead", lambda m: m.num_drafted),
    "vllm:spec_decode_num_accepted_tokens": ("Tokens guessed ahead that were right", lambda m: sum(m.accepted_at)),
    "vllm:num_preemptions": ("Choices that lost their blocks to others", lambda m: m.preemptions.total()),
    "octavo:preempted_tokens": ("Tokens whose KV preemptions threw away", lambda m: m.tokens_lost),
    "octavo:blocks_stored": ("Blocks that became findable in the prefix cache", lambda m: m.blocks_stored),
    "octavo:blocks_evicted": ("Blocks that left the prefix cache", lambda m: m.blocks_evicted),
    "octavo:steps": ("Steps of the engine", lambda m: m.num_steps),
    "octavo:audits": ("Times that the laws were checked, with --audit", lambda m: m.num_audits),
    "octavo:audit_violations": ("Laws found broken: 0 but for bugs", lambda m: m.num_violations),
    "octavo:engine_losses": ("Engines that died or were closed", lambda m: m.num_lost),
}
_COUNTERS_BY: dict[str, tuple[str, str, Counts]] = {
    "vllm:request_success": (
        "finished_reason",
        "Choices that ended, by how: stop, length, abort (the client went away) or error",
        lambda m: {reason.value: count for reason, count in m.finished.items()},
    ),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "position",
        "Tokens guessed ahead that were right, by their place in the draft, from 0",
        lambda m: {str(place): count for place, count in enumerate(m.accepted_at)},
    ),
    "octavo:prefix_cache_misses": (
        "reason",
        "Requests that had to compute more than the last token of their prompt, by why",
        lambda m: {reason.value: count for reason, count in m.missed_requests.items()},
    ),
    "octavo:prefix_cache_miss_tokens": (
        "reason",
        "Prompt tokens that were computed, by why they were not found in the prefix cache",
        lambda m: {reason.value: count for reason, count in m.missed_tokens.items()},
    ),
    "octavo:preemptions_by_method": (
        "method",
        "Choices that lost their blocks to others, by what became of their KV: kept (swap) or thrown away (recompute)",
        _preemptions,
    ),
    "octavo:kv_offload_moved_bytes": ("direction", "KV that went to the lower tier, or came from it", _moved_bytes),
    "octavo:kv_offload_failures": (
        "kind",
        "Blocks that could not be stored, or not be loaded and were computed again, or found the tier too slow",
        _tier_failures,
    ),
    "vllm:admission_rejections": ("reason", "Requests that were sent away because too many wait", _rejections),
    "octavo:preemptions": (
        "cause",
        "Preemptions, by cause: blocks (one ahead needed them), priority (one of a lower rank came in), beams",
        lambda m: m.preemptions,
    ),
    "octavo:stalls": ("reason", "Times that the watchdog found that nothing advances, by why", lambda m: m.stalls),
    "octavo:requests_refused": ("code", "Requests that were refused, by why", lambda m: m.refused),
    "octavo:step_phase_seconds": ("phase", "Time that steps took, by phase", lambda m: m.phase_s),
}
_GAUGES_BY: dict[str, tuple[str, str, Counts]] = {
    "octavo:blocks": ("state", "KV blocks by state: they add up", _blocks),
    "vllm:num_requests_waiting_by_reason": (
        "reason",
        "Choices that wait, by why: for room (capacity), or for their structured output to compile (deferred)",
        Meters.waiting_by_reason,
    ),
    "octavo:num_requests_waiting_by_reason": (
        "reason",
        "Choices that wait, by what they lacked when the last step was planned",
        lambda m: m.gauges.waiting,
    ),
}
_TALLIES: dict[str, tuple[str, Callable[[Tally], float]]] = {
    "octavo:tenant_requests": ("Requests that reached the engine, by tenant", lambda t: t.num_requests),
    "octavo:tenant_prompt_tokens": ("Prompt tokens, computed or cached, by tenant", lambda t: t.prompt_tokens),
    "octavo:tenant_cached_tokens": ("Prompt tokens found in the prefix cache, by tenant", lambda t: t.cached_tokens),
    "octavo:tenant_generation_tokens": ("Tokens generated, by tenant", lambda t: t.generation_tokens),
}
_TALLY_GAUGES: dict[str, tuple[str, Callable[[Tally], float]]] = {
    "octavo:tenant_requests_live": ("Requests that run or wait, by tenant", lambda t: t.num_live),
}
_TALLIES_BY: dict[str, tuple[str, str, Callable[[Tally], Mapping[str, float]]]] = {
    "octavo:tenant_over_quota": (
        "quota",
        "Requests that a quota of their tenant did not allow, by tenant",
        lambda t: t.over_quota,
    ),
    "octavo:tenant_cache_miss_tokens": (
        "reason",
        "Prompt tokens that were computed, by tenant and by why they were not in the prefix cache",
        lambda t: t.missed_tokens,
    ),
}
_HISTOGRAMS: dict[str, tuple[str, Callable[[Meters], Histogram]]] = {
    "vllm:time_to_first_token_seconds": ("From arrival to the first token", lambda m: m.time_to_first_token),
    "vllm:inter_token_latency_seconds": ("Between two tokens of a choice", lambda m: m.inter_token_latency),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end", lambda m: m.e2e_latency),
    "vllm:request_queue_time_seconds": ("From arrival to the first step", lambda m: m.queue_time),
    "vllm:request_prefill_time_seconds": ("From the first step to the first token", lambda m: m.prefill_time),
    "vllm:request_decode_time_seconds": ("From the first token to the end", lambda m: m.decode_time),
    "vllm:request_inference_time_seconds": ("From the first step to the end", lambda m: m.inference_time),
    "vllm:request_prompt_tokens": ("Tokens of a prompt", lambda m: m.request_prompt_tokens),
    "vllm:request_generation_tokens": ("Tokens generated for a choice", lambda m: m.request_generation_tokens),
    "vllm:iteration_tokens_total": ("Tokens computed in a step", lambda m: m.step_tokens),
}


class _Family(NamedTuple):
    """A gauge or counter, before the labels that are on each sample."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    text: str
    labels: Sequence[str]
    samples: Iterable[tuple[Sequence[str], float]]
    """The values of its labels, and the number."""


class MetersCollector(Collector):
    """Reads the meters whenever somebody asks for the metrics."""

    def __init__(self, meters: Meters, labels: Describe, about: Describe) -> None:
        """`labels` are on each sample; `about` describes the engine, and is empty until it is ready."""
        self._meters = meters
        self._labels = labels
        self._about = about

    def collect(self) -> Iterator[Metric]:
        labels, meters = self._labels(), self._meters
        names, values = list(labels), list(labels.values())
        for kind, name, text, own, samples in chain(
            _plain(meters), _by_label(meters), _tier(meters.tier), _info(self._about()), _by_tenant(meters.tallies)
        ):
            family = kind(name, text, labels=[*names, *own])
            for keys, number in samples:
                family.add_metric([*values, *keys], number)
            yield family
        for name, (text, read) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=names)
            histogram.add_metric(values, *read(meters).buckets())
            yield histogram


def _plain(meters: Meters) -> Iterator[_Family]:
    for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (text, read) in table.items():
            yield _Family(kind, name, text, (), [((), read(meters))])


def _by_label(meters: Meters) -> Iterator[_Family]:
    for kind, table in ((CounterMetricFamily, _COUNTERS_BY), (GaugeMetricFamily, _GAUGES_BY)):
        for name, (label, text, read) in table.items():
            yield _Family(kind, name, text, (label,), [((key,), number) for key, number in read(meters).items()])


def _tier(tier: Tiered | None) -> Iterator[_Family]:
    if tier is not None:
        text = "KV in the tier below the cache, and what that may hold"
        samples = [((state, tier.tier), size) for state, size in _tier_bytes(tier).items()]
        yield _Family(GaugeMetricFamily, "octavo:kv_offload_bytes", text, ("state", "tier"), samples)


def _info(about: Mapping[str, str]) -> Iterator[_Family]:
    if about:
        samples = [(tuple(about.values()), 1)]
        yield _Family(GaugeMetricFamily, "vllm:cache_config_info", "The KV cache, as labels", tuple(about), samples)


def _by_tenant(tallies: Tallies) -> Iterator[_Family]:
    for kind, table in ((CounterMetricFamily, _TALLIES), (GaugeMetricFamily, _TALLY_GAUGES)):
        for name, (text, read) in table.items():
            yield _Family(
                kind, name, text, ("tenant",), [((tenant,), read(tally)) for tenant, tally in tallies.items()]
            )
    for name, (label, text, counts) in _TALLIES_BY.items():
        samples = [
            ((tenant, key), number) for tenant, tally in tallies.items() for key, number in counts(tally).items()
        ]
        yield _Family(CounterMetricFamily, name, text, ("tenant", label), samples)


def registry_of(collector: MetersCollector) -> CollectorRegistry:
    """A registry with this and nothing else in it: each app owns one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def exposed(registry: CollectorRegistry) -> bytes:
    """The text of GET /metrics."""
    return generate_latest(registry)
