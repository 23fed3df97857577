"""Tenants through a whole server: keys, quotas, priorities, whose cache is whose, metrics, and a file read again."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config.schema import Config, ModelConfig, SchedulerConfig, ServerConfig
from octavo.core.request import Request
from octavo.models.checkpoint import Checkpoint
from octavo.server.auth import FOR_ALL, OPEN_PATHS, OWN
from octavo.server.routes import ROUTES, Route
from octavo.server.tallies import MOST_NAMED
from tests.server.site import BLOCK_SIZE, MAX_MODEL_LEN, Gate, Site, as_, backend_of, running
from tests.server.test_connections import in_thread
from tests.server.test_errors import error_of

OPERATOR = "operator-key"
FILE = f"""
tenants:
  red: {{keys: [red]}}
  blue: {{keys: ["sha256:{hashlib.sha256(b"blue").hexdigest()}"]}}
  lab-a: {{keys: [lab-a], cache: lab}}
  lab-b: {{keys: [lab-b], cache: lab}}
  few: {{keys: [few], requests_per_minute: 2}}
  small: {{keys: [small], tokens_per_minute: 100}}
  short: {{keys: [short], max_tokens_per_request: 20}}
  slow: {{keys: [slow], priority: 7, highest_priority: 5}}
  staff: {{keys: [staff], operator: true}}
"""


def ask(site: Site, key: str, **fields: Any) -> httpx.Response:
    return site.post("/v1/completions", {"prompt": "the", "max_tokens": 1, "temperature": 0, **fields}, **as_(key))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE, encoding="utf-8")
    return file


def config_of(file: Path) -> Config:
    server = ServerConfig(port=0, tenants=str(file), api_key=(OPERATOR,))
    return Config(
        model=ModelConfig(model="tiny"), scheduler=SchedulerConfig(scheduling_policy="priority"), server=server
    )


@pytest.fixture
def shared(checkpoint: Checkpoint, file: Path) -> Iterator[Site]:
    with running(checkpoint, config_of(file)) as site:
        yield site


def metric(site: Site, name: str, **labels: str) -> float:
    site.http.headers["authorization"] = f"Bearer {OPERATOR}"
    try:
        return site.metric(name, **labels)
    finally:
        del site.http.headers["authorization"]


def test_each_key_is_somebodys_and_others_are_nobodys(shared: Site) -> None:
    for key in ("red", "blue", "lab-a", OPERATOR):
        assert ask(shared, key).status_code == 200
        assert shared.post("/tokenize", {"prompt": "x"}, headers={"x-api-key": key}).status_code == 200
    for headers in ({}, {"authorization": "Bearer nobody"}, {"authorization": "Basic red"}, {"x-api-key": "nobody"}):
        response = shared.post("/v1/completions", {"prompt": "x"}, headers=headers)
        assert response.status_code == 401 and error_of(response)["code"] == "invalid_api_key"
    digest = hashlib.sha256(b"blue").hexdigest()
    assert ask(shared, f"sha256:{digest}").status_code == 401, "who has read the file has no key yet"


def test_what_shows_others_is_for_operators(shared: Site) -> None:
    def status_of(route: Route, key: str) -> int:
        """Without the answer: that of /octavo/v1/events has no end."""
        with shared.http.stream(route.method, route.path, json={}, **as_(key)) as response:
            return response.status_code

    for route in ROUTES:
        status = {key: status_of(route, key) for key in ("red", OPERATOR, "staff")}
        assert 403 not in (status[OPERATOR], status["staff"])
        is_open = route.path in OPEN_PATHS | FOR_ALL or route.path.startswith(OWN)
        assert (status["red"] == 403) is not is_open, route.path
    refused = shared.http.get("/metrics", **as_("red"))
    assert error_of(refused)["code"] == "operator_only"
    assert shared.http.get("/nothing", **as_("red")).status_code == 404


def test_every_route_that_generates_is_counted() -> None:
    posts = {route.path for route in ROUTES if route.method == "POST" and route.path.startswith("/v1/")}
    assert posts - {"/v1/messages/count_tokens"} | {"/octavo/v1/pins"} == {
        route.path for route in ROUTES if route.generates
    }


PROMPT = "a prompt that fills some blocks of the cache"


def cached(site: Site, key: str, **fields: Any) -> int:
    return ask(site, key, prompt=PROMPT, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def computed(site: Site, key: str, **fields: Any) -> float:
    """How many tokens the engine computed for this request."""
    before = metric(site, "vllm:iteration_tokens_total_sum")
    cached(site, key, **fields)
    return metric(site, "vllm:iteration_tokens_total_sum") - before


def test_tenants_share_no_cache_unless_both_say_so(shared: Site) -> None:
    """What a tenant can see of another's prompts: cached tokens, and the work that is done for it, hence the time."""
    cold = computed(shared, "red")
    assert computed(shared, "red") < cold - BLOCK_SIZE, "its own it has"
    for other in ("blue", "lab-a", OPERATOR):
        assert computed(shared, other) == cold
    assert cached(shared, "lab-b") >= BLOCK_SIZE


def test_a_salt_only_makes_it_narrower(shared: Site) -> None:
    digest = hashlib.sha256(b"tenant:red").hexdigest()
    assert cached(shared, "red") == 0
    for salt in ("red", "tenant:red", digest, digest[:32], "group:lab"):
        for key in ("blue", "lab-a", OPERATOR, "red"):
            assert cached(shared, key, cache_salt=salt) == 0
    assert cached(shared, "red", cache_salt="red") > 0
    assert cached(shared, "red") > 0


def test_requests_beyond_a_quota_are_told_when_to_come_back(shared: Site) -> None:
    first, second, third = (ask(shared, "few") for _ in range(3))
    assert [answer.status_code for answer in (first, second, third)] == [200, 200, 429]
    assert first.headers["x-ratelimit-limit-requests"] == "2" and first.headers["x-ratelimit-remaining-requests"] == "1"
    assert second.headers["x-ratelimit-remaining-requests"] == third.headers["x-ratelimit-remaining-requests"] == "0"
    assert re.fullmatch(r"(\d+m)?\d+m?s", second.headers["x-ratelimit-reset-requests"])
    error = error_of(third)
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    assert "requests_per_minute is 2" in error["message"] and "few" in error["message"]
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert ask(shared, "red").status_code == 200
    assert metric(shared, "octavo:tenant_over_quota_total", tenant="few", quota="requests_per_minute") == 1


@pytest.mark.parametrize("beams", [False, True])
def test_choices_that_are_not_returned_are_taken_too(shared: Site, beams: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 10, "n": 2, "best_of": 8, "use_beam_search": beams, "ignore_eos": True}
    answer = ask(shared, "small", **fields)
    assert answer.json()["usage"]["completion_tokens"] == 2 * 10
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 100 - 8 * 10


def test_tokens_are_taken_before_and_settled_after(shared: Site) -> None:
    """What may be used is taken; what was not used comes back, also where the request fails."""
    answer = ask(shared, "small", max_tokens=60, stop_token_ids=list(range(shared.tokenizer.vocab_size)))
    used = answer.json()["usage"]["total_tokens"]
    assert used < 20 and int(answer.headers["x-ratelimit-remaining-tokens"]) <= 100 - 60
    assert ask(shared, "small", max_tokens=60, n=65).status_code == 400
    again = ask(shared, "small", max_tokens=60)
    assert again.status_code == 200
    third = ask(shared, "small", max_tokens=60)
    assert third.status_code == 429 and error_of(third)["type"] == "tokens"
    assert int(third.headers["retry-after"]) >= 1


def test_what_a_quota_can_never_hold_is_no_matter_of_waiting(shared: Site) -> None:
    for fields, param in (
        ({"max_tokens": 99, "n": 2}, "max_tokens"),
        ({"prompt": [[70] * 101], "max_tokens": None}, "prompt"),
    ):
        response = ask(shared, "small", **fields)
        error = error_of(response)
        assert response.status_code == 400 and (error["param"], error["code"]) == (param, "request_exceeds_quota")
        assert "tokens_per_minute is 100" in error["message"]


def test_an_answer_of_unknown_length_may_lead_into_debt(shared: Site) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    assert shared.post("/v1/chat/completions", body, **as_("small")).status_code == 200
    assert ask(shared, "small").status_code == 429


def test_a_request_has_the_length_that_its_tenant_may_use(shared: Site) -> None:
    answer = ask(shared, "short", prompt=[[70] * 15], max_tokens=10, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 5 and answer.headers["x-octavo-max-tokens"] == "5"
    error = error_of(ask(shared, "short", prompt=[[70] * 20]))
    assert error["code"] == "context_length_exceeded" and "max_tokens_per_request" in error["message"]
    assert ask(shared, "short", prompt=[[70] * 90], truncate_prompt_tokens=-1).json()["usage"]["prompt_tokens"] == 19
    card = shared.http.get("/v1/models", **as_("short")).json()["data"][0]
    assert card["max_model_len"] == 20
    assert shared.http.get("/v1/models", **as_("red")).json()["data"][0]["max_model_len"] == MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("key", "priority", "refused"),
    [
        ("slow", None, False),
        ("slow", 5, False),
        ("slow", 4, True),
        ("red", 3, False),
        ("red", -1, True),
        (OPERATOR, -9, False),
    ],
)
def test_a_priority_is_bounded_by_the_tenants(shared: Site, key: str, priority: int | None, refused: bool) -> None:
    response = ask(shared, key, priority=priority)
    assert response.status_code == (400 if refused else 200)
    if refused:
        assert error_of(response)["param"] == "priority"


def test_the_engine_is_told_whose_a_request_is_and_what_that_weighs(
    checkpoint: Checkpoint, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("tenants: {heavy: {keys: [heavy], weight: 3}, light: {keys: [light]}}", encoding="utf-8")
    config = replace(config_of(file), scheduler=SchedulerConfig(scheduling_policy="fair"))
    with running(checkpoint, config) as site:
        client, told = site.app.service.client, list[tuple[str, int]]()
        submit = client.submit

        def noted(request: Request) -> Any:
            told.append((request.tenant, request.weight))
            return submit(request)

        monkeypatch.setattr(client, "submit", noted)
        for key in ("heavy", "light", OPERATOR):
            assert ask(site, key).status_code == 200
    assert told == [("heavy", 3), ("light", 1), ("", 1)]


def test_as_many_at_once_as_a_tenant_may(checkpoint: Checkpoint, file: Path) -> None:
    file.write_text("tenants: {two: {keys: [two], concurrent_requests: 2}}", encoding="utf-8")
    gate = Gate(backend_of(checkpoint))
    with running(checkpoint, config_of(file), backend=gate) as site:
        waits = [in_thread(lambda: ask(site, "two")) for _ in range(2)]
        site.until(lambda: site.app.service.duty.in_flight == 2)
        third = ask(site, "two")
        assert third.status_code == 429 and third.headers["retry-after"] == "1"
        assert "concurrent_requests is 2" in error_of(third)["message"]
        gate.open()
        assert [wait().status_code for wait in waits] == [200, 200]
        site.until(lambda: site.app.service.duty.in_flight == 0)
        assert ask(site, "two").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_has_its_answer_is_not_inside_any_more(checkpoint: Checkpoint, file: Path, stream: bool) -> None:
    """The next request may follow at once, on the same connection or another."""
    file.write_text("tenants: {one: {keys: [one], concurrent_requests: 1}}", encoding="utf-8")
    with running(checkpoint, config_of(file)) as site:
        assert [ask(site, "one", stream=stream).status_code for _ in range(50)] == [200] * 50


def test_who_leaves_or_is_refused_is_not_inside_any_more(checkpoint: Checkpoint, file: Path) -> None:
    content = "tenants: {one: {keys: [one], concurrent_requests: 1, tokens_per_minute: 100k}}"
    file.write_text(content, encoding="utf-8")
    with running(checkpoint, config_of(file)) as site:
        for fields in ({"n": 0}, {"prompt": ""}, {"model": "other"}, {"prompt": [[70] * 300]}):
            assert 400 <= ask(site, "one", **fields).status_code < 500
        left = 0
        for _ in range(20):
            with site.opened("/v1/completions", {"prompt": "the", "max_tokens": 40, "stream": True}, key="one"):
                left += 1
            site.until(lambda: ask(site, "one").status_code != 429)
        assert ask(site, "one").status_code == 200


def test_metrics_tell_tenants_apart(shared: Site) -> None:
    usages = {key: ask(shared, key, max_tokens=3, prompt=PROMPT).json()["usage"] for key in ("red", "lab-a", OPERATOR)}
    for key, usage in usages.items():
        name = "default" if key == OPERATOR else key
        assert metric(shared, "octavo:tenant_requests_total", tenant=name) == 1
        assert metric(shared, "octavo:tenant_prompt_tokens_total", tenant=name) == usage["prompt_tokens"]
        assert metric(shared, "octavo:tenant_generation_tokens_total", tenant=name) == usage["completion_tokens"]
        assert metric(shared, "octavo:tenant_cached_tokens_total", tenant=name) == 0
        missed = metric(shared, "octavo:tenant_cache_miss_tokens_total", tenant=name, reason="never_seen")
        assert missed == usage["prompt_tokens"]
        assert metric(shared, "octavo:tenant_requests_live", tenant=name) == 0


def test_the_log_says_whose_a_request_was(shared: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "octavo.server.access"):
        headers = {"authorization": "Bearer red", "x-request-id": "mine"}
        assert shared.post("/tokenize", {"prompt": "x"}, headers=headers).status_code == 200
        shared.until(lambda: any("tenant red (mine)" in record.getMessage() for record in caplog.records))


def test_labels_are_bounded(checkpoint: Checkpoint, file: Path) -> None:
    many = 2 * MOST_NAMED
    tenants = "\n".join(f"  t{number}: {{keys: [t{number}]}}" for number in range(many))
    file.write_text(f"tenants:\n{tenants}\n", encoding="utf-8")
    with running(checkpoint, config_of(file)) as site:
        for number in range(many):
            assert ask(site, f"t{number}").status_code == 200
        assert metric(site, "octavo:tenant_requests_total") == many
        assert metric(site, "octavo:tenant_requests_total", tenant="other") == many - MOST_NAMED
        text = site.http.get("/metrics", **as_(OPERATOR)).text
    labels = set(re.findall(r'octavo:tenant_requests_total\{.*tenant="([^"]+)"', text))
    assert len(labels) == MOST_NAMED + 2


def reload(site: Site) -> None:
    async def again() -> None:
        site.app.service.tenancy.reload()

    site.run(again())


def test_a_file_that_is_read_again_changes_who_may_do_what(
    shared: Site, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(shared, "few")
    file.write_text("tenants: {few: {keys: [new], requests_per_minute: 3}, fresh: {keys: [fresh]}}", encoding="utf-8")
    reload(shared)
    assert ask(shared, "few").status_code == 401 and ask(shared, "red").status_code == 401
    assert ask(shared, "fresh").status_code == ask(shared, OPERATOR).status_code == 200
    assert ask(shared, "new").headers["x-ratelimit-remaining-requests"] == "1", "what was spent stays spent"
    file.write_text("tenants: {few: {keys: [newer], requests_per_minut: 3}}", encoding="utf-8")
    reload(shared)
    assert ask(shared, "newer").status_code == 401 and ask(shared, "new").status_code == 200
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "did you mean requests_per_minute?" in errors[0] and "stay as they were" in errors[0]
