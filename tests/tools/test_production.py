"""The checklist for production: each check on what a real server says of itself, and on what other servers would."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import FAILED, OK, main
from octavo.tools import production
from octavo.tools.findings import Finding, State
from octavo.tools.production import LIVE, PRODUCTION, Expected, Facts
from tests.server.site import Site, running, tiny_checkpoint


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tiny_checkpoint(Path(tmp_path_factory.mktemp("tiny")) / "model")) as site:
        for index in range(3):
            site.complete(f"{index} of some prompts that fill blocks", max_tokens=30, ignore_eos=True)
        yield site


@pytest.fixture(scope="module")
def facts(site: Site) -> Facts:
    """Of the running server: all is well."""
    rows = site.http.get("/octavo/v1/config").json()["settings"]
    state = site.http.get("/octavo/v1/state").json()
    return Facts(state, {row["setting"]: row["value"] for row in rows}, 0.01, True)


def changed(facts: Facts, changes: dict[str, Any], **expected: Any) -> Facts:
    """`changes`: values of the state by path; behind a `!`, of settings."""
    state, settings = json.loads(json.dumps(facts.state)), dict(facts.settings)
    for path, value in changes.items():
        if path.startswith("!"):
            settings[path[1:]] = value
            continue
        *parents, last = path.split(".")
        place = state
        for name in parents:
            place = place[name]
        place[last] = value
    return replace(facts, state=state, settings=settings, expected=Expected(**expected))


def test_a_server_that_is_well_has_a_clean_sheet(facts: Facts) -> None:
    calm = changed(facts, {"window.inter_token": GAPS}, peak=8)
    found = {name: check(calm) for name, check in PRODUCTION.items()}
    assert {name: finding for name, finding in found.items() if finding.state is not State.OK} == {}
    assert found["server"].details == ("warning: it is tiny",)


COUNTS = {"totals.finished": {"length": 100}, "totals.prompt_tokens": 90_000, "totals.generated_tokens": 10_000}
GAPS = {"count": 500, "p50": 0.02, "p90": 0.03, "p99": 0.04}


@pytest.mark.parametrize(
    ("name", "changes", "expected", "state", "words"),
    [
        ("engine", {"totals.violations": 1}, {}, State.BROKEN, "laws of the allocator"),
        ("engine", {"totals.stalls": 2}, {}, State.BROKEN, "nothing advanced"),
        ("engine", {"engine.lost": 3}, {}, State.WARNING, "lost 3 times"),
        ("start", {"engine.ready_after_s": 4.0}, {}, State.OK, "allow 60 s"),
        ("start", {"engine.ready_after_s": 40.0}, {"startup_s": 200}, State.OK, "200 s are allowed"),
        ("start", {"engine.ready_after_s": 40.0}, {"startup_s": 100}, State.WARNING, "allow 200 s, but 100 s are"),
        ("start", {"engine.ready_after_s": 40.0}, {"startup_s": 30}, State.BROKEN, "but 30 s are"),
        ("concurrency", {}, {"peak": 64}, State.OK, "64 requests at once are expected"),
        ("concurrency", {}, {"peak": 150}, State.WARNING, "86 would wait"),
        ("concurrency", {"load.lacks": {"seqs": 7}}, {}, State.WARNING, "7 wait for one of 64 slots"),
        ("kv cache", COUNTS, {}, State.WARNING, "2.0 requests of 1000 tokens, the mean of 100, and 64 may run"),
        ("kv cache", COUNTS, {"peak": 2}, State.OK, "and 2 may run"),
        ("kv cache", COUNTS, {"peak": 2, "prompt_tokens": 4000}, State.OK, "; 0.5 prompts of 4000 tokens at once"),
        ("kv cache", {"totals.finished": {}}, {}, State.OK, "at full context"),
        ("token budget", {"window.inter_token": {**GAPS, "count": 3}}, {}, State.OK, "too few tokens"),
        ("token budget", {"window.inter_token": GAPS}, {"prompt_tokens": 5000}, State.OK, "5000 takes 3 steps"),
        ("token budget", {"window.inter_token": {**GAPS, "p99": 0.5}}, {}, State.WARNING, "500 ms for the slowest"),
        ("token budget", {"window.inter_token": GAPS}, {"itl_s": 0.03}, State.WARNING, "30 ms are wanted"),
        ("token budget", {"window.inter_token": GAPS}, {"itl_s": 0.05}, State.OK, "20 ms between tokens"),
        ("prefix cache", {"limits.enable_prefix_caching": False}, {}, State.WARNING, "off"),
        ("prefix cache", {"totals.cache_queries": 9, "totals.cache_hits": 0}, {}, State.OK, "too few"),
        (
            "prefix cache",
            {"totals.cache_queries": 10_000, "totals.cache_hits": 2500, "totals.missed_tokens": {"evicted": 4000}},
            {},
            State.WARNING,
            "25% of 10,000",
        ),
        (
            "prefix cache",
            {"totals.cache_queries": 10_000, "totals.cache_hits": 9000, "totals.missed_tokens": {"never_seen": 1000}},
            {},
            State.OK,
            "90% of 10,000",
        ),
        ("preemption", {**COUNTS, "totals.preemptions": {"blocks": 1}}, {}, State.OK, "1 of 100 choices"),
        (
            "preemption",
            {**COUNTS, "totals.preemptions": {"blocks": 5}, "window.preemptions": 4, "window.requests_per_s": 1.0},
            {},
            State.WARNING,
            "more than before",
        ),
        (
            "preemption",
            {**COUNTS, "totals.preemptions": {"blocks": 50}, "window.preemptions": 0},
            {},
            State.WARNING,
            "less than before",
        ),
        ("cores", {"engine.num_threads": 10_000}, {}, State.WARNING, "10000 threads compute"),
        (
            "queue",
            {"!queue.max_num_queued_reqs": 0, "!queue.max_num_queued_tokens": 0},
            {},
            State.WARNING,
            "as many requests may wait as come",
        ),
        (
            "queue",
            {"!queue.max_num_queued_reqs": 9, "!queue.max_num_queued_tokens": 0},
            {},
            State.OK,
            "9 requests wait",
        ),
        ("keys", {"!server.host": "0.0.0.0"}, {}, State.WARNING, "no key is asked for on 0.0.0.0"),
        ("keys", {"!server.host": "0.0.0.0", "!server.api_key": ["***"]}, {}, State.OK, "a key is asked for"),
        ("endings", {"!server.shutdown_delay": 5.0, "!server.shutdown_timeout": 30.0}, {}, State.OK, "more than 35 s"),
        ("endings", {"!engine.crash_dump_dir": "off"}, {}, State.WARNING, "nothing is written down"),
    ],
)
def test_each_check_has_the_number_and_the_limit(
    facts: Facts, name: str, changes: dict[str, Any], expected: dict[str, Any], state: State, words: str
) -> None:
    finding: Finding = PRODUCTION[name](changed(facts, changes, **expected))
    assert finding.state is state and words in finding.text
    assert state is not State.WARNING or finding.details or name in ("engine", "start")


@pytest.mark.parametrize(
    ("p50", "remedy"), [(0.02, "lower --prefill-tokens-beside-decodes"), (0.2, "fewer --max-num-seqs, more cores")]
)
def test_the_remedy_for_slow_tokens_depends_on_which_are_slow(facts: Facts, p50: float, remedy: str) -> None:
    gaps = {**GAPS, "p50": p50, "p99": 0.3}
    finding = production.check_token_budget(changed(facts, {"window.inter_token": gaps}, itl_s=0.1))
    assert finding.state is State.WARNING and remedy in finding.details[0]


def test_a_running_server_is_examined_as_typed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", site.url]) == OK
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")] == list(LIVE)
    assert main(["doctor", "--production", "--url", site.url, "--expected-peak", "1000", "--json"]) == OK
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == PRODUCTION.keys() and rows["concurrency"]["state"] == "warning"


def test_a_server_that_refuses_is_examined_all_the_same(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full one is looked into when it matters most. Here the question is longer than its context."""
    model = tiny_checkpoint(Path(tmp_path_factory.mktemp("refuses")) / "model")
    with running(model, narrowed=lambda limits: replace(limits, max_model_len=2)) as site:
        assert main(["doctor", "--production", "--url", site.url, "--json"]) == FAILED
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == PRODUCTION.keys() and rows["server"]["state"] == "broken"
    assert "it refuses to generate a token: " in rows["server"]["text"]


def test_a_server_that_does_not_answer_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--production", "--url", "http://127.0.0.1:1"]) == FAILED
    assert "broken" in (said := capsys.readouterr().out) and "no answer from" in said


def test_flags_in_remedies_exist() -> None:
    import inspect
    import re

    from octavo.config.schema import settings

    flags = {setting.flag for setting in settings().values()} | {"--no-enable-prefix-caching"}
    own = {"--url", "--production", "--expected-peak", "--startup-budget", "--cold-start"}
    assert set(re.findall(r"--[a-z][a-z-]+", inspect.getsource(production))) <= flags | own
