"""Metrics that vLLM has too, under its names, with its labels and units: what dashboards, routers and scalers query."""

from collections import Counter

from octavo.config.schema import CacheConfig
from octavo.engine.client import EngineFacts
from octavo.server.catalogue.metric import Metric, Sources, counter, gauge, histogram
from octavo.server.histogram import Histogram
from octavo.server.visits import NO_ROUTE

CACHE_CONFIG = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_max_concurrency",
    "kv_cache_memory_bytes",
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "prefix_caching_hash_algo",
)
"""Labels of `vllm:cache_config_info`."""
UNCOUNTED = frozenset({"/metrics", "/health", "/health/ready", "/load", "/version"})
"""Routes that machines ask all the time: not in the `http_` metrics, as with vLLM."""
_QUEUE_LIMITS = {"queue_full": "max_num_queued_reqs", "queue_tokens_full": "max_num_queued_tokens"}
"""Codes of refusals -> the limits behind them, as vLLM's `reason`."""


def cache_config(settings: CacheConfig, facts: EngineFacts) -> dict[str, str]:
    """The values of these labels."""
    capacity = facts.capacity
    size_tokens = capacity.num_blocks * capacity.block_size
    values = {
        "block_size": capacity.block_size,
        "cache_dtype": facts.kv_cache_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_max_concurrency": round(size_tokens / capacity.max_model_len, 2),
        "kv_cache_memory_bytes": capacity.num_blocks * facts.kv_block_bytes or None,
        "kv_cache_size_tokens": size_tokens,
        "num_gpu_blocks": capacity.num_blocks,
        "prefix_caching_hash_algo": settings.prefix_caching_hash_algo,
    }
    return {label: str(value) for label, value in values.items()}


def _cache_config(sources: Sources) -> dict[tuple[str, ...], float]:
    about = sources.cache_config
    return {tuple(about.get(label, "") for label in CACHE_CONFIG): 1.0} if about else {}


def _rejections(sources: Sources) -> dict[str, float]:
    return {limit: sources.meters.refused[code] for code, limit in _QUEUE_LIMITS.items()}


def _by_source(sources: Sources) -> dict[str, float]:
    meters = sources.meters
    in_pool, anywhere = meters.prompt_cached["device"], meters.prompt_cached.total()
    return {
        "local_compute": meters.prompt_tokens - anywhere,
        "local_cache_hit": in_pool,
        "external_kv_transfer": anywhere - in_pool,
    }


def _answers(sources: Sources) -> dict[tuple[str, str, str], float]:
    found = Counter[tuple[str, str, str]]()
    for (route, method, status), count in sources.visits.answers.items():
        if route not in UNCOUNTED:
            found[route, method, f"{status // 100}xx"] += count
    return dict(found)


def _durations(sources: Sources) -> dict[tuple[str, str], Histogram]:
    return {key: each for key, each in sources.visits.durations.items() if key[0] not in UNCOUNTED}


_ENDED = "count = `vllm:request_success`"
_ANSWERED = "count = requests that got a first token"
_COMPUTED = "count = requests that got a first token or an embedding"
_IDLE = "where nothing runs"

LOAD = (
    gauge("vllm:num_requests_running", "Choices that run", "choices", lambda s: s.meters.gauges.num_running),
    gauge(
        "vllm:num_requests_waiting",
        "Choices that wait for their first or next turn",
        "choices",
        lambda s: s.meters.num_waiting,
        law="= the sum of `octavo:num_requests_waiting_by_reason`",
    ),
    gauge(
        "vllm:num_requests_waiting_by_reason",
        "Choices that wait, by why: for room (capacity), or for their structured output to compile (deferred)",
        "choices",
        lambda s: s.meters.waiting_by_reason(),
        by=("reason",),
        law="sum = `vllm:num_requests_waiting`",
    ),
    gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks that running choices or pins hold, from 0 to 1; cached ones that nobody holds are free",
        "share",
        lambda s: s.meters.kv_usage,
        law="= leased and pinned `octavo:blocks` / all of them",
    ),
    gauge(
        "vllm:cache_config_info",
        "The KV cache, as labels",
        "1",
        _cache_config,
        by=CACHE_CONFIG,
    ),
)
TOKENS = (
    counter(
        "vllm:prompt_tokens",
        "Tokens of prompts, computed or found in a cache, counted when their request gets its first token or embedding",
        "tokens",
        lambda s: s.meters.prompt_tokens,
        law="= the sum of `octavo:tenant_prompt_tokens`",
    ),
    counter(
        "vllm:prompt_tokens_by_source",
        "Tokens of prompts, by where their KV came from",
        "tokens",
        _by_source,
        by=("source",),
        law="sum = `vllm:prompt_tokens`",
    ),
    counter(
        "vllm:prompt_tokens_cached",
        "Tokens of prompts that were found in the KV cache or the tier below it",
        "tokens",
        lambda s: s.meters.prompt_cached.total(),
        law="= `vllm:prompt_tokens` without source local_compute",
    ),
    counter(
        "vllm:prompt_tokens_cached_by_source",
        "The same, by where they were: device (the KV cache), host (a tier in main memory), disk",
        "tokens",
        lambda s: {source: s.meters.prompt_cached[source] for source in ("device", "host", "disk")},
        by=("source",),
        law="sum = `vllm:prompt_tokens_cached`",
    ),
    counter(
        "vllm:generation_tokens",
        "Tokens generated",
        "tokens",
        lambda s: s.meters.generation_tokens,
        law=f"= the sum of `vllm:request_generation_tokens` {_IDLE}, and of `octavo:tenant_generation_tokens`",
    ),
    counter(
        "vllm:prefix_cache_queries",
        "Prompt tokens (not requests) looked up in the KV cache, once for each request",
        "tokens",
        lambda s: s.meters.cache_queries,
    ),
    counter(
        "vllm:prefix_cache_hits",
        "Prompt tokens (not requests) found in the KV cache",
        "tokens",
        lambda s: s.meters.cache_hits,
        law="<= `vllm:prefix_cache_queries`",
    ),
    counter(
        "vllm:external_prefix_cache_queries",
        "Prompt tokens that were not in the KV cache and were looked up in the tier below it",
        "tokens",
        lambda s: s.meters.tier_queries,
    ),
    counter(
        "vllm:external_prefix_cache_hits",
        "Prompt tokens found in the tier below the KV cache, and loaded from there",
        "tokens",
        lambda s: s.meters.tier_hits,
        law="<= `vllm:external_prefix_cache_queries`",
    ),
    counter(
        "vllm:spec_decode_num_drafts", "Steps in which a choice guessed ahead", "steps", lambda s: s.meters.num_drafts
    ),
    counter("vllm:spec_decode_num_draft_tokens", "Tokens guessed ahead", "tokens", lambda s: s.meters.num_drafted),
    counter(
        "vllm:spec_decode_num_accepted_tokens",
        "Tokens guessed ahead that were right",
        "tokens",
        lambda s: sum(s.meters.accepted_at),
        law="<= `vllm:spec_decode_num_draft_tokens`",
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Tokens guessed ahead that were right, by their place in the draft, from 0",
        "tokens",
        lambda s: {str(place): count for place, count in enumerate(s.meters.accepted_at)},
        by=("position",),
        law="sum = `vllm:spec_decode_num_accepted_tokens`",
    ),
)
REQUESTS = (
    counter(
        "vllm:request_success",
        "Choices that ended, by how: stop, length, abort (the client went away) or error. Each once, under one reason",
        "choices",
        lambda s: {reason.value: count for reason, count in s.meters.finished.items()},
        by=("finished_reason",),
        law=f"sum = the sum of `vllm:request_params_n` {_IDLE}",
    ),
    counter(
        "vllm:corrupted_requests",
        "Choices that ended because their logits were not finite: weights, or a kernel, are broken",
        "choices",
        lambda s: s.meters.errors["not_finite"],
        law="= `octavo:request_errors` not_finite",
    ),
    counter(
        "vllm:num_preemptions",
        "Times that a choice lost its blocks to others",
        "times",
        lambda s: s.meters.preemptions.total(),
        law=f"= the sum of `vllm:request_num_preemptions` {_IDLE}",
    ),
    counter(
        "vllm:admission_rejections",
        "Requests that were sent away because too many wait",
        "requests",
        _rejections,
        by=("reason",),
        law="part of `octavo:requests_refused`",
    ),
    counter(
        "vllm:tool_call_parser_invocations",
        "Choices that were searched for calls of tools, once each, streamed or not",
        "choices",
        lambda s: s.meters.tool_calls,
        by=("mode", "outcome", "request_type"),
    ),
    histogram(
        "vllm:request_prompt_tokens",
        "Tokens of a choice's prompt",
        "tokens",
        lambda s: s.meters.spreads.request_prompt_tokens,
        law=_ENDED,
    ),
    histogram(
        "vllm:request_generation_tokens",
        "Tokens generated for a choice",
        "tokens",
        lambda s: s.meters.spreads.request_generation_tokens,
        law=_ENDED,
    ),
    histogram(
        "vllm:request_max_num_generation_tokens",
        "Tokens of the longest choice of a request",
        "tokens",
        lambda s: s.meters.spreads.request_longest,
        law="count = that of `vllm:request_params_n`",
    ),
    histogram(
        "vllm:request_params_n",
        "Choices that a request asked for; with best_of, those that are computed",
        "choices",
        lambda s: s.meters.spreads.request_choices,
        law=f"sum = `vllm:request_success` {_IDLE}",
    ),
    histogram(
        "vllm:request_params_max_tokens",
        "The longest answer that a request asked for, where it said so",
        "tokens",
        lambda s: s.meters.spreads.request_max_tokens,
    ),
    histogram(
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were computed",
        "tokens",
        lambda s: s.meters.spreads.request_computed_tokens,
        law=f"{_COMPUTED}; sum = `vllm:prompt_tokens_by_source` local_compute",
    ),
    histogram(
        "vllm:request_num_preemptions",
        "Times that a choice lost its blocks",
        "times",
        lambda s: s.meters.spreads.request_preemptions,
        law=_ENDED,
    ),
    histogram(
        "vllm:iteration_tokens_total",
        "Tokens computed in a step",
        "tokens",
        lambda s: s.meters.spreads.step_tokens,
        law="count = `octavo:steps`",
    ),
)
LATENCY = (
    histogram(
        "vllm:time_to_first_token_seconds",
        "From the arrival of a request to its first token",
        "seconds",
        lambda s: s.meters.spreads.time_to_first_token,
        law=_ANSWERED,
    ),
    histogram(
        "vllm:inter_token_latency_seconds",
        "Between two tokens of a choice; where a step gave several, their share of it",
        "seconds",
        lambda s: s.meters.spreads.inter_token_latency,
    ),
    histogram(
        "vllm:request_time_per_output_token_seconds",
        "From the first token of a choice to its last, for each token after the first",
        "seconds",
        lambda s: s.meters.spreads.time_per_output_token,
        law="count = choices with two tokens or more that ended",
    ),
    histogram(
        "vllm:e2e_request_latency_seconds",
        "From the arrival of a request to the end of a choice",
        "seconds",
        lambda s: s.meters.spreads.e2e_latency,
        law=_ENDED,
    ),
    histogram(
        "vllm:request_queue_time_seconds",
        "From the arrival of a request to its first step",
        "seconds",
        lambda s: s.meters.spreads.queue_time,
        law="count = requests that got a turn",
    ),
    histogram(
        "vllm:request_prefill_time_seconds",
        "From the first step of a request to its first token or embedding",
        "seconds",
        lambda s: s.meters.spreads.prefill_time,
        law=_COMPUTED,
    ),
    histogram(
        "vllm:request_decode_time_seconds",
        "From the first token of a request to the end of a choice",
        "seconds",
        lambda s: s.meters.spreads.decode_time,
    ),
    histogram(
        "vllm:request_inference_time_seconds",
        "From the first step of a request to the end of a choice",
        "seconds",
        lambda s: s.meters.spreads.inference_time,
    ),
    histogram(
        "vllm:kv_block_lifetime_seconds",
        "How long an evicted block could be found in the prefix cache",
        "seconds",
        lambda s: s.meters.spreads.block_lifetime,
        law="count <= `octavo:blocks_evicted`",
    ),
)
TIER = (
    counter(
        "vllm:kv_offload_store_bytes",
        "KV that went to the tier below the cache",
        "bytes",
        lambda s: s.meters.movements.bytes["store"],
    ),
    counter(
        "vllm:kv_offload_load_bytes",
        "KV that came from the tier below the cache",
        "bytes",
        lambda s: s.meters.movements.bytes["load"],
    ),
    counter(
        "vllm:kv_offload_stores_skipped",
        "Evicted blocks that were lost: the tier was too slow to take them",
        "blocks",
        lambda s: s.meters.movements.blocks["skipped"],
    ),
)
HTTP = (
    counter(
        "http_requests",
        f"Requests by route ({NO_ROUTE}: there is none such), method and class of status",
        "requests",
        _answers,
        by=("handler", "method", "status"),
        of_engine=False,
        law="sum = that of `octavo:http_answers` without probes",
    ),
    histogram(
        "http_request_duration_seconds",
        "From the head of a request to the end of its answer",
        "seconds",
        _durations,
        by=("handler", "method"),
        of_engine=False,
        law="count = `http_requests`",
    ),
)
OLDER = (
    gauge(
        "vllm:gpu_cache_usage_perc",
        "The older name of vllm:kv_cache_usage_perc",
        "share",
        lambda s: s.meters.kv_usage,
    ),
    counter(
        "vllm:gpu_prefix_cache_queries",
        "The older name of vllm:prefix_cache_queries",
        "tokens",
        lambda s: s.meters.cache_queries,
    ),
    counter(
        "vllm:gpu_prefix_cache_hits",
        "The older name of vllm:prefix_cache_hits",
        "tokens",
        lambda s: s.meters.cache_hits,
    ),
    histogram(
        "vllm:time_per_output_token_seconds",
        "The older name of vllm:inter_token_latency_seconds",
        "seconds",
        lambda s: s.meters.spreads.inter_token_latency,
    ),
)
ROWS: dict[str, tuple[Metric, ...]] = {
    "Load": LOAD,
    "Tokens": TOKENS,
    "Requests": REQUESTS,
    "Latency": LATENCY,
    "The tier below the KV cache": TIER,
    "HTTP": HTTP,
    "Older names": OLDER,
}
