"""Numbers that add up: against a model of the event stream, and on a server against what clients were told."""

import re
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from octavo.core.events import (
    Admitted,
    EngineLost,
    Event,
    Finished,
    Generated,
    Preempted,
    Queued,
    Refused,
    Stalled,
    Stepped,
    Tiered,
)
from octavo.core.plan import ScoredToken
from octavo.core.types import FinishReason
from octavo.server.catalogue import compatible, own
from octavo.server.catalogue.absent import ABSENT
from octavo.server.catalogue.metric import Kind, Metric, Sources
from octavo.server.catalogue.page import METRICS, reference
from octavo.server.exposition import exposed, registry_of
from octavo.server.histogram import Histogram
from octavo.server.metrics import Meters
from tests.server.site import Site

TOKEN = (ScoredToken(5),)


def exposition(meters: Meters) -> dict[tuple[str, str], float]:
    """(sample name, values of the labels that are its own, or "m") -> value, as Prometheus would parse it."""
    sources = Sources(meters=meters, labels={"model_name": "m"})
    text = exposed(registry_of(lambda: sources)).decode()
    return {
        (sample.name, " ".join([sample.labels[label] for label in sample.labels if label != "model_name"]) or "m"): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


lives = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(0, 5),  # cached
        st.integers(1, 3),  # choices
        st.integers(0, 4),  # steps with a token
        st.integers(0, 1),  # preemptions
        st.sampled_from(FinishReason),
    ),
    max_size=6,
)


def play(meters: Meters, lives: list[tuple[int, int, int, int, int, FinishReason]]) -> None:
    """Each request's life, one after the other, as an engine tells it."""
    time_s = 0.0

    def tell(*events: Event) -> None:
        for event in events:
            meters.on_event(event)

    for number, (prompt, cached, n, steps, preemptions, reason) in enumerate(lives):
        name = f"r{number}"
        tell(Queued(name, time_s, prompt, n), Admitted(name, 0, time_s + 1, cached))
        for step in range(steps):
            tell(*(Generated(name, choice, time_s + 2 + step, TOKEN) for choice in range(n)))
            tell(Stepped(time_s, step, n, 0, n, 1, 2, 3, {"compute": 0.5}))
        for _ in range(preemptions):
            tell(Preempted(name, 0, time_s + 3, 7, "no room"), Admitted(name, 0, time_s + 4, 2, resumed=True))
        time_s += 10
        tell(*(Finished(name, choice, time_s, reason) for choice in range(n)))
        tell(Stepped(time_s, 0, 0, 0, 0, 4, 2, 0, {}))


@given(lives)
def test_counters_are_the_sums_of_what_happened(lives: list[tuple[int, int, int, int, int, FinishReason]]) -> None:
    meters = Meters()
    play(meters, lives)
    found = exposition(meters)
    told = [life for life in lives if life[3]]
    assert found["vllm:prompt_tokens_total", "m"] == sum(prompt for prompt, *_ in told)
    assert found["vllm:generation_tokens_total", "m"] == sum(n * steps for _, _, n, steps, _, _ in lives)
    assert found["vllm:prefix_cache_queries_total", "m"] == sum(prompt for prompt, *_ in lives)
    assert found["vllm:prefix_cache_hits_total", "m"] == sum(cached for _, cached, *_ in lives)
    assert found["vllm:num_preemptions_total", "m"] == sum(life[4] for life in lives)
    assert found["octavo:preempted_tokens_total", "blocks"] == 7 * sum(life[4] for life in lives)
    ended = Counter({reason: 0 for reason in FinishReason})
    for _, _, n, _, _, reason in lives:
        ended[reason] += n
    assert {reason: found["vllm:request_success_total", reason.value] for reason in FinishReason} == ended
    assert found["vllm:time_to_first_token_seconds_count", "m"] == len(told)
    assert found["vllm:inter_token_latency_seconds_count", "m"] == sum(life[2] * (life[3] - 1) for life in told)
    assert found["vllm:e2e_request_latency_seconds_count", "m"] == sum(ended.values())
    assert found["vllm:request_generation_tokens_sum", "m"] == found["vllm:generation_tokens_total", "m"]
    assert found["vllm:num_requests_running", "m"] == found["vllm:num_requests_waiting", "m"] == 0
    assert meters.num_followed == 0, "a request that is over is not remembered"


@given(st.lists(st.floats(0, 100)))
def test_buckets_are_cumulative_and_hold_everything(values: list[float]) -> None:
    histogram = Histogram((1, 2.5, 50))
    for value in values:
        histogram.observe(value)
    buckets, total = histogram.buckets()
    assert [count for _, count in buckets] == [sum(value <= bound for value in values) for bound in (1, 2.5, 50, 1e9)]
    assert buckets[-1][0] == "+Inf" and abs(total - sum(values)) < 1e-6


@given(lives)
def test_a_lost_engine_leaves_nothing_on_its_way(lives: list[tuple[int, int, int, int, int, FinishReason]]) -> None:
    meters = Meters()
    play(meters, lives)
    before = sum(meters.finished.values())
    meters.on_event(Queued("a", 0.0, 5, 3, "red"))
    meters.on_event(Admitted("a", 0, 0.0, 0))
    meters.on_event(Generated("a", 1, 0.0, TOKEN))
    meters.on_event(Queued("b", 0.0, 5, 1))
    meters.on_event(Stepped(0.0, 1, 2, 3, 4, 10, 20, 30, {}))
    meters.on_event(EngineLost(1.0, "killed"))
    found = exposition(meters)
    assert sum(meters.finished.values()) == before + 4 and meters.num_followed == 0
    assert found["vllm:num_requests_running", "m"] == found["vllm:num_requests_waiting", "m"] == 0
    assert [found["octavo:blocks", state] for state in ("blank", "cached", "leased")] == [60, 0, 0]
    assert all(tally.num_live == 0 for _, tally in meters.tallies.items())
    assert found["octavo:engine_losses_total", "m"] == 1


def test_the_pinned_blocks_of_a_lost_engine_are_blank_too() -> None:
    meters = Meters()
    meters.on_event(Stepped(0.0, 1, 2, 3, 4, 10, 20, 30, {}, blocks_pinned=5))
    meters.on_event(EngineLost(1.0, "killed"))
    found = exposition(meters)
    assert [found["octavo:blocks", state] for state in ("blank", "cached", "leased", "pinned")] == [65, 0, 0, 0]


def test_blocks_add_up_and_usage_is_their_share() -> None:
    meters = Meters()
    meters.on_event(Stepped(0.0, 1, 2, 3, 4, 10, 20, 30, {"compute": 0.25}, waiting={"blocks": 3}))
    meters.on_event(Refused("r", 0.0, "pool_too_small", "no"))
    found = exposition(meters)
    assert [found["octavo:blocks", state] for state in ("blank", "cached", "leased")] == [10, 20, 30]
    assert found["vllm:kv_cache_usage_perc", "m"] == 0.5
    assert (found["vllm:num_requests_running", "m"], found["vllm:num_requests_waiting", "m"]) == (2, 3)
    assert found["octavo:step_phase_seconds_total", "compute"] == 0.25
    assert found["octavo:requests_refused_total", "pool_too_small"] == 1


def test_reserved_blocks_are_told_and_blocks_still_add_up() -> None:
    for blank, reserved, kept_blank in ((10, 4, 4), (3, 7, 3)):
        meters = Meters()
        meters.on_event(Stepped(0.0, 1, 2, 3, 4, blank, 20, 30, {}, blocks_reserved=reserved))
        found = exposition(meters)
        assert found["octavo:blocks_reserved", "m"] == reserved
        assert (found["octavo:blocks", "reserved"], found["octavo:blocks", "blank"]) == (kept_blank, blank - kept_blank)
        assert sum(value for (name, _), value in found.items() if name == "octavo:blocks") == blank + 50


def test_a_stall_is_over_when_something_advances_or_nobody_waits_or_the_engine_is_gone() -> None:
    stalled = Stalled(0.0, 8, {"blocks": 1}, "why")
    waits = Stepped(1.0, 0, 0, 1, 0, 9, 0, 0, {}, waiting={"blocks": 1})
    ends = (
        Stepped(1.0, 1, 1, 0, 5, 9, 0, 0, {}),
        Stepped(1.0, 0, 0, 0, 0, 9, 0, 0, {}),
        EngineLost(1.0, "killed"),
    )
    for end in ends:
        meters = Meters()
        for event in (stalled, waits):
            meters.on_event(event)
        assert exposition(meters)["octavo:stalled_steps", "m"] == 8
        meters.on_event(end)
        assert exposition(meters)["octavo:stalled_steps", "m"] == 0
        assert exposition(meters)["octavo:stalls_total", "blocks"] == 1


def test_errors_of_the_server_are_told_before_there_is_one() -> None:
    """A rate does not see the first one of a series that begins with it."""
    found = exposition(Meters())
    told = {labels for name, labels in found if name == "octavo:http_errors_total"}
    assert {"internal_error 500", "engine_dead 503", "queue_full 503", "request_timeout 504"} <= told
    assert not [labels for labels in told if not labels.rpartition(" ")[2].startswith("5")]


def test_a_tier_below_the_cache_is_told_in_bytes_and_only_where_there_is_one() -> None:
    meters = Meters()
    assert not [name for name, _ in exposition(meters) if name == "octavo:kv_bytes"]
    meters.on_event(Preempted("r", 0, 0.0, 3, "why", 16))
    meters.on_event(Preempted("r", 0, 0.0, 19, "why"))
    meters.on_event(Tiered(0.0, "disk", 100, 50, 2, 7, 1, 11, 1, 3, 5, 2, 4, None))
    found = exposition(meters)
    bytes_by_state = [found["octavo:kv_bytes", f"{state} disk"] for state in ("storing", "stored", "free")]
    assert bytes_by_state == [200, 700, 4100]
    assert [found["octavo:kv_offload_moved_bytes_total", way] for way in ("store", "load")] == [1100, 500]
    kinds = {"store": 1, "load": 2, "too_slow": 3}
    assert {kind: found["octavo:kv_offload_failures_total", kind] for kind in kinds} == kinds
    assert [found["octavo:preemptions_by_method_total", method] for method in ("swap", "recompute")] == [1, 1]
    assert found["octavo:preempted_tokens_total", "blocks"] == 22
    meters.on_event(EngineLost(1.0, "killed"))
    assert not [name for name, _ in exposition(meters) if name == "octavo:kv_bytes"]
    meters.on_event(Tiered(2.0, "disk", 100, 50, 0, 9, 0, 2, 0, 0, 1, 0, 0, None))
    found = exposition(meters)
    assert [found["octavo:kv_offload_moved_bytes_total", way] for way in ("store", "load")] == [1300, 600]
    assert {kind: found["octavo:kv_offload_failures_total", kind] for kind in kinds} == kinds


def test_a_server_counts_what_its_clients_were_told(site: Site) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total")
    before = [site.metric(name) for name in names]
    ended = site.metric("vllm:request_success_total")
    usages = [site.complete("count me " * 5, max_tokens=4, n=2, temperature=1).json()["usage"] for _ in range(3)]
    after = [site.metric(name) for name in names]
    assert after[0] - before[0] == sum(usage["prompt_tokens"] for usage in usages)
    assert after[1] - before[1] == sum(usage["completion_tokens"] for usage in usages)
    assert after[2] - before[2] == sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert site.metric("vllm:request_success_total") - ended == 6
    assert site.metric("vllm:request_success_total", model_name="tiny", engine="0") == ended + 6
    assert site.metric("octavo:blocks") == 256


def test_tokens_that_were_looked_up_are_hits_or_have_a_reason_or_come_last(site: Site) -> None:
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "octavo:prefix_cache_miss_tokens_total")
    before = [site.metric(name) for name in names]
    usages = [site.complete(prompt, max_tokens=1).json()["usage"] for prompt in ("why a miss " * 6, "why a miss " * 3)]
    queries, hits, missed = [site.metric(name) - then for name, then in zip(names, before, strict=True)]
    reasons = [usage["prompt_tokens_details"].get("cache_miss_reason") for usage in usages]
    assert queries == hits + missed + reasons.count(None) and reasons[0] == "never_seen"
    assert site.metric("octavo:prefix_cache_misses_total", reason="never_seen") >= 1


def test_the_cache_is_described(site: Site) -> None:
    assert site.metric("vllm:cache_config_info", block_size="8", num_gpu_blocks="256") == 1


def test_the_page_is_made_from_the_catalogue() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
    assert page.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_no_name_is_there_twice_and_none_is_both_there_and_absent() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    absent = {name for line in ABSENT for name in line.split(", ")}
    assert not absent.intersection(names) and all(name.startswith(("vllm:", "http_")) for name in absent)
    assert all(name.startswith(("vllm:", "http_")) for rows in compatible.ROWS.values() for name in map(name_of, rows))
    assert all(name.startswith("octavo:") for rows in own.ROWS.values() for name in map(name_of, rows))
    assert not [name for name in names if name.endswith("_total") and name != "vllm:iteration_tokens_total"]


def test_laws_speak_of_metrics_that_there_are() -> None:
    names = {metric.name for metric in METRICS}
    spoken = {name for metric in METRICS for name in re.findall(r"`([a-z]+:\w+|http_\w+)`", metric.law + metric.text)}
    assert spoken and spoken <= names
    told = re.findall(r"`([a-z]+:\w+)`", reference().split("## What vLLM has and Octavo has not")[0])
    queried = {metric.name + ("_total" if metric.kind is Kind.COUNTER else "") for metric in METRICS}
    assert set(told) <= queried


def name_of(metric: Metric) -> str:
    return metric.name
