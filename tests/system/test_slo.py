"""Latency objectives in a server as its users start it: decided, told, and without a trace in any answer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.system.serving import MODEL, Served, serving

LIMITS = ("--max-model-len", "1024", "--max-num-seqs", "8")
PROMPTS = ["The sea is", "Once upon a time", "Twelve drummers", "word " * 300, "A short list:"]


def answers(server: Served) -> list[str]:
    """To all prompts at once."""
    client = server.client()

    def ask(prompt: str) -> str:
        fields = {"extra_body": {"ignore_eos": True}, "temperature": 0, "max_tokens": 60}
        return client.completions.create(model=MODEL, prompt=prompt, **fields).choices[0].text

    with client, ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def metric(server: Served, name: str, *labels: str) -> float | None:
    """The sample that has these labels, whatever they are called; None where there is none."""
    text = httpx.get(f"{server.url}/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((s.value for s in samples if s.name == name and set(labels) <= set(s.labels.values())), None)


def test_an_objective_is_decided_on_and_told_and_no_answer_is_different(default_model: Path) -> None:
    """One that no machine meets, so that all is cut that can be."""
    with serving(str(default_model), *LIMITS) as server:
        free = answers(server)
        assert metric(server, "octavo:throttle", "seqs") is None, "without an objective there is nothing to tell"
    with serving(str(default_model), *LIMITS, "--slo-itl-ms", "0.5", "--slo-ttft-ms", "60000") as server:
        assert answers(server) == free
        assert metric(server, "octavo:slo_seconds", "itl", "objective") == 0.0005
        assert metric(server, "octavo:slo_seconds", "ttft", "objective") == 60.0
        assert (metric(server, "octavo:slo_seconds", "itl", "measured") or 0) > 0.0005
        assert (metric(server, "octavo:throttle", "seqs") or 9) < 8
        assert (metric(server, "octavo:slo_decisions_total", "cut_seqs") or 0) >= 1
        assert "latency objectives: cut_seqs: p99 itl is" in server.words()
