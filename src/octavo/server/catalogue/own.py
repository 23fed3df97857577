"""Metrics that vLLM has not: what happens to blocks, steps, tenants and engines, and why."""

from collections.abc import Callable, Mapping

from octavo import __version__
from octavo.config.machine import resident_bytes
from octavo.engine.client import EngineState
from octavo.server.catalogue.metric import Metric, Number, Sources, counter, gauge, histogram
from octavo.server.metrics import ENGINE_LOST, STEP_FAILED
from octavo.server.openai.codes import CODES
from octavo.server.tallies import Tally
from octavo.server.telling import WAITS

ERRORS = (STEP_FAILED, ENGINE_LOST, "not_finite", "nothing_allowed", "bad_token", "structured_outputs")
"""Why choices end with an error."""
CAUSES = ("blocks", "priority", "beams")
"""Of preemptions."""
DECISIONS = (
    "hold",
    "cut_tokens",
    "cut_seqs",
    "raise_tokens",
    "raise_seqs",
    "rested",
    "itl_out_of_reach",
    "ttft_out_of_reach",
)
"""Of those for latency objectives."""
FAULTS = tuple((code, status) for code, about in CODES.items() for status in about.statuses if status >= 500)
"""Errors that are told also where there was none: a series that begins with the first one hides it from rates."""


def _blocks(sources: Sources) -> dict[str, float]:
    """By state, so that they add up: of the blank ones those that are kept for running choices are `reserved`."""
    if not sources.meters.num_blocks:
        return {}
    state = sources.meters.gauges
    reserved = min(state.blocks_reserved, state.blocks_blank)
    return {
        "blank": state.blocks_blank - reserved,
        "reserved": reserved,
        "cached": state.blocks_cached,
        "leased": state.blocks_leased,
        "pinned": state.blocks_pinned,
    }


def _num_blocks(sources: Sources) -> float:
    return sources.meters.num_blocks if sources.facts is None else sources.facts.capacity.num_blocks


def _kv_bytes(sources: Sources) -> dict[tuple[str, str], float]:
    """The pool as its blocks are; a tier by what is on the way, there, and free."""
    block_bytes = 0 if sources.facts is None else sources.facts.kv_block_bytes
    found = {("pool", state): count * block_bytes for state, count in _blocks(sources).items() if block_bytes}
    tier = sources.meters.movements.last
    if tier is not None:
        free = tier.num_blocks - tier.blocks_storing - tier.blocks_stored
        for state, count in (("storing", tier.blocks_storing), ("stored", tier.blocks_stored), ("free", max(free, 0))):
            found[tier.tier, state] = count * tier.block_bytes
    return found


def _tier_failures(sources: Sources) -> dict[str, float]:
    moved = sources.meters.movements.blocks
    return {"store": moved["store_failures"], "load": moved["load_failures"], "too_slow": moved["skipped"]}


def _tier_blocks(sources: Sources) -> dict[str, float]:
    moved = sources.meters.movements.blocks
    return {"store": moved["stores"], "load": moved["loads"], "evict": moved["evictions"]}


def _methods(sources: Sources) -> dict[str, float]:
    meters = sources.meters
    return {"swap": meters.num_swaps, "recompute": meters.preemptions.total() - meters.num_swaps}


def _throttle(sources: Sources) -> dict[str, float]:
    last = sources.meters.steered
    return {} if last is None else {"tokens": last.num_tokens, "seqs": last.num_seqs}


def _objectives(sources: Sources) -> dict[tuple[str, str], float]:
    last = sources.meters.steered
    if last is None:
        return {}
    known = {
        ("itl", "objective"): last.itl_aim_s,
        ("itl", "measured"): last.itl_s,
        ("ttft", "objective"): last.ttft_aim_s,
        ("ttft", "measured"): last.ttft_s,
    }
    return {names: seconds for names, seconds in known.items() if seconds is not None}


def _states(sources: Sources) -> dict[str, float]:
    return {state.value: float(sources.state is state) for state in EngineState}


ENGINE_INFO = ("version", "fingerprint", "model", "kernels", "num_threads", "weight_format", "kv_cache_dtype")
"""Labels of `octavo:engine_info`."""


def _engine_info(sources: Sources) -> dict[tuple[str, ...], float]:
    facts = sources.facts
    if facts is None:
        return {}
    about = (facts.fingerprint, facts.model, facts.isa, str(facts.num_threads))
    return {(__version__, *about, facts.weight_format, facts.kv_cache_dtype): 1.0}


def _resident(sources: Sources) -> dict[tuple[str, ...], float]:
    num_bytes = None if sources.facts is None else resident_bytes(sources.facts.pid)
    return {} if num_bytes is None else {(): float(num_bytes)}


def _errors(sources: Sources) -> dict[tuple[str, int], int]:
    return dict.fromkeys(FAULTS, 0) | sources.visits.errors


def _each(read: Callable[[Tally], Number]) -> Callable[[Sources], dict[str, Number]]:
    return lambda sources: {tenant: read(tally) for tenant, tally in sources.meters.tallies.items()}


def _each_by(read: Callable[[Tally], Mapping[str, float]]) -> Callable[[Sources], dict[tuple[str, str], float]]:
    return lambda sources: {
        (tenant, key): number for tenant, tally in sources.meters.tallies.items() for key, number in read(tally).items()
    }


BLOCKS = (
    gauge(
        "octavo:blocks",
        "KV blocks by state",
        "blocks",
        _blocks,
        by=("state",),
        law="sum = `octavo:num_blocks`, always",
    ),
    gauge("octavo:num_blocks", "KV blocks that there are", "blocks", _num_blocks),
    gauge(
        "octavo:blocks_reserved",
        "Blank and cached blocks that are kept for running choices: no newcomer has them",
        "blocks",
        lambda s: s.meters.gauges.blocks_reserved,
        law="<= blank, reserved and cached `octavo:blocks`",
    ),
    gauge(
        "octavo:kv_bytes",
        "KV by where it is and what it is: pool (the KV cache), memory or disk (the tier below it)",
        "bytes",
        _kv_bytes,
        by=("tier", "state"),
        law="sum over the states of a tier = its size",
    ),
    counter(
        "octavo:blocks_stored",
        "Blocks that became findable in the prefix cache",
        "blocks",
        lambda s: s.meters.blocks_stored,
    ),
    counter(
        "octavo:blocks_evicted",
        "Blocks that left the prefix cache",
        "blocks",
        lambda s: s.meters.blocks_evicted,
        law="<= `octavo:blocks_stored`",
    ),
    counter(
        "octavo:prefix_cache_misses",
        "Requests that had to compute more than the last token of their prompt, by why",
        "requests",
        lambda s: {reason.value: count for reason, count in s.meters.missed_requests.items()},
        by=("reason",),
    ),
    counter(
        "octavo:prefix_cache_miss_tokens",
        "Prompt tokens that were computed, by why they were in no cache",
        "tokens",
        lambda s: {reason.value: count for reason, count in s.meters.missed_tokens.items()},
        by=("reason",),
        law="sum = that of `octavo:tenant_cache_miss_tokens`",
    ),
    counter("octavo:audits", "Times that the laws were checked, with --audit", "times", lambda s: s.meters.num_audits),
    counter(
        "octavo:audit_violations", "Laws found broken", "laws", lambda s: s.meters.num_violations, law="0, but for bugs"
    ),
)
TIER = (
    counter(
        "octavo:kv_offload_moved_bytes",
        "KV that went to the tier, or came from it",
        "bytes",
        lambda s: s.meters.movements.bytes,
        by=("direction",),
    ),
    counter(
        "octavo:kv_offload_blocks",
        "Blocks that went to the tier (store), were hit in it (load), or left it (evict)",
        "blocks",
        _tier_blocks,
        by=("what",),
    ),
    counter(
        "octavo:kv_offload_failures",
        "Blocks that could not be stored, or not be loaded and were computed again, or found the tier too slow",
        "blocks",
        _tier_failures,
        by=("kind",),
    ),
)
SCHEDULING = (
    gauge(
        "octavo:num_requests_waiting_by_reason",
        "Choices that wait, by what they lacked when the last step was planned; step: the next plan",
        "choices",
        lambda s: dict.fromkeys(WAITS, 0) | s.meters.waiting,
        by=("reason",),
        law="sum = `vllm:num_requests_waiting`, always",
    ),
    counter(
        "octavo:waited_seconds",
        "Time that choices had waited when they got a turn, by what they lacked",
        "seconds",
        lambda s: dict.fromkeys(WAITS, 0) | s.meters.waited_s,
        by=("reason",),
    ),
    counter(
        "octavo:preemptions",
        "Preemptions, by cause: blocks (one ahead needed them), priority (one of a lower rank came in), beams",
        "times",
        lambda s: dict.fromkeys(CAUSES, 0) | s.meters.preemptions,
        by=("cause",),
        law="sum = `vllm:num_preemptions`",
    ),
    counter(
        "octavo:preempted_tokens",
        "Tokens whose KV preemptions threw away, by their cause",
        "tokens",
        lambda s: dict.fromkeys(CAUSES, 0) | s.meters.tokens_lost,
        by=("cause",),
    ),
    counter(
        "octavo:preemptions_by_method",
        "Preemptions, by what became of the KV: kept (swap) or thrown away (recompute)",
        "times",
        _methods,
        by=("method",),
        law="sum = `vllm:num_preemptions`",
    ),
    counter("octavo:steps", "Steps of the engine", "steps", lambda s: s.meters.num_steps),
    histogram(
        "octavo:step_seconds",
        "Time that a step took",
        "seconds",
        lambda s: s.meters.spreads.step_time,
        law="count = `octavo:steps`; sum = that of `octavo:step_phase_seconds`, but for failed steps",
    ),
    counter(
        "octavo:step_phase_seconds",
        "Time that steps took, by phase",
        "seconds",
        lambda s: s.meters.phase_s,
        by=("phase",),
    ),
    gauge(
        "octavo:stalled_steps",
        "Plans in a row that advanced nothing though something waits",
        "plans",
        lambda s: s.meters.num_stalled,
        law="0, but for bugs",
    ),
    counter(
        "octavo:stalls",
        "Times that the watchdog found that nothing advances, by why",
        "times",
        lambda s: s.meters.stalls,
        by=("reason",),
        law="0, but for bugs",
    ),
)
OBJECTIVES = (
    gauge(
        "octavo:throttle",
        "With a latency objective: what a step with decodes may have at most, tokens (though there is always room for "
        "the decodes and a block) and seqs, the choices that run",
        "1",
        _throttle,
        by=("of",),
        law="<= `--max-num-batched-tokens` and `--max-num-seqs`",
    ),
    gauge(
        "octavo:slo_seconds",
        "A latency objective, itl or ttft: what it is (objective), and the p99 by which was last decided (measured)",
        "seconds",
        _objectives,
        by=("objective", "kind"),
    ),
    counter(
        "octavo:slo_decisions",
        "Decisions for latency objectives, by reason: hold changes nothing, out_of_reach says that nothing helps",
        "decisions",
        lambda s: dict.fromkeys(DECISIONS, 0) | s.meters.decisions if s.meters.decisions else {},
        by=("reason",),
    ),
)
REQUESTS = (
    counter(
        "octavo:requests",
        "Requests that the engine took in",
        "requests",
        lambda s: s.meters.num_queued,
        law="= the sum of `octavo:tenant_requests`",
    ),
    counter(
        "octavo:request_errors",
        "Choices that ended with an error, by why: a code of their own, or the failure of a step or of the engine",
        "choices",
        lambda s: dict.fromkeys(ERRORS, 0) | s.meters.errors,
        by=("code",),
        law="sum = `vllm:request_success` error",
    ),
    counter(
        "octavo:requests_refused",
        "Requests that were refused, by why",
        "requests",
        lambda s: s.meters.refused,
        by=("code",),
    ),
)
TENANTS = (
    counter(
        "octavo:tenant_requests",
        "Requests that the engine took in, by tenant",
        "requests",
        _each(lambda t: t.num_requests),
        by=("tenant",),
        law="sum = `octavo:requests`",
    ),
    gauge(
        "octavo:tenant_requests_live",
        "Requests that run or wait, by tenant",
        "requests",
        _each(lambda t: t.num_live),
        by=("tenant",),
    ),
    counter(
        "octavo:tenant_prompt_tokens",
        "Prompt tokens, computed or cached, by tenant",
        "tokens",
        _each(lambda t: t.prompt_tokens),
        by=("tenant",),
        law="sum = `vllm:prompt_tokens`",
    ),
    counter(
        "octavo:tenant_cached_tokens",
        "Prompt tokens that were found in a cache, by tenant",
        "tokens",
        _each(lambda t: t.cached_tokens),
        by=("tenant",),
        law="sum = `vllm:prompt_tokens_cached`",
    ),
    counter(
        "octavo:tenant_generation_tokens",
        "Tokens generated, by tenant",
        "tokens",
        _each(lambda t: t.generation_tokens),
        by=("tenant",),
        law="sum = `vllm:generation_tokens`",
    ),
    counter(
        "octavo:tenant_cache_miss_tokens",
        "Prompt tokens that were computed, by why they were in no cache",
        "tokens",
        _each_by(lambda t: t.missed_tokens),
        by=("tenant", "reason"),
        law="sum = `octavo:prefix_cache_miss_tokens`",
    ),
    counter(
        "octavo:tenant_over_quota",
        "Requests that a quota of their tenant did not allow",
        "requests",
        _each_by(lambda t: t.over_quota),
        by=("tenant", "quota"),
    ),
)
ENGINE = (
    gauge(
        "octavo:engine_state",
        "1 for what the engine is: starting, ready or dead",
        "1",
        _states,
        by=("state",),
        law="sum = 1",
    ),
    gauge("octavo:engine_info", "What computes, as labels", "1", _engine_info, by=ENGINE_INFO),
    gauge(
        "octavo:engine_heartbeat_age_seconds",
        "Since the engine's last sign of life",
        "seconds",
        lambda s: s.heartbeat_age_s,
    ),
    gauge("octavo:engine_resident_memory_bytes", "Memory of the engine's process", "bytes", _resident),
    counter(
        "octavo:engine_restarts",
        "Engines that took the place of one that was lost, and became ready",
        "engines",
        lambda s: max(0, s.meters.num_ready - 1),
        law="<= `octavo:engine_losses`",
    ),
    counter("octavo:engine_losses", "Engines that died or were closed", "engines", lambda s: s.meters.num_lost),
)
SERVER = (
    gauge(
        "octavo:http_requests_in_flight",
        "HTTP requests that generate now",
        "requests",
        lambda s: s.in_flight,
        of_engine=False,
    ),
    gauge(
        "octavo:draining",
        "1 while the server takes no new requests, since it is about to end",
        "1",
        lambda s: float(s.draining),
        of_engine=False,
    ),
    counter(
        "octavo:http_answers",
        "Answers by route, method and status; 499: the client went away before there was one",
        "requests",
        lambda s: {(route, method, str(status)): n for (route, method, status), n in s.visits.answers.items()},
        by=("handler", "method", "status"),
        of_engine=False,
    ),
    counter(
        "octavo:http_errors",
        "Answers that were errors, by the error's code: also at the end of a stream, and to what was no request",
        "answers",
        lambda s: {(code, str(status)): n for (code, status), n in _errors(s).items()},
        by=("code", "status"),
        of_engine=False,
    ),
    counter(
        "octavo:events_dropped",
        "Events that followers of /octavo/v1/events lost, since they read too slowly",
        "events",
        lambda s: s.events_lost,
        of_engine=False,
    ),
    counter(
        "octavo:trace_spans",
        "Spans of traces, by what became of them: sent, or dropped since the collector did not take them in time",
        "spans",
        lambda s: {"sent": 0, "dropped": 0, **s.span_counts},
        by=("outcome",),
        of_engine=False,
    ),
    gauge(
        "octavo:build_info",
        "The version of the server",
        "1",
        lambda s: {__version__: 1.0},
        by=("version",),
        of_engine=False,
    ),
)
ROWS: dict[str, tuple[Metric, ...]] = {
    "Blocks and the prefix cache": BLOCKS,
    "The tier below the KV cache": TIER,
    "Scheduling": SCHEDULING,
    "Latency objectives": OBJECTIVES,
    "Requests": REQUESTS,
    "Tenants": TENANTS,
    "The engine": ENGINE,
    "The server": SERVER,
}
