"""Scrape: an answer of GET /metrics, and the laws that its numbers keep: at each moment, and where nothing runs."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One answer of /metrics, as the official parser reads it."""

    def __init__(self, text: str) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.counts: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        """Samples that may only grow."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in self.values, f"{key} is there twice"
                self.values[key] = sample.value
                if family.type in ("counter", "histogram"):
                    self.counts.add(key)

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples with these labels; there must be one."""
        found = self._with(name, labels)
        assert found, f"no {name} with {labels}"
        return sum(found)

    def sum_or_none(self, name: str, **labels: str) -> float:
        """The same; 0 where there is none yet."""
        return sum(self._with(name, labels))

    def _with(self, name: str, labels: Mapping[str, str]) -> list[float]:
        mine = (((sample, dict(own)), value) for (sample, own), value in self.values.items())
        return [value for (sample, own), value in mine if sample == name and labels.items() <= own.items()]

    def check(self, before: "Scrape | None" = None) -> None:
        """The laws that hold at each moment; and no counter is less than `before`."""
        total = self.sum
        assert total("octavo:blocks") == total("octavo:num_blocks")
        waiting = total("vllm:num_requests_waiting")
        assert total("octavo:num_requests_waiting_by_reason") == total("vllm:num_requests_waiting_by_reason") == waiting
        for ours, theirs in SAME.items():
            assert total(ours) == total(theirs), (ours, theirs)
        for less, more in AT_MOST.items():
            assert total(less) <= total(more), (less, more)
        cached, computed = total("vllm:prompt_tokens_cached_total"), "vllm:request_prefill_kv_computed_tokens"
        assert total("vllm:prompt_tokens_total") == cached + total(f"{computed}_sum")
        assert total("octavo:engine_state") == 1
        assert total("octavo:request_errors_total") == total("vllm:request_success_total", finished_reason="error")
        if before is not None:
            less = [key for key in before.counts if self.values.get(key, 0) < before.values[key]]
            assert not less

    def check_idle(self) -> None:
        """The laws that hold where nothing runs, beside those of each moment."""
        self.check()
        for name in IDLE:
            assert self.sum(name) == 0, name
        for ours, theirs in SAME_IDLE.items():
            assert self.sum(ours) == self.sum(theirs), (ours, theirs)
        for state in ("leased", "reserved", "pinned"):
            assert self.sum("octavo:blocks", state=state) == 0


SAME = {
    "octavo:tenant_requests_total": "octavo:requests_total",
    "octavo:tenant_prompt_tokens_total": "vllm:prompt_tokens_total",
    "octavo:tenant_cached_tokens_total": "vllm:prompt_tokens_cached_total",
    "octavo:tenant_generation_tokens_total": "vllm:generation_tokens_total",
    "vllm:prompt_tokens_by_source_total": "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_by_source_total": "vllm:prompt_tokens_cached_total",
    "vllm:e2e_request_latency_seconds_count": "vllm:request_success_total",
    "vllm:request_prompt_tokens_count": "vllm:request_success_total",
    "vllm:request_generation_tokens_count": "vllm:request_success_total",
    "vllm:request_num_preemptions_count": "vllm:request_success_total",
    "vllm:request_max_num_generation_tokens_count": "vllm:request_params_n_count",
    "vllm:request_prefill_kv_computed_tokens_count": "vllm:request_prefill_time_seconds_count",
    "vllm:iteration_tokens_total_count": "octavo:steps_total",
    "octavo:step_seconds_count": "octavo:steps_total",
    "octavo:preemptions_total": "vllm:num_preemptions_total",
    "octavo:preemptions_by_method_total": "vllm:num_preemptions_total",
}
"""Sums that are equal at each moment."""
AT_MOST = {
    "vllm:time_to_first_token_seconds_count": "vllm:request_prefill_time_seconds_count",
    "vllm:prefix_cache_hits_total": "vllm:prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total": "vllm:external_prefix_cache_queries_total",
    "vllm:spec_decode_num_accepted_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "octavo:blocks_evicted_total": "octavo:blocks_stored_total",
    "octavo:engine_restarts_total": "octavo:engine_losses_total",
}
"""Sums that are never above others. Embeddings have no first token."""
SAME_IDLE = {
    "vllm:request_generation_tokens_sum": "vllm:generation_tokens_total",
    "vllm:request_params_n_sum": "vllm:request_success_total",
    "vllm:request_params_n_count": "octavo:requests_total",
    "vllm:request_num_preemptions_sum": "vllm:num_preemptions_total",
}
IDLE = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "octavo:tenant_requests_live",
    "octavo:http_requests_in_flight",
    "octavo:blocks_reserved",
    "octavo:stalled_steps",
)
