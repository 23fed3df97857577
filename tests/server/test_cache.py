"""The prefix cache as clients see it: what was hit, why the rest was not, and that others see nothing of it."""

from typing import Any

import pytest

from tests.server.site import BLOCK_SIZE, Site


def details(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]


def test_a_miss_says_why_in_usage_and_header(site: Site) -> None:
    prompt = "the first of its kind, and rather long"
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


def test_a_whole_hit_has_no_reason(site: Site) -> None:
    ids = site.tokenizer.encode("a prompt that ends where a block does")[: 2 * BLOCK_SIZE]
    site.complete(ids, max_tokens=1)
    again = site.complete(ids, max_tokens=1)
    assert details(again) == {"cached_tokens": 2 * BLOCK_SIZE - 1}
    assert "x-octavo-cache-miss" not in again.headers


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
