"""What a server shows of itself: its state, its events as they happen, what became of a request, its settings."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.cli import OK, USAGE, main
from octavo.config.schema import Config, EngineConfig, ModelConfig, ServerConfig
from octavo.core.events import BlockEvicted, Queued, Stepped
from octavo.models.checkpoint import Checkpoint
from octavo.server import feed, glance
from octavo.server.feed import Feed, Reader
from octavo.server.telling import KINDS
from tests.server.described import check_described
from tests.server.site import BLOCK_SIZE, NUM_BLOCKS, PATIENCE_S, Gate, Site, as_, running
from tests.server.test_errors import error_of

FILE = """
tenants:
  red: {keys: [red]}
  blue: {keys: [blue]}
  staff: {keys: [staff], operator: true}
"""
TEXT = "a prompt that fills some blocks, as each of these does"


def get(site: Site, path: str, key: str | None = None) -> dict[str, Any]:
    answer = site.http.get(path, **({} if key is None else as_(key)))
    check_described(answer, path.partition("?")[0])
    assert answer.status_code == 200, answer.text
    return answer.json()


def state(site: Site) -> dict[str, Any]:
    return get(site, "/octavo/v1/state")


@pytest.fixture
def own(checkpoint: Checkpoint) -> Iterator[Site]:
    with running(checkpoint) as site:
        yield site


# -- state -----------------------------------------------------------------------------------------------------------


def test_a_state_is_whole_and_adds_up(own: Site) -> None:
    own.complete(TEXT, max_tokens=4, ignore_eos=True)
    found = state(own)
    assert found["engine"]["state"] == "ready" and found["engine"]["isa"] == "numpy"
    assert found["engine"]["num_blocks"] == NUM_BLOCKS and found["engine"]["warnings"] == ["it is tiny"]
    blocks = found["load"]["blocks"]
    assert blocks["blank"] + blocks["cached"] + blocks["leased"] + blocks["pinned"] == NUM_BLOCKS
    assert len(found["map"]["cells"]) == NUM_BLOCKS and found["map"]["cells"].count("c") == blocks["cached"] > 0
    assert found["totals"]["generated_tokens"] == 4 and found["totals"]["finished"] == {"length": 1}
    window = found["window"]
    assert window["first_token"]["count"] == 1 and window["inter_token"]["count"] == 3
    assert 0 < window["inter_token"]["p50"] <= window["inter_token"]["p99"] and window["hit_rate"] == 0
    assert found["limits"]["max_num_seqs"] == own.app.service.config.scheduler.max_num_seqs
    assert found["requests"] == [] and found["num_requests"] == 0 and found["server"]["in_flight"] == 0


def test_live_requests_say_where_they_are_and_for_what_they_wait(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    ask = {"prompt": TEXT, "max_tokens": 50, "ignore_eos": True, "n": 2}
    with site.opened("/v1/completions", ask), site.opened("/v1/completions", {**ask, "n": 1}):
        site.until(lambda: site.metric("vllm:num_requests_waiting") + site.app.service.duty.in_flight >= 2)
        gate.let(2)
        site.until(lambda: stepping(site, gate)["num_requests"] == 2)
        rows = {one["choices"]: one for one in stepping(site, gate)["requests"]}
        assert rows[2]["state"] == "running" and rows[2]["generated_tokens"] >= 2 and rows[2]["cached_tokens"] == 0
        assert rows[1]["state"] == "waiting" and rows[1]["lacks"] == "seqs" and rows[1]["blocks"] == 0
        assert {each["reason"] for each in rows[1]["waited"]} <= {"step", "seqs"}
        found = stepping(site, gate)
        assert found["load"]["lacks"] == {"seqs": 1} and found["load"]["kv_usage"] > 0
        gate.open()


def stepping(site: Site, gate: Gate) -> dict[str, Any]:
    """The state, as it is after a further step: an engine answers between two of them."""
    service = site.app.service
    before = service.feed.seq
    gate.let(1)
    site.until(lambda: service.feed.seq > before)
    gate.let(2)
    return state(site)


def test_an_engine_in_a_long_step_does_not_hold_up_who_looks(
    gated: tuple[Site, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, gate = gated
    assert state(site)["load"]["running"] == 0
    monkeypatch.setattr(glance, "FRESH_S", -1.0)
    monkeypatch.setattr(glance, "PATIENCE_S", 0.0)
    with site.opened("/v1/completions", {"prompt": TEXT, "max_tokens": 3}):
        site.until(lambda: site.app.service.duty.in_flight == 1)
        found = state(site)
        assert found["server"]["in_flight"] == 1 and found["load"]["running"] == 0 and found["age_s"] > 0
        gate.open()


def test_a_server_that_loads_has_a_state_too(checkpoint: Checkpoint) -> None:
    go = threading.Event()

    def load(report: Callable[[str], None]) -> None:
        report("packing weights (40 %)")
        assert go.wait(PATIENCE_S)

    with running(checkpoint, load=load) as site:
        site.until(lambda: "40" in state(site)["engine"]["progress"])
        found = state(site)
        assert found["engine"]["state"] == "starting" and found["load"] is None and found["engine"]["isa"] is None
        go.set()
        site.until(lambda: state(site)["load"] is not None)


@pytest.mark.parametrize("path", ["/octavo/v1/state?x=1", "/octavo/v1/config?kinds=stepped"])
def test_what_a_route_does_not_know_is_refused(site: Site, path: str) -> None:
    answer = site.http.get(path)
    check_described(answer, path.partition("?")[0])
    assert answer.status_code == 400 and "it takes none" in error_of(answer)["message"]


# -- events ----------------------------------------------------------------------------------------------------------


class Follower:
    """Reads the events of a server in a thread of its own."""

    def __init__(self, site: Site, query: str = "") -> None:
        self.told: list[dict[str, Any]] = []
        self.ended = threading.Event()
        self._site = site
        self._query = query
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        site.until(lambda: bool(self.told))

    def _read(self) -> None:
        url = f"{self._site.url}/octavo/v1/events{self._query}"
        with httpx.stream("GET", url, timeout=PATIENCE_S, trust_env=False) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.told.append(json.loads(line.removeprefix("data: ")))
        self.ended.set()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["kind"] == kind]


def test_events_are_told_as_they_happen_in_order_and_without_what_was_said(checkpoint: Checkpoint) -> None:
    with running(checkpoint) as site:
        follower = Follower(site)
        site.complete(TEXT, max_tokens=3, ignore_eos=True)
        site.until(lambda: len(follower.of("finished")) == 1)
        kinds = [each["kind"] for each in follower.told]
        assert kinds[0] == "hello" and follower.told[0]["kinds"] == list(KINDS)
        wanted = ["queued", "admitted", "computed", "generated", "generated", "generated", "finished"]
        (queued,) = follower.of("queued")
        mine = [each for each in follower.told if each.get("request_id") == queued["request_id"]]
        assert [each["kind"] for each in mine] == wanted
        assert all(each["tokens"] == 1 for each in follower.of("generated"))
        assert all(
            before["seq"] < after["seq"] for before, after in zip(follower.told, follower.told[1:], strict=False)
        )
        assert follower.of("admitted")[0]["miss"]["reason"] == "never_seen" and follower.of("admitted")[0]["waited"]
    assert follower.ended.wait(PATIENCE_S), "a server that ends ends its streams"


def test_only_the_kinds_that_were_asked_for_come(own: Site) -> None:
    follower = Follower(own, "?kinds=queued,finished")
    own.complete(TEXT, max_tokens=2)
    own.until(lambda: len(follower.of("finished")) == 1)
    assert {each["kind"] for each in follower.told} == {"hello", "queued", "finished"}


@pytest.mark.parametrize(("query", "param"), [("kinds=queued,news", "kinds"), ("since=3", "since")])
def test_what_cannot_be_followed_is_refused(site: Site, query: str, param: str) -> None:
    answer = site.http.get(f"/octavo/v1/events?{query}")
    check_described(answer, "/octavo/v1/events")
    assert answer.status_code == 400 and error_of(answer)["param"] == param


def test_who_reads_slowly_loses_the_oldest_and_is_told_how_many(site: Site) -> None:
    async def lag() -> tuple[int, list[tuple[int, Any]]] | None:
        reader = Reader([Queued, BlockEvicted], None, most=3)
        for seq in range(10):
            reader.put((seq, Queued(f"r{seq}", 0.0, 1)))
        reader.put((10, Stepped(0.0, 0, 0, 0, 0, 0, 0, 0, {})))
        return await reader.take()

    taken = site.run(lag())
    assert taken is not None and taken[0] == 7 and [seq for seq, _ in taken[1]] == [7, 8, 9]


def test_events_that_readers_lost_are_counted_also_when_they_have_gone(site: Site) -> None:
    async def lag() -> list[int]:
        one, told = Feed(), list[int]()
        with one.reader([Queued], most=2), one.reader([Queued], most=4):
            one.on_events([Queued(f"r{number}", 0.0, 1) for number in range(5)])
            told.append(one.num_lost)
        return [*told, one.num_lost]

    assert site.run(lag()) == [4, 4]
    assert site.metric("octavo:events_dropped_total") == site.app.service.feed.num_lost


def test_too_many_readers_are_sent_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_READERS", 0)
    answer = site.http.get("/octavo/v1/events")
    check_described(answer, "/octavo/v1/events")
    assert answer.status_code == 503 and error_of(answer)["code"] == "too_many_readers"


def test_after_the_end_a_reader_gets_what_there_is_and_then_the_end(site: Site) -> None:
    async def end() -> list[Any]:
        one = Feed()
        with one.reader([Queued]) as reader:
            one.on_events([Queued("r", 0.0, 1)])
            one.close()
            return [await reader.take(), await reader.take()]

    first, second = site.run(end())
    assert first == (0, [(1, Queued("r", 0.0, 1))]) and second is None


# -- requests --------------------------------------------------------------------------------------------------------


def test_a_request_is_found_by_each_of_its_names(own: Site) -> None:
    answer = own.post(
        "/v1/completions",
        {"prompt": [TEXT, TEXT], "max_tokens": 3, "temperature": 0, "ignore_eos": True},
        headers={"x-request-id": "mine-1"},
    )
    by_id = get(own, f"/octavo/v1/requests/{answer.json()['id']}")
    by_header = get(own, "/octavo/v1/requests/mine-1")
    assert by_id["requests"] == by_header["requests"] and len(by_id["requests"]) == 2
    assert by_id["path"] == "/v1/completions" and by_id["x_request_id"] == "mine-1"
    second = by_id["requests"][1]
    alone = get(own, f"/octavo/v1/requests/{second['id']}")
    assert alone["requests"] == [second] and alone["path"] == "/v1/completions"


def test_a_timeline_tells_what_happened_in_order_with_numbers(own: Site) -> None:
    ids = own.tokenizer.encode(TEXT)
    own.complete(ids, max_tokens=1)
    answer = own.complete([*ids, 5, 6, 7], max_tokens=4, ignore_eos=True, n=2, temperature=1)
    (one,) = get(own, f"/octavo/v1/requests/{answer.json()['id']}")["requests"]
    kinds = [moment["kind"] for moment in one["timeline"]]
    assert kinds == ["queued", "admitted", "computed", "first_token", "first_token", "finished", "finished"]
    assert [moment["at"] for moment in one["timeline"]] == sorted(moment["at"] for moment in one["timeline"])
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert one["cached_tokens"] == cached >= len(ids) // BLOCK_SIZE * BLOCK_SIZE
    assert f"{cached} of {len(ids) + 3} prompt tokens were cached" in one["timeline"][1]["text"]
    assert one["generated_tokens"] == 8 and [each["reason"] for each in one["ended"]] == ["length"] * 2
    assert one["state"] == "finished" and one["queue_s"] <= one["first_token_s"]


def test_a_stop_string_is_no_abort(own: Site) -> None:
    whole = own.complete(TEXT, max_tokens=30, ignore_eos=True).json()["choices"][0]["text"]
    answer = own.complete(TEXT, max_tokens=30, ignore_eos=True, stop=whole[5:8])
    name = answer.json()["id"]
    own.until(lambda: get(own, f"/octavo/v1/requests/{name}")["requests"][0]["state"] == "finished")
    assert get(own, f"/octavo/v1/requests/{name}")["requests"][0]["ended"][0]["reason"] == "stop"
    assert state(own)["totals"]["finished"] == {"stop": 1, "length": 1}


def test_a_request_that_waits_says_for_what(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    ask = {"prompt": TEXT, "max_tokens": 50, "ignore_eos": True, "n": 2, "request_id": "long"}
    with site.opened("/v1/completions", ask):
        site.until(lambda: site.app.service.recent.find("long")[1] != [])
        with site.opened("/v1/completions", {**ask, "n": 1, "request_id": "short"}):
            gate.let(1)  # a step ends, and the engine hears of the other one
            site.until(lambda: len(site.app.service.recent.find("short")[1]) == 1)
            gate.open()
            site.until(lambda: get(site, "/octavo/v1/requests/short")["requests"][0]["state"] == "finished")
    (short,) = get(site, "/octavo/v1/requests/short")["requests"]
    assert "seqs" in {each["reason"] for each in short["waited"]}
    assert "for a slot (--max-num-seqs)" in short["timeline"][1]["text"]


def test_what_was_refused_by_the_engine_says_so(own: Site) -> None:
    """A pool that cannot hold it is known to the engine alone."""
    prompt = [3] * 200
    answer = own.post("/v1/completions", {"prompt": prompt, "max_tokens": 56, "n": 60, "request_id": "big"})
    assert answer.status_code == 400, answer.text
    (one,) = get(own, "/octavo/v1/requests/big")["requests"]
    assert one["state"] == "refused" and "pool_too_small" in one["timeline"][0]["text"]


@pytest.fixture
def shared(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE, encoding="utf-8")
    server = ServerConfig(port=0, tenants=str(file))
    with running(checkpoint, Config(model=ModelConfig(model="tiny"), server=server)) as site:
        yield site


def test_a_tenant_sees_its_own_requests_and_no_state(shared: Site) -> None:
    answer = shared.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1}, **as_("red"))
    path = f"/octavo/v1/requests/{answer.json()['id']}"
    assert get(shared, path, "red")["tenant"] == get(shared, path, "staff")["tenant"] == "red"
    for key, other, status in (
        ("blue", path, 404),
        ("red", "/octavo/v1/requests/nothing", 404),
        ("red", "/octavo/v1/state", 403),
        ("red", "/octavo/v1/events", 403),
        ("red", "/octavo/v1/config", 403),
    ):
        refused = shared.http.get(other, **as_(key))
        check_described(refused, other)
        assert refused.status_code == status, other


# -- dumps -----------------------------------------------------------------------------------------------------------


def test_a_dump_is_written_where_it_was_configured_and_replayed_as_typed(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(
        model=ModelConfig(model="tiny"),
        server=ServerConfig(port=0),
        engine=EngineConfig(crash_dump_dir=str(tmp_path / "here")),
    )
    with running(checkpoint, config) as site:
        for prompt in (TEXT, TEXT + " and more", "something else"):
            site.complete(prompt, max_tokens=5)
        written = site.post("/octavo/v1/dump")
    assert written.status_code == 201
    file = Path(written.json()["path"])
    assert file.parent == tmp_path / "here"
    assert main(["replay", str(file), "--audit", "--plans", "2"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "asked for" and "3 requests" in lines[2] and "the start of the engine" in lines[3]
    assert lines[4].startswith("  step ") and lines[-1].endswith(" are the same")
    assert main(["replay", str(file), "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["difference"] is None
    assert main(["replay", str(tmp_path)]) == USAGE
    assert main(["replay", str(tmp_path / "nothing")]) == USAGE


def test_a_server_that_writes_no_dumps_says_so(checkpoint: Checkpoint) -> None:
    config = Config(
        model=ModelConfig(model="tiny"), server=ServerConfig(port=0), engine=EngineConfig(crash_dump_dir="off")
    )
    with running(checkpoint, config) as site:
        answer = site.post("/octavo/v1/dump")
        assert answer.status_code == 409 and error_of(answer)["code"] == "dumps_off"


# -- config ----------------------------------------------------------------------------------------------------------


def test_settings_are_shown_without_their_secrets(checkpoint: Checkpoint) -> None:
    config = Config(model=ModelConfig(model="tiny"), server=ServerConfig(port=0, api_key=("hidden-key",)))
    with running(checkpoint, config) as site:
        found = get(site, "/octavo/v1/config", "hidden-key")
    values = {each["setting"]: each for each in found["settings"]}
    assert values["server.api_key"]["value"] == ["***"] and "hidden-key" not in json.dumps(found)
    assert values["model.model"]["value"] == "tiny" and values["model.model"]["help"]
    assert found["report"] == ["threads: 1"]


def test_an_id_that_two_tenants_chose_is_to_each_its_own(shared: Site) -> None:
    """And an answer whose id a client has chosen is found by it."""
    for key, length in (("red", 1), ("blue", 2)):
        headers = {**as_(key)["headers"], "x-request-id": "both"}
        body = {"prompt": TEXT, "max_tokens": length, "ignore_eos": True, "request_id": "chosen"}
        assert shared.post("/v1/completions", body, headers=headers).json()["id"] == "cmpl-chosen"
    for name in ("both", "chosen", "cmpl-chosen"):
        path = f"/octavo/v1/requests/{name}"
        shown = {key: get(shared, path, key) for key in ("red", "blue", "staff")}
        assert {key: each["tenant"] for key, each in shown.items()} == {"red": "red", "blue": "blue", "staff": "blue"}
        assert shown["red"]["requests"][0]["generated_tokens"] == 1 != shown["blue"]["requests"][0]["generated_tokens"]
