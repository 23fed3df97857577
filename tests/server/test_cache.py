"""The prefix cache as clients see it: what was hit, why the rest was not, and that others see nothing of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo.core.misses import MissReason
from octavo.models.checkpoint import Checkpoint
from octavo.server.caching import WHY
from tests.server.site import BLOCK_SIZE, Gate, Site, running


def details(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]


def test_a_miss_says_why_in_usage_and_header(site: Site) -> None:
    prompt = "A0b1C2d3: begins as nothing else that this site was asked"
    first = site.complete(prompt, max_tokens=1)
    assert details(first) == {"cached_tokens": 0, "cache_miss_reason": "never_seen", "cache_miss_at": 0}
    assert first.headers["x-octavo-cache-miss"] == "never_seen; at=0"
    ids = site.tokenizer.encode(prompt)
    other = [*ids[: BLOCK_SIZE + 1], ids[BLOCK_SIZE + 1] + 1, *ids[BLOCK_SIZE + 2 : 2 * BLOCK_SIZE]]
    assert details(site.complete(other, max_tokens=1)) == {
        "cached_tokens": BLOCK_SIZE,
        "cache_miss_reason": "tokens_differ_at",
        "cache_miss_at": BLOCK_SIZE + 1,
    }


def computed(site: Site, prompt: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
    """How many tokens the engine computes for a prompt until its first answer, and what the client is told."""
    before = site.metric("vllm:iteration_tokens_total_sum")
    told = details(site.complete(prompt, max_tokens=1, **fields))
    return int(site.metric("vllm:iteration_tokens_total_sum") - before), told


def test_a_fully_cached_aligned_prompt_computes_one_token(site: Site) -> None:
    ids = site.tokenizer.encode("a prompt that ends where a block does")[: 2 * BLOCK_SIZE]
    site.complete(ids, max_tokens=1)
    assert computed(site, ids) == (1, {"cached_tokens": 2 * BLOCK_SIZE - 1})
    assert "x-octavo-cache-miss" not in site.complete(ids, max_tokens=1).headers


def test_a_prompt_that_parts_within_a_block_computes_what_is_new(site: Site) -> None:
    ids = site.tokenizer.encode("a prompt that parts from another within a block")[: 2 * BLOCK_SIZE]
    site.complete(ids, max_tokens=1)
    other = [*ids[: BLOCK_SIZE + 5], *[ids[0] + 1] * 4]
    part = {"cached_tokens": BLOCK_SIZE + 4, "cache_miss_reason": "tokens_differ_at", "cache_miss_at": BLOCK_SIZE + 5}
    assert computed(site, other) == (5, part)


def test_a_salt_shows_nothing_of_another_s_prompts_not_even_by_the_work_that_they_save(site: Site) -> None:
    """The timing self-test, by what takes the time: a prompt costs as much as if nobody had ever sent it."""
    ids = site.tokenizer.encode("what one user asks, another cannot find out by asking it too")
    cold = computed(site, ids, cache_salt="one")
    assert cold[0] == len(ids) and cold[1]["cached_tokens"] == 0
    for length in range(1, len(ids)):
        assert computed(site, ids[:length], cache_salt=f"another {length}")[0] == length
    assert computed(site, ids, cache_salt="another")[0] == len(ids)
    assert computed(site, ids)[0] == len(ids), "and who has no salt shares with none that has"
    assert computed(site, ids, cache_salt="one")[0] < BLOCK_SIZE


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_says_it_too(site: Site, path: str) -> None:
    text = f"streamed to {path} for the first time ever"
    body = {"prompt": text} if "chat" not in path else {"messages": [{"role": "system", "content": text}]}
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    response = site.post(path, {**body, **options, "cache_salt": path})
    usage = site.stream(response).chunks[-1]["usage"]
    assert usage["prompt_tokens_details"]["cache_miss_reason"] == "never_seen"
    assert response.headers["x-octavo-cache-miss"] == "never_seen; at=0"


def test_prompt_logprobs_are_the_reason_where_they_are(site: Site) -> None:
    answer = site.complete("scored from the first token on", max_tokens=1, prompt_logprobs=0)
    assert details(answer)["cache_miss_reason"] == "prompt_logprobs"


def test_a_salt_that_nobody_else_has_is_like_a_prompt_that_nobody_sent(site: Site) -> None:
    prompt = "between you and me and nobody else at all"
    seen = [details(site.complete(prompt, max_tokens=1, cache_salt=salt)) for salt in ("mine", "yours", "mine")]
    assert seen[0] == seen[1] == {"cached_tokens": 0, "cache_miss_reason": "never_seen", "cache_miss_at": 0}
    assert seen[2]["cached_tokens"] > 0


def test_a_reset_forgets_everything(checkpoint: Checkpoint) -> None:
    with running(checkpoint) as site:
        for again in (False, True):
            assert details(site.complete("forget me please, will you", max_tokens=1))["cached_tokens"] == 0
            num_cached = site.metric("octavo:blocks", state="cached")
            assert num_cached > 0
            answer = site.post("/reset_prefix_cache") if again else site.http.delete("/octavo/v1/prefix_cache")
            assert answer.json() == ({"success": True} if again else {"blocks_dropped": num_cached})
            assert site.metric("octavo:blocks", state="blank") == site.metric("octavo:blocks")


def while_stepping(site: Site, gate: Gate, ask: Callable[[], httpx.Response]) -> httpx.Response:
    """What is asked while an engine is held is answered between two steps: lets it make some."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        site.until(lambda: answer.done() or bool(gate.let(1)))
        return answer.result()


def test_a_reset_is_refused_with_the_reason_while_blocks_are_held(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    with site.opened("/v1/completions", {"prompt": "hold on to your blocks", "max_tokens": 200, "ignore_eos": True}):
        gate.let(2)
        site.until(lambda: site.metric("octavo:blocks", state="leased") > 0)
        for method, path in (("DELETE", "/octavo/v1/prefix_cache"), ("POST", "/reset_prefix_cache")):
            refused = while_stepping(site, gate, lambda m=method, p=path: site.http.request(m, p))
            assert refused.status_code == 409 and refused.json()["error"]["code"] == "cache_in_use"
            assert " blocks" in refused.json()["error"]["message"]
        gate.open()


def test_an_option_of_a_reset_that_is_not_here_is_refused(site: Site) -> None:
    refused = site.post("/reset_prefix_cache?reset_running_requests=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reset_running_requests")


def test_each_reason_of_a_miss_is_said_in_words() -> None:
    assert WHY.keys() == set(MissReason)
