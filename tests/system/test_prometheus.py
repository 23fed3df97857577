"""Prometheus itself watches a server at work: each query of each panel and rule is answered; alerts come and go."""

from pathlib import Path

import yaml

from deploy.generate.rules import ALERTS, RECORDS
from tests.deploy.queries import PANELS, with_values
from tests.system.crowd import crowd
from tests.system.prometheus import Prometheus, until, watching
from tests.system.serving import Served, serving

OPERATOR = "operator-key"
TENANTS = {"tenants": {"red": {"keys": ["red-key"]}, "blue": {"keys": ["blue-key"], "requests_per_minute": 3}}}
SETTINGS = {
    "max-model-len": "256",
    "max-num-seqs": "4",
    "max-num-queued-reqs": "4",
    "block-manager": "v1",
    "num-blocks": "24",
    "kv-offload-bytes": "20MB",
    "speculative-config": '{"num_speculative_tokens": 3}',
    "slo-itl-ms": "2000",
    "slo-ttft-ms": "20000",
    "api-key": OPERATOR,
}
"""So few blocks that some are preempted and many evicted; and all that has numbers of its own is on."""
HAPPENS = (
    "octavo:preemptions_total",
    "octavo:blocks_evicted_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    'octavo:tenant_over_quota_total{tenant="blue"}',
    'octavo:http_errors_total{status="400"}',
    "octavo:slo_decisions_total",
)
"""What the load is for: none of these numbers stays 0."""
SOON_S = 45


def settings(tenants: Path) -> list[str]:
    tenants.write_text(yaml.safe_dump(TENANTS))
    return [word for name, value in SETTINGS.items() for word in (f"--{name}", value)] + ["--tenants", str(tenants)]


def test_a_server_at_work_is_watched(default_model: Path, tmp_path: Path) -> None:
    with (
        serving(str(default_model), *settings(tmp_path / "tenants.yaml")) as server,
        watching(tmp_path, server.url.removeprefix("http://"), OPERATOR) as prometheus,
    ):
        with crowd(server.url, ["red-key", "red-key", OPERATOR, OPERATOR, "blue-key"]):
            each_query_is_answered(prometheus)
        each_rule_is_healthy(prometheus)
        an_overload_is_told_until_it_is_over(server, prometheus)
        a_server_that_is_gone_is_told(server, prometheus)


def each_query_is_answered(prometheus: Prometheus) -> None:
    open_ = {name: with_values(query, "10s") for name, query in PANELS.items()} | {
        record.name: record.name for record in RECORDS
    }
    open_ |= {name: f"sum({name}) > 0" for name in HAPPENS}

    def all_are_answered() -> bool:
        for name in [name for name, query in open_.items() if prometheus.numbers(query)]:
            del open_[name]
        return not open_

    assert len(open_) > 80
    until(all_are_answered, SOON_S, lambda: open_)


def each_rule_is_healthy(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert {rule["name"] for rule in rules} == {rule.name for rule in (*RECORDS, *ALERTS)}
    assert [rule for rule in rules if rule["health"] != "ok"] == []


def an_overload_is_told_until_it_is_over(server: Served, prometheus: Prometheus) -> None:
    until(lambda: "OctavoRefuses" not in prometheus.firing(), SOON_S, prometheus.firing)
    with crowd(server.url, ["red-key"] * 24) as told:
        annotations = until(lambda: prometheus.firing().get("OctavoRefuses"), SOON_S, lambda: told)
        assert prometheus.numbers(PANELS["overview: Alerts: fire"])[0] >= 1
    assert annotations["summary"] == f"{server.url.removeprefix('http://')} sends requests away"
    assert "% of the requests found the queue full" in annotations["description"]
    assert annotations["runbook_url"].endswith("#octavorefuses")
    assert told[200] and told[503]
    until(lambda: not prometheus.firing(), SOON_S, prometheus.firing)


def a_server_that_is_gone_is_told(server: Served, prometheus: Prometheus) -> None:
    server.process.terminate()
    until(lambda: "OctavoDown" in prometheus.firing(), SOON_S, prometheus.firing)
