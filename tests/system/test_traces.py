"""Traces of `octavo serve` as its users start it: all that was traced is sent before it ends."""

import httpx

from tests.server.collector import attributes, over_http
from tests.system.serving import serving


def test_a_server_that_ends_has_sent_its_traces() -> None:
    words = ("--otlp-traces-protocol", "http/protobuf", "--max-num-seqs", "4")
    with over_http() as collector:
        with serving("--otlp-traces-endpoint", collector.endpoint, *words) as served:
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 3}
            usages = [
                httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()["usage"] for _ in "ab"
            ]
        whole = [attributes(span) for span in collector.spans if span.name == "llm_request"]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert [about["gen_ai.usage.cached_tokens"] for about in whole] == cached and cached[1] > 0
        parts = [span.name for span in collector.spans if span.name != "llm_request"]
        assert parts == ["queue", "prefill", "decode"] * 2
