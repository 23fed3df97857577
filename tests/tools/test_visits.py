"""`octavo pin` and `octavo explain cache`, as typed, against a running server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import FAILED, OK, USAGE, main
from octavo.config.schema import settings
from octavo.engine.memory import Demand, plan_memory, plan_tier
from octavo.tools.explain import LEADS_TO
from tests.server.site import BLOCK_SIZE, Site, running, tiny_checkpoint

TEXT = "what is typed on the command line, and is long enough for blocks"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tiny_checkpoint(Path(tmp_path_factory.mktemp("tiny")) / "model")) as site:
        yield site


def typed(capsys: pytest.CaptureFixture[str], site: Site, *words: str) -> str:
    assert main([*words, "--url", site.url]) == OK
    return capsys.readouterr().out


def test_pins_are_added_listed_and_removed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    made: dict[str, Any] = json.loads(typed(capsys, site, "pin", "add", TEXT, "--ttl", "90", "--json"))
    assert made["blocks"] == made["tokens"] // BLOCK_SIZE > 2
    line = f"{made['id']}: {made['tokens']} tokens in {made['blocks']} blocks, for "
    assert line in (listed := typed(capsys, site, "pin", "list")) and "quota 64" in listed
    assert typed(capsys, site, "pin", "remove", made["id"]) == f"{made['id']} removed\n"
    assert typed(capsys, site, "pin", "list") == "0 blocks pinned; quota 64\n"


def test_a_chat_is_pinned_as_it_will_be_asked(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(typed(capsys, site, "pin", "add", "--chat", "--system", TEXT, "--json"))
    told = json.loads(typed(capsys, site, "explain", "cache", "hello", "--chat", "--system", TEXT, "--json"))
    assert told["cached_tokens"] >= made["tokens"]
    typed(capsys, site, "pin", "remove", made["id"])


def test_an_explanation_is_read_at_a_glance(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = f"explain this: {TEXT}"
    words = typed(capsys, site, "explain", "cache", prompt)
    total = len(site.tokenizer.encode(prompt))
    assert words.startswith(f"0 of {total} tokens are cached, {total} would be computed\nfrom token 0 on: never_seen: ")
    site.complete(prompt, max_tokens=1)
    other = f"{prompt[:20]}\nsomething else that goes on for a while"
    lines = typed(capsys, site, "explain", "cache", other).splitlines()
    assert "tokens_differ_at" in lines[1] and lines[3].startswith("  prompt   ") and '"\\n"' in lines[3]
    assert lines[4].startswith("  cached   ")
    aligned = site.tokenizer.decode(site.tokenizer.encode(prompt)[: 2 * BLOCK_SIZE], skip_special_tokens=False)
    assert len(typed(capsys, site, "explain", "cache", aligned).splitlines()) == 1, "a whole hit needs no reason"


def test_a_request_is_told_in_sentences_with_their_times(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    answer = site.post("/v1/completions", {"prompt": TEXT, "max_tokens": 3, "ignore_eos": True}).json()
    lines = typed(capsys, site, "explain", "request", answer["id"]).splitlines()
    assert lines[0] == f"{answer['id']}: /v1/completions" and ": finished, " in lines[1] and "+ 3 tokens" in lines[1]
    times = [float(line.split()[0]) for line in lines[2:]]
    assert times == sorted(times)
    sentences = [line.split(" s  ", 1)[1] for line in lines[2:]]
    for sentence, words in zip(
        sentences, ("came to the engine", "it started", "a chunk of", "first token", "ended by length"), strict=True
    ):
        assert words in sentence
    shown = json.loads(typed(capsys, site, "explain", "request", answer["id"], "--json"))
    assert [moment["text"] for moment in shown["requests"][0]["timeline"]] == sentences


def test_settings_are_told_with_what_came_of_them(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    whole = typed(capsys, site, "explain", "config")
    assert 'model.model = "tiny"' in whole and "  threads: 1\n" in whole
    for name in ("num_threads", "num-threads", "engine.num_threads", "OCTAVO_NUM_THREADS"):
        one = typed(capsys, site, "explain", "config", name)
        assert one.startswith("engine.num_threads = null") and one.endswith("  threads: 1\n")
    assert "threads" not in typed(capsys, site, "explain", "config", "port").partition("what the engine")[2]


def test_each_error_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Of itself: no server is asked."""
    assert main(["explain", "error", "queue_full"]) == OK
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("queue_full (503): ") and "replicas" in second
    assert main(["explain", "error", "queue_fill"]) == USAGE
    assert "queue_full" in capsys.readouterr().err


def test_reports_of_the_engine_begin_as_settings_say_that_lead_to_them() -> None:
    demand = Demand(
        weight_bytes=1,
        kv_bytes_per_token=1,
        available_bytes=1 << 20,
        available_reason="",
        utilization=0.9,
        model_len=64,
        max_model_len=None,
        max_num_seqs=1,
        block_size=8,
        num_blocks=None,
        kv_cache_memory_bytes=None,
    )
    lines = (*plan_memory(demand).report, *plan_tier(64, None, 8, 1, True).report)
    heads = {line.partition(":")[0] for line in lines}
    told = {head for heads in LEADS_TO.values() for head in heads}
    assert told == heads | {"kernels", "threads"} and LEADS_TO.keys() <= settings().keys()


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["pin", "add"], FAILED, "a text is missing"),
        (["pin", "remove"], FAILED, "octavo pin remove ID"),
        (["pin", "remove", "nothing"], FAILED, "there is no pin 'nothing'"),
        (["pin", "add", "x"], FAILED, "only full blocks of 8"),
        (["pin", "keep", TEXT], USAGE, "keep"),
        (["explain", "weather"], USAGE, "weather"),
        (["explain", "request"], USAGE, "explain request ID"),
        (["explain", "request", "no/thing"], FAILED, "no request is remembered as 'no/thing'"),
        (["explain", "config", "max_num_sequence"], USAGE, "max_num_seqs"),
        (["explain", "config", "port", "host"], USAGE, "name one setting"),
    ],
)
def test_what_goes_wrong_is_one_line(
    site: Site, capsys: pytest.CaptureFixture[str], words: list[str], status: int, complaint: str
) -> None:
    assert main([*words, "--url", site.url]) == status
    assert complaint in (said := capsys.readouterr().err) and said.count("\n") == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1", "nonsense"])
def test_without_a_server_that_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pin", "list", "--url", url]) == FAILED
    assert url in capsys.readouterr().err
