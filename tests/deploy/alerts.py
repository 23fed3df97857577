"""What happened, a sample a minute, and which alerts had to fire then: the table of test_alerts.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Story:
    """Series in promtool's words: `0x5` is 0 six times, `0+2x5` is 0, 2, 4 ... 10."""

    series: Mapping[str, str]
    """Metric with its own labels -> values. Those of server and engine are put in where they are missing."""
    fires: Mapping[int, tuple[str, ...]]
    """Minute -> exactly those that fire then: `alert` or `alert instance`, where it is another than `a`."""
    length: int = 100
    """In samples."""
    every: int = 1
    """Minutes from one sample to the next."""
    ready: str = ""
    """Of the engine of `a`; ready all the time if empty."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whole series, as they are."""


def buckets(metric: str, fast: str, slow: str) -> dict[str, str]:
    """A histogram of which `fast` took up to a second, and `slow` between one and ten, a minute."""
    return {
        f'{metric}_bucket{{le="1"}}': fast,
        f'{metric}_bucket{{le="10"}}': slow,
        f'{metric}_bucket{{le="+Inf"}}': slow,
    }


def objective(of: str, seconds: float) -> dict[str, str]:
    return {f'octavo:slo_seconds{{objective="{of}", kind="objective"}}': f"{seconds}x100"}


TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
SLOW = buckets(TTFT, "0+60x10 600+0x20 600+60x30", "0+60x60")
"""For twenty minutes all take longer than a second."""
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
LOST = 'octavo:preempted_tokens_total{cause="blocks"}'
COMPUTED = "vllm:iteration_tokens_total_sum"
REFUSED = 'vllm:admission_rejections_total{reason="max_num_queued_reqs"}'
FAULTS = 'octavo:http_errors_total{code="internal_error", status="500"}'
ANSWERS = 'octavo:http_answers_total{handler="/v1/completions", method="POST", status="200"}'
WAITING = "vllm:num_requests_waiting"

STORIES: dict[str, Story] = {
    "nothing happens": Story(
        {
            "octavo:requests_total": "0x100",
            REFUSED: "0x100",
            WAITING: "0x100",
            QUERIES: "0x100",
            HITS: "0x100",
            COMPUTED: "0x100",
            LOST: "0x100",
            FAULTS: "0x100",
            ANSWERS: "0x100",
            "octavo:stalled_steps": "0x100",
            "octavo:engine_losses_total": "0x100",
            "octavo:audit_violations_total": "0x100",
            **buckets(TTFT, "0x100", "0x100"),
            **objective("ttft", 1),
        },
        {1: (), 20: (), 90: ()},
    ),
    "a server is gone, and back": Story({"up": "1x4 0x4 1x9"}, {6: (), 8: ("OctavoDown",), 11: ()}),
    "something else is gone": Story({}, {9: ()}, others={'up{job="node", instance="n"}': "0x9"}),
    "a scrape fails": Story({"up": "1x4 0 1x9"}, {5: (), 6: (), 8: ()}),
    "a model takes long to load": Story({}, {5: (), 8: ()}, ready="0x7 1x9"),
    "an engine does not come": Story({}, {9: (), 11: ("OctavoEngineNotReady",), 15: ()}, ready="0x13 1x9"),
    "an engine is silent, and speaks": Story(
        {"octavo:engine_heartbeat_age_seconds": "0x4 20 80 140 0x9"}, {5: (), 6: ("OctavoEngineSilent",), 8: ()}
    ),
    "an engine is silent while it loads": Story(
        {"octavo:engine_heartbeat_age_seconds": "0+60x9"}, {5: (), 8: ()}, ready="0x9"
    ),
    "an engine dies": Story(
        {"octavo:engine_losses_total": "0x5 1x60"},
        {5: (), 6: ("OctavoEngineRestarts",), 19: ("OctavoEngineRestarts",), 22: ()},
    ),
    "a server begins again, and its counters": Story(
        {
            "octavo:engine_losses_total": "1x10 0x60",
            "octavo:audit_violations_total": "3x10 0x60",
            "process_start_time_seconds": "100x10 700x60",
        },
        {11: (), 30: ()},
    ),
    "a server begins again and again": Story(
        {"process_start_time_seconds": "100x5 400x5 700x90"},
        {7: (), 12: ("OctavoServerRestarts",), 60: ("OctavoServerRestarts",), 75: ()},
    ),
    "something else begins again and again": Story(
        {}, {20: ()}, others={'process_start_time_seconds{job="node", instance="n"}': "1+60x30"}
    ),
    "nothing advances": Story(
        {"octavo:stalled_steps": "0x5 4 16 0x60"}, {5: (), 6: ("OctavoStalled",), 15: ("OctavoStalled",), 18: ()}
    ),
    "a law is broken": Story({"octavo:audit_violations_total": "0x5 1x90"}, {5: (), 6: ("OctavoLawsBroken",), 70: ()}),
    "a block is in no state": Story(
        {
            "octavo:num_blocks": "100x30",
            'octavo:blocks{state="leased"}': "0x3 30x30",
            'octavo:blocks{state="cached"}': "0x3 70x2 69x9 70x20",
            'octavo:blocks{state="blank"}': "100x3 0x30",
        },
        {5: (), 12: ("OctavoBlocksLost",), 20: ()},
    ),
    "a queue grows, and empties": Story(
        {WAITING: "0x5 2+3x75 0x30"}, {11: (), 14: (), 17: ("OctavoQueueGrows",), 80: ("OctavoQueueGrows",), 84: ()}
    ),
    "many come at once, and are done one after the other": Story({WAITING: "0x5 45-3x15 0x30"}, {12: (), 17: ()}),
    "a queue is long and stays so": Story({WAITING: "0x5 40 42 39 41 40 43 38 40 41 39 42 40 41 40 40"}, {19: ()}),
    "a queue grows in waves": Story({WAITING: "0 9 0 11 0 13 0 15 0 17 0 19 0 21 0 23 0 25"}, {12: (), 17: ()}),
    "a queue of somebody else grows": Story({}, {30: ()}, others={f'{WAITING}{{job="vllm", instance="v"}}': "1+3x40"}),
    "requests are refused, and then no more": Story(
        {"octavo:requests_total": "0+60x60", REFUSED: "0x5 6+6x14 90x40"},
        {5: (), 9: (), 13: ("OctavoRefuses",), 20: ("OctavoRefuses",), 27: ()},
    ),
    "one in two hundred is refused": Story({"octavo:requests_total": "0+200x40", REFUSED: "0+1x40"}, {20: (), 40: ()}),
    "all are refused, across a restart": Story(
        {"octavo:requests_total": "100x10 0x20", REFUSED: "50+10x10 0+10x20"}, {12: ("OctavoRefuses",)}
    ),
    "one of two refuses": Story(
        {
            "octavo:requests_total": "0+60x40",
            REFUSED: "0x40",
            'octavo:requests_total{instance="b"}': "0+60x40",
            'vllm:admission_rejections_total{instance="b", reason="max_num_queued_tokens"}': "0+60x40",
        },
        {12: ("OctavoRefuses b",)},
    ),
    "preemptions begin, and end": Story(
        {COMPUTED: "0+1000x100", LOST: "0x30 100+100x30 3100x60"},
        {30: (), 39: (), 55: ("OctavoPreemptionsRise",), 85: ()},
    ),
    "preemptions are as they were": Story(
        {COMPUTED: "0+1000x600", LOST: "0+80x600"}, {DAY: (), DAY + 600: ()}, length=600, every=5
    ),
    "preemptions are as bad as they were": Story(
        {COMPUTED: "0+1000x600", LOST: "0+300x600"},
        {60: ("OctavoPreemptionsRise",), DAY + 600: ("OctavoPreemptionsRise",)},
        length=600,
        every=5,
    ),
    "preemptions become more": Story(
        {COMPUTED: "0+1000x700", LOST: "0+60x600 36000+150x99"}, {590: (), 640: ("OctavoPreemptionsRise",)}, length=700
    ),
    "hits become few, after a quiet night, and many again": Story(
        {
            QUERIES: "0+1000x300 300000x300 300000+1000x500",
            HITS: "0+600x300 180000x300 180000+600x100 240000+100x150 255000+600x250",
        },
        {290: (), 500: (), 690: (), 790: ("OctavoHitRateCollapsed",), 850: ("OctavoHitRateCollapsed",), 950: ()},
        length=1100,
    ),
    "hits were always few": Story({QUERIES: "0+1000x300", HITS: "0+90x150 13500+9x149"}, {290: ()}, length=300),
    "hits become few where hardly anybody asks": Story(
        {QUERIES: "0+300x400", HITS: "0+180x200 36000x200"}, {380: ()}, length=400
    ),
    "first tokens are late, and then in time": Story(
        {**SLOW, **objective("ttft", 2)}, {9: (), 15: (), 28: ("OctavoTTFTOverObjective",), 45: ()}
    ),
    "first tokens are late, and nobody said when": Story(SLOW, {28: ()}),
    "first tokens are late by another objective": Story(
        {**SLOW, **objective("ttft", 10), **objective("itl", 1)}, {28: ()}
    ),
    "tokens are slow, and then in time": Story(
        {**buckets(ITL, "0+60x10 600+0x20 600+60x30", "0+60x60"), **objective("itl", 2)},
        {9: (), 28: ("OctavoITLOverObjective",), 45: ()},
    ),
    "one answer of a quiet hour is late": Story(
        {**buckets(TTFT, "0x60", "0x10 1x49"), **objective("ttft", 2)}, {12: (), 25: ()}
    ),
    "answers are errors, and then no more": Story(
        {ANSWERS: "0+60x60", FAULTS: "0x5 6+6x14 90x40"},
        {5: (), 9: (), 13: ("OctavoErrors",), 20: ("OctavoErrors",), 27: ()},
    ),
    "errors that others tell of": Story(
        {ANSWERS: "0+60x60", 'octavo:http_errors_total{code="queue_full", status="503"}': "0+60x60"}, {20: ()}
    ),
    "errors of clients": Story(
        {ANSWERS: "0+60x60", 'octavo:http_errors_total{code="invalid_value", status="400"}': "0+60x60"}, {20: ()}
    ),
    "all that is asked fails, and Prometheus is answered": Story(
        {
            FAULTS: "0+1x60",
            'octavo:http_answers_total{handler="/v1/completions", method="POST", status="500"}': "0+1x60",
            'octavo:http_answers_total{handler="/metrics", method="GET", status="200"}': "0+600x60",
        },
        {20: ("OctavoErrors",)},
    ),
}
