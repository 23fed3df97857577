"""Pins and explanations over HTTP: for each tenant its own, within its quota, computed like any request."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config.schema import CacheConfig, Config, ModelConfig, ServerConfig
from octavo.models.checkpoint import Checkpoint
from octavo.server.pinning import PATH
from tests.server.site import BLOCK_SIZE, NUM_BLOCKS, Gate, Site, as_, running
from tests.server.test_cache import computed, details, while_stepping
from tests.server.test_errors import error_of

TEXT = "what every prompt of this customer begins with, so that it stays"
FILE = """
tenants:
  red: {keys: [red]}
  blue: {keys: [blue], pin_quota: 0.02}
  none: {keys: [none], pin_quota: 0}
  staff: {keys: [staff], operator: true}
"""


@pytest.fixture
def own(checkpoint: Checkpoint) -> Iterator[Site]:
    """A server whose cache no other test uses."""
    with running(checkpoint) as site:
        yield site


@pytest.fixture
def shared(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE, encoding="utf-8")
    server = ServerConfig(port=0, tenants=str(file))
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server)) as site:
        yield site


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return error_of(response)


def pin(site: Site, **fields: Any) -> dict[str, Any]:
    answer = site.post(PATH, fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_pin_computes_what_is_not_cached_and_is_hit_from_then_on(own: Site) -> None:
    ids = own.tokenizer.encode(TEXT)
    full = len(ids) // BLOCK_SIZE * BLOCK_SIZE
    made = pin(own, prompt=TEXT, ttl=60)
    assert (made["tokens"], made["blocks"], made["computed_tokens"]) == (full, full // BLOCK_SIZE, full)
    assert 0 < made["expires_in"] <= 60 and made["object"] == "pin" and made["tenant"] is None
    assert own.metric("octavo:blocks", state="pinned") == full // BLOCK_SIZE
    assert own.metric("octavo:blocks") == NUM_BLOCKS
    assert own.http.delete("/octavo/v1/prefix_cache").status_code == 200, "what is pinned outlives a reset"
    assert computed(own, ids)[1]["cached_tokens"] == full
    assert pin(own, token_ids=ids)["computed_tokens"] == 0, "what is cached is not computed again"


def test_pins_are_listed_and_removed(own: Site) -> None:
    first, second = pin(own, prompt=TEXT), pin(own, prompt=f"{TEXT} and beyond that too", ttl=7)
    listed = own.http.get(PATH).json()
    assert [each["id"] for each in listed["data"]] == [first["id"], second["id"]]
    assert listed["blocks"] == second["blocks"], "a block that both hold counts once"
    assert listed["quota_blocks"] == NUM_BLOCKS // 4
    assert own.http.delete(f"{PATH}/{first['id']}").json()["deleted"] is True
    assert refused(own.http.delete(f"{PATH}/{first['id']}"), 404)["code"] == "pin_not_found"
    assert own.http.delete(f"{PATH}/{second['id']}").status_code == 200
    assert own.http.get(PATH).json()["data"] == []
    own.until(lambda: own.metric("octavo:blocks", state="pinned") == 0)


def test_a_pin_ends_while_nothing_runs(own: Site) -> None:
    pin(own, prompt=TEXT, ttl=1)
    assert own.metric("octavo:blocks", state="pinned") > 0
    own.until(lambda: own.metric("octavo:blocks", state="pinned") == 0)
    assert own.http.get(PATH).json()["data"] == []


def test_messages_are_pinned_as_a_chat_will_send_them(own: Site) -> None:
    system = [{"role": "system", "content": f"You know this: {TEXT}. {TEXT}"}]
    made = pin(own, messages=system)
    own.http.delete("/octavo/v1/prefix_cache")
    answer = own.chat([*system, {"role": "user", "content": "hi"}], max_tokens=1)
    assert made["tokens"] <= details(answer)["cached_tokens"] < made["tokens"] + BLOCK_SIZE


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "give one of"),
        ({"prompt": TEXT, "token_ids": [3] * 20}, "token_ids", "give one of"),
        ({"token_ids": [3, 10**6] * 20}, "token_ids[1]", "ids are from 0"),
        ({"prompt": TEXT, "ttl": 0}, "ttl", "from 1 to 2592000"),
        ({"prompt": TEXT, "ttl": 1e9}, "ttl", "from 1 to 2592000"),
        ({"prompt": "hi"}, None, "only full blocks of 8"),
        ({"token_ids": [3] * 256}, None, "context of 256"),
        ({"prompt": TEXT, "cache_salt": ""}, "cache_salt", "non-empty"),
    ],
)
def test_what_cannot_be_pinned_says_why(site: Site, fields: dict[str, Any], param: str | None, words: str) -> None:
    error = refused(site.post(PATH, fields), 400)
    assert error["param"] == param and words in error["message"]


def test_a_quota_of_the_pool_is_told_before_anything_is_computed(checkpoint: Checkpoint) -> None:
    config = Config(
        model=ModelConfig(model="tiny"), server=ServerConfig(port=0), cache=replace(CacheConfig(), pin_quota=0.01)
    )
    with running(checkpoint, config) as site:
        error = refused(site.post(PATH, {"prompt": TEXT}), 409)
        assert error["code"] == "pin_quota_exceeded" and "2 may be (--pin-quota)" in error["message"]
        assert site.metric("octavo:steps_total") == 0


def test_tenants_have_their_own_pins_and_quotas(shared: Site) -> None:
    made = shared.post(PATH, {"prompt": TEXT}, **as_("red")).json()
    assert made["tenant"] == "red"
    assert refused(shared.post(PATH, {"prompt": TEXT}, **as_("blue")), 409)["code"] == "pin_quota_exceeded"
    assert refused(shared.post(PATH, {"prompt": TEXT}, **as_("none")), 409)["code"] == "pin_quota_exceeded"
    assert shared.post(PATH, {"prompt": TEXT[:40]}, **as_("blue")).status_code == 201
    seen = {key: shared.http.get(PATH, **as_(key)).json()["data"] for key in ("red", "blue", "none", "staff")}
    assert {key: len(pins) for key, pins in seen.items()} == {"red": 1, "blue": 1, "none": 0, "staff": 2}
    assert shared.http.delete(f"{PATH}/{made['id']}", **as_("blue")).status_code == 404
    assert shared.http.delete(f"{PATH}/{made['id']}", **as_("staff")).status_code == 200


def test_who_goes_away_while_a_pin_is_computed_leaves_none(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    with site.opened(PATH, {"prompt": TEXT}):
        site.until(lambda: site.app.service.duty.in_flight == 1)
    gate.open()
    site.until(lambda: site.app.service.duty.in_flight == 0)
    assert site.http.get(PATH).json()["data"] == []


# -- explanations ----------------------------------------------------------------------------------------------------


def explain(site: Site, **fields: Any) -> dict[str, Any]:
    answer = site.post("/octavo/v1/explain", fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_explanation_says_what_would_hit_and_shows_both_sides(own: Site) -> None:
    ids = own.tokenizer.encode(TEXT)
    own.complete(ids, max_tokens=1)
    at = 2 * BLOCK_SIZE + 5
    other = [*ids[:at], ids[at] + 1, *ids[at + 1 : 3 * BLOCK_SIZE]]
    told = explain(own, token_ids=other)
    assert (told["prompt_tokens"], told["cached_tokens"]) == (len(other), 2 * BLOCK_SIZE + 4)
    assert told["cached_text"] == own.tokenizer.decode(ids[: 2 * BLOCK_SIZE + 4], skip_special_tokens=False)
    miss = told["miss"]
    assert (miss["reason"], miss["at"]) == ("tokens_differ_at", at)
    assert miss["prompt"]["token_ids"] == other[at:][:8] and miss["cached"]["token_ids"] == ids[at : 3 * BLOCK_SIZE]
    assert miss["cached"]["text"] == "".join(miss["cached"]["tokens"]) and miss["before"] in told["cached_text"] + TEXT


def test_an_explanation_comes_true_and_changes_nothing(own: Site) -> None:
    own.complete(TEXT, max_tokens=1)
    for prompt in (TEXT, TEXT[:30], f"{TEXT[:30]} but not quite", "something else"):
        told = [explain(own, prompt=prompt) for _ in range(2)]
        num_computed, found = computed(own, prompt)
        assert told[0] == told[1]
        assert (told[0]["cached_tokens"], told[0]["computed_tokens"]) == (found["cached_tokens"], num_computed)
        assert (told[0]["miss"] or {}).get("reason") == found.get("cache_miss_reason")
        assert (told[0]["miss"] or {}).get("at") == found.get("cache_miss_at")


def test_an_explanation_counts_what_is_being_computed(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    ids = site.tokenizer.encode(TEXT)
    with site.opened("/v1/completions", {"prompt": ids, "max_tokens": 100, "ignore_eos": True}):
        gate.let(1)
        site.until(lambda: site.metric("octavo:blocks", state="leased") > 0)
        told = while_stepping(site, gate, lambda: site.post("/octavo/v1/explain", {"token_ids": ids})).json()
        assert told["cached_tokens"] >= len(ids) // BLOCK_SIZE * BLOCK_SIZE
        gate.open()


def test_a_tenant_s_explanation_knows_its_own_prompts_only(shared: Site) -> None:
    ask = {"prompt": TEXT, "max_tokens": 1}
    shared.post("/v1/completions", {**ask, "cache_salt": "mine"}, **as_("red"))

    def reason(key: str, **fields: Any) -> tuple[int, str | None]:
        told = shared.post("/octavo/v1/explain", {"prompt": TEXT, **fields}, **as_(key)).json()
        return told["cached_tokens"], (told["miss"] or {}).get("reason")

    assert reason("red", cache_salt="mine")[0] > 0
    assert reason("red") == (0, "different_namespace"), "its own other salt"
    assert reason("blue") == reason("blue", cache_salt="mine") == reason("staff") == (0, "never_seen")


def test_an_empty_prompt_has_nothing_to_explain(site: Site) -> None:
    answer: httpx.Response = site.post("/octavo/v1/explain", {"token_ids": []})
    assert refused(answer, 400)["param"] == "prompt"
