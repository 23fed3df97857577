"""Prometheus rules, as data: what is recorded, and when somebody is told. Each alert compares something recorded.

What they have to live with: counters begin again at 0 with each server (rate and increase know that), a series that is
not there yet, and quiet hours. A share of nothing is not recorded at all: a NaN would be in each mean over it.
"""

from dataclasses import dataclass

SERVER = "cluster, namespace, pod, job, instance"
"""What tells one server from the others; in Kubernetes all of these, elsewhere the last two. HTTP names no model."""
REPLICA = f"{SERVER}, model_name"
"""What tells one engine from the others."""
RUNBOOK = "docs/operations.md"


@dataclass(frozen=True, slots=True)
class Record:
    """An expression that is evaluated all the time, under a name of its own: level:what:how."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A condition that lasts, and what to say about it. The runbook's heading is the name."""

    name: str
    expr: str
    lasting: str
    """For how long it must hold without a break."""
    severity: str
    """critical: somebody gets up. warning: somebody looks today."""
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"


def _p99(metric: str) -> str:
    """Nothing where nothing was measured: NaN is not above 0."""
    return f"histogram_quantile(0.99, sum by ({REPLICA}, le) (rate({metric}_bucket[5m]))) >= 0"


def _rate(metric: str, over: str = "5m", by: str = REPLICA) -> str:
    return f"sum by ({by}) (rate({metric}[{over}]))"


def _share(part: str, whole: str) -> str:
    """Nothing where there is nothing to have a share of."""
    return f"{part} / ({whole} > 0)"


def _ours(expr: str) -> str:
    """Without what other servers tell under the names that vLLM chose."""
    return f"{expr} and on (job, instance) octavo:build_info"


def _objective(of: str) -> str:
    return f'max by ({REPLICA}) (octavo:slo_seconds{{objective="{of}", kind="objective"}})'


_WAITING = "vllm:num_requests_waiting"
_REFUSED = _rate("vllm:admission_rejections_total")
_BUSY = "queue_full|queue_tokens_full|too_many_readers|shutting_down|loading"
"""Codes of 503 that say that there is too much to do, or a restart: there are other alerts for these."""
_FAULTS = f'octavo:http_errors_total{{status=~"5..", code!~"{_BUSY}"}}'
_ANSWERS = 'octavo:http_answers_total{handler!="/metrics"}'

RECORDS = (
    Record("replica:octavo_ready:max", f'max by ({REPLICA}) (octavo:engine_state{{state="ready"}})'),
    Record(
        "replica:octavo_silence_seconds:max",
        f"max by ({REPLICA}) (octavo:engine_heartbeat_age_seconds) and replica:octavo_ready:max == 1",
    ),
    Record(
        "replica:octavo_engine_losses:increase15m", f"sum by ({REPLICA}) (increase(octavo:engine_losses_total[15m]))"
    ),
    Record(
        "server:octavo_starts:changes1h",
        f"max by ({SERVER}) (changes(process_start_time_seconds[1h]) "
        "and on (job, instance) present_over_time(octavo:build_info[1h]))",
    ),
    Record("replica:octavo_stalled_steps:max10m", f"max by ({REPLICA}) (max_over_time(octavo:stalled_steps[10m]))"),
    Record(
        "replica:octavo_laws_broken:increase1h", f"sum by ({REPLICA}) (increase(octavo:audit_violations_total[1h]))"
    ),
    Record(
        "replica:octavo_blocks_lost:diff",
        f"sum by ({REPLICA}) (octavo:num_blocks) - sum by ({REPLICA}) (octavo:blocks)",
    ),
    Record("replica:octavo_requests:rate5m", _rate("octavo:requests_total")),
    Record("replica:octavo_prompt_tokens:rate5m", _ours(_rate("vllm:prompt_tokens_total"))),
    Record("replica:octavo_generation_tokens:rate5m", _ours(_rate("vllm:generation_tokens_total"))),
    Record(
        "replica:octavo_waiting_growth:ratio15m",
        _ours(
            f"max by ({REPLICA}) (deriv({_WAITING}[15m]) * 900 / clamp_min(avg_over_time({_WAITING}[15m]), 1) "
            f"* (deriv({_WAITING}[5m]) > bool 0) * (min_over_time({_WAITING}[5m]) > bool 0))"
        ),
    ),
    Record("replica:octavo_refused:ratio5m", _share(_REFUSED, f"({_rate('octavo:requests_total')} + {_REFUSED})")),
    Record(
        "replica:octavo_lost_work:ratio15m",
        _share(_rate("octavo:preempted_tokens_total", "15m"), _rate("vllm:iteration_tokens_total_sum", "15m")),
    ),
    Record("replica:octavo_prefix_queries:rate30m", _ours(_rate("vllm:prefix_cache_queries_total", "30m"))),
    Record(
        "replica:octavo_prefix_hits:ratio30m",
        _share(_rate("vllm:prefix_cache_hits_total", "30m"), "replica:octavo_prefix_queries:rate30m"),
    ),
    Record("replica:octavo_ttft_seconds:p99_5m", _ours(_p99("vllm:time_to_first_token_seconds"))),
    Record("replica:octavo_itl_seconds:p99_5m", _ours(_p99("vllm:inter_token_latency_seconds"))),
    Record("replica:octavo_e2e_seconds:p99_5m", _ours(_p99("vllm:e2e_request_latency_seconds"))),
    Record("replica:octavo_ttft_objective_seconds:max", _objective("ttft")),
    Record("replica:octavo_itl_objective_seconds:max", _objective("itl")),
    Record("server:octavo_http_errors:ratio5m", _share(_rate(_FAULTS, by=SERVER), _rate(_ANSWERS, by=SERVER))),
)

_PLACE = "{{ $labels.instance }}"
_LOST = "replica:octavo_lost_work:ratio15m"
_HITS = "replica:octavo_prefix_hits:ratio30m"
_DAY_BEFORE = "[1d] offset 1h"

ALERTS = (
    Alert(
        name="OctavoDown",
        expr='up{job=~".*octavo.*"} == 0',
        lasting="2m",
        severity="critical",
        summary=f"{_PLACE} is not there",
        description="Prometheus could not read /metrics for two minutes: the process is gone, or its machine or "
        "network.",
    ),
    Alert(
        name="OctavoEngineNotReady",
        expr="replica:octavo_ready:max == 0",
        lasting="10m",
        severity="critical",
        summary=f"{_PLACE} has no engine that is ready",
        description="The server answers, but its engine has been starting or dead for ten minutes. Requests get 503.",
    ),
    Alert(
        name="OctavoEngineSilent",
        expr="replica:octavo_silence_seconds:max > 15",
        lasting="1m",
        severity="critical",
        summary=f"The engine of {_PLACE} gives no sign of life",
        description="It has been silent for {{ $value | humanizeDuration }}. Requests hang, and /health says 503.",
    ),
    Alert(
        name="OctavoEngineRestarts",
        expr="replica:octavo_engine_losses:increase15m > 0.5",
        lasting="0m",
        severity="warning",
        summary=f"{_PLACE} lost its engine",
        description="{{ $value | humanize }} engines died in 15 minutes. Each took the answers with it that it was "
        "giving.",
    ),
    Alert(
        name="OctavoServerRestarts",
        expr="server:octavo_starts:changes1h > 1",
        lasting="0m",
        severity="warning",
        summary=f"{_PLACE} starts again and again",
        description="{{ $value | humanize }} starts in an hour. With --on-engine-failure exit each may be an engine "
        "that died.",
    ),
    Alert(
        name="OctavoStalled",
        expr="replica:octavo_stalled_steps:max10m > 0",
        lasting="0m",
        severity="critical",
        summary=f"{_PLACE} advanced nothing though something waited",
        description="{{ $value | humanize }} plans in a row advanced no request. That is a fault in Octavo.",
    ),
    Alert(
        name="OctavoLawsBroken",
        expr="replica:octavo_laws_broken:increase1h > 0.5",
        lasting="0m",
        severity="critical",
        summary=f"{_PLACE} found a law of its allocator or scheduler broken",
        description="--audit found {{ $value | humanize }} violations within an hour. That is a fault in Octavo.",
    ),
    Alert(
        name="OctavoBlocksLost",
        expr="replica:octavo_blocks_lost:diff != 0",
        lasting="1m",
        severity="critical",
        summary=f"The KV blocks of {_PLACE} do not add up",
        description="{{ $value | humanize }} blocks of the KV cache are in no state. That is a fault in Octavo.",
    ),
    Alert(
        name="OctavoQueueGrows",
        expr="replica:octavo_waiting_growth:ratio15m > 0.1",
        lasting="5m",
        severity="warning",
        summary=f"{_PLACE} gets more than it can do",
        description="For ten minutes its queue was never empty, and in the last fifteen it grew by "
        "{{ $value | humanizePercentage }} of its mean.",
    ),
    Alert(
        name="OctavoRefuses",
        expr="replica:octavo_refused:ratio5m > 0.01",
        lasting="5m",
        severity="critical",
        summary=f"{_PLACE} sends requests away",
        description="{{ $value | humanizePercentage }} of the requests found the queue full, and got a 503.",
    ),
    Alert(
        name="OctavoPreemptionsRise",
        expr=f"{_LOST} > 0.2 or ({_LOST} > 0.05 unless {_LOST} <= 2 * avg_over_time({_LOST}{_DAY_BEFORE}))",
        lasting="10m",
        severity="warning",
        summary=f"{_PLACE} computes much twice",
        description="{{ $value | humanizePercentage }} of the computed tokens were thrown away by preemptions: the KV "
        "cache is too small for what runs at once.",
    ),
    Alert(
        name="OctavoHitRateCollapsed",
        expr=f"{_HITS} < 0.5 * (avg_over_time({_HITS}{_DAY_BEFORE}) > 0.1) "
        "and replica:octavo_prefix_queries:rate30m > 10",
        lasting="30m",
        severity="warning",
        summary=f"{_PLACE} finds much less in its prefix cache",
        description="{{ $value | humanizePercentage }} of the prompt tokens were cached, less than half of the day "
        "before.",
    ),
    Alert(
        name="OctavoTTFTOverObjective",
        expr="replica:octavo_ttft_seconds:p99_5m > replica:octavo_ttft_objective_seconds:max",
        lasting="10m",
        severity="critical",
        summary=f"{_PLACE} begins its answers too late",
        description="The p99 of the time to the first token is {{ $value | humanizeDuration }}, over --slo-ttft-ms.",
    ),
    Alert(
        name="OctavoITLOverObjective",
        expr="replica:octavo_itl_seconds:p99_5m > replica:octavo_itl_objective_seconds:max",
        lasting="10m",
        severity="critical",
        summary=f"{_PLACE} gives its tokens too slowly",
        description="The p99 of the time between two tokens is {{ $value | humanizeDuration }}, over --slo-itl-ms.",
    ),
    Alert(
        name="OctavoErrors",
        expr="server:octavo_http_errors:ratio5m > 0.01",
        lasting="5m",
        severity="critical",
        summary=f"{_PLACE} answers with errors of its own",
        description="{{ $value | humanizePercentage }} of the answers are 5xx, not counting those for a full queue.",
    ),
)
